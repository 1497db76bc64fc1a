"""A repository that holds what DVC needs to show metrics and plots: committed as GRPO left it, and
in the folder as DPO did."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from posttrain.data.files import write_json, write_text
from posttrain.report.headline import curves, headline
from posttrain.report.page import read_reports
from tests.report.example import evaluation, good_reports, write_reports

REPOSITORY = Path(__file__).parents[2]
AFTER_DPO = {
    "evaluate/policy.json": evaluation(0.8),
    "train_policy/metrics.jsonl": [
        {"step": step, "loss": 0.7 / step, "pair_accuracy": 1 - 0.5 / step, "margin": 0.1 * step}
        for step in range(1, 21)
    ],
}


def make_tree(folder: Path) -> Path:
    shutil.copytree(REPOSITORY / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
    for name in (".dvcignore", ".gitignore", "dvc.lock", "dvc.yaml", "params.yaml"):
        shutil.copy(REPOSITORY / name, folder)
    _write(folder / "reports", good_reports())
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "by GRPO"]):
        identity = ["-c", "user.name=Ada Example", "-c", "user.email=ada@example.org"]
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    _write(folder / "reports", good_reports() | AFTER_DPO)
    return folder


def dvc(tree: Path, *arguments: str) -> str:
    """Output of a command that succeeds and warns of nothing."""
    ran = subprocess.run(["dvc", *arguments], cwd=tree, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


def _write(folder: Path, files: dict[str, Any]) -> None:
    reports = read_reports(write_reports(folder, files), {})
    write_json(folder / "headline.json", headline(reports))
    for name, table in curves(reports).items():
        write_text(folder / "curves" / name, table)
