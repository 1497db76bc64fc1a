"""Run the pipeline with some knobs changed, in a copy of the checkout, and read its reports: the ground under every comparison.

All copies share one DVC cache, so an arm computes only the stages that its overrides change. Arms run one after the other: they write to one cache.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant: dotted keys of `params.yaml` with their values, and the stages to bring up to date (empty: all)."""

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()


def run_arm(arm: Arm, folder: Path) -> Path:
    """Run one arm in `folder/<name>` and return that copy. Raises CalledProcessError where the pipeline fails; its output went to the terminal."""
    copy = clone_checkout(folder / arm.name)
    cache = REPOSITORY / ".dvc" / "cache"
    (copy / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {cache}\n", encoding="utf-8")
    apply_overrides(copy / "params.yaml", arm.overrides)
    print(f"== {arm.name}: {json.dumps(dict(arm.overrides), ensure_ascii=False)}", flush=True)
    subprocess.run(["dvc", "repro", *arm.targets], cwd=copy, env=environment_of(copy), check=True)
    return copy


def clone_checkout(target: Path) -> Path:
    """The last commit of this checkout, cloned to `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(target)], check=True)
    return target


def environment_of(copy: Path) -> dict[str, str]:
    """For a `dvc` started in a copy: this interpreter's programs, and the copy's own code before the installed one."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(copy)}


def apply_overrides(params_yaml: Path, overrides: Mapping[str, Any]) -> None:
    """Write values at dotted keys; a key that is not there raises KeyError, so that a renamed knob cannot silently make an arm the default."""
    content = yaml.safe_load(params_yaml.read_text(encoding="utf-8"))
    for key, value in overrides.items():
        *path, last = key.split(".")
        section = content
        for part in path:
            section = section[part]
        if last not in section:
            raise KeyError(f"params.yaml has no {key}")
        section[last] = value
    params_yaml.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_report(copy: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((copy / "reports" / name).read_text(encoding="utf-8"))
    return report
