"""`posttrain demo`: the whole graph in small, in a folder of its own.

Every stage of `dvc.yaml` runs with the knobs of `experiments/demo.yaml`, on a copy of the tree, so
that no file of the clone and no entry of its `dvc.lock` changes. Each is forked from one process
that has loaded PyTorch; DVC, which would start a process and record the result for each, is left
out.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.cli.command import Commands, add_command, add_setting, settings_of
from posttrain.runtime.exits import ConfigurationError, as_error, as_shell
from posttrain.runtime.state import STATE_DIR, remove_tree, state_dir

FOLDER = STATE_DIR / "demo"


def add_demo(commands: Commands) -> None:
    add_setting(add_command(commands, "demo", demo))


def demo(knobs: Sequence[str]) -> None:
    """The whole pipeline in small: demonstrations in a toy world, fine-tuning, GRPO, evaluation, a
    page with the curves, and whether the policy is better by more than chance. Changes no file of
    the tree."""
    from posttrain.config.named_world import demo_knobs
    from posttrain.report.knobs import parse_knobs
    from posttrain.report.page import read_reports
    from posttrain.report.table import gain_sentence, summary_table

    start_s, folder = time.monotonic(), Path.cwd() / FOLDER
    _prepare(folder, {**demo_knobs(), **settings_of(knobs)})
    _run_stages(folder)
    gain = read_reports(folder / "reports", parse_knobs((folder / "params.yaml").read_bytes())).gain
    print(f"\n{summary_table(folder / 'reports')}")
    if gain is not None:
        print(f"policy less sft, strict success: {gain_sentence(gain)}")
    print(f"{time.monotonic() - start_s:.0f} s. What was run: {FOLDER}; the larger experiment: `make run`")


def _prepare(folder: Path, knobs: Mapping[str, Any]) -> None:
    """A copy of the tree with small knobs. Raises ConfigurationError outside of a clone."""
    from posttrain.experiments.plan import Variant, with_knobs
    from posttrain.pipeline.git import commit_tree, copy_tree

    root = Path.cwd()
    if not (root / "dvc.yaml").is_file():
        raise ConfigurationError("dvc.yaml is not here; run from the root of the repository")
    state_dir(root)
    remove_tree(folder)
    copy_tree(root, folder)
    params = folder / "params.yaml"
    small = with_knobs(params.read_text(encoding="utf-8"), Variant("demo", knobs))
    params.write_text(small, encoding="utf-8")
    commit_tree(folder)


def _run_stages(folder: Path) -> None:
    """Raises the StageError that a stage ended with, whose own words are on stderr by then."""
    from posttrain.pipeline.graph import read_graph

    environment = {"WANDB_MODE": "disabled", **os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "posttrain.pipeline.forked_stages", *(node.name for node in read_graph(folder))]
    if code := subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
        raise as_error(code, f"a stage of the demo failed; its words stand above, its files in {FOLDER}") or SystemExit(
            as_shell(code)
        )
