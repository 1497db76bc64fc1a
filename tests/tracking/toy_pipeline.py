"""A DVC repository of two stages that show what they did in W&B and say what they took: a training
and its evaluation."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import read_graph
from posttrain.provenance.run_records import read_records
from tests.conftest import REPOSITORY
from tests.dvc_trees import init_dvc
from tests.tracking.offline_runs import OfflineRun, offline_runs

DVC_YAML = """
stages:
  train_sft:
    cmd: python stage.py train_sft model
    deps: [stage.py]
    params: [seed]
    outs: [model]
  evaluate:
    cmd: python stage.py evaluate score
    deps: [stage.py, model]
    outs: [score]
"""
STAGE = """
import sys
from pathlib import Path
from posttrain.config.params import load_params
from posttrain.provenance.costs import Attempts
from posttrain.provenance.costs import append_cost, measured_cost
from posttrain.provenance.runner import StageRun
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.tracking.wandb_tables import shown_evaluation
from tests.report.example import evaluation

name, out = sys.argv[1:]
stage = StageRun(name, "", load_params(), Path(".posttrain/checkpoints") / name / "0123456789abcdef")
if name == "evaluate":
    with shown_evaluation(stage) as show:
        show(evaluation(0.75), [])
for sink in wandb_sinks(stage, stage.checkpoint_dir) if name == "train_sft" else ():
    sink.write(1, {"loss": 0.5})
    sink.close()
Path(out).write_text("made")
took = {"seconds": 7.0, "peak_mib": 9.0, "is_resumed": False, "num_threads": 1}
append_cost(measured_cost(name, attempts=Attempts(Path()), **took))
"""
STAGES = ["train_sft", "evaluate"]
# of jobs that are handed nothing of the submitter's: this tree's code and interpreter
ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY)}


def make_experiment(folder: Path, more: Mapping[str, str] | None = None) -> Path:
    """The worktree of the branch exp/toy-seed1, below the state folder of the tree `folder`/main;
    `more` are further files of it."""
    main = folder / "main"
    files = {
        "dvc.yaml": DVC_YAML,
        "stage.py": STAGE,
        ".gitignore": "/.posttrain/\n",
        "params.yaml": (REPOSITORY / "params.yaml").read_text(encoding="utf-8"),
        **(more or {}),
    }
    for name, text in files.items():
        (main / name).parent.mkdir(parents=True, exist_ok=True)
        (main / name).write_text(text, encoding="utf-8")
    _git(main, "init", "--quiet", "--initial-branch", "main")
    init_dvc(main)
    _git(main, "add", "--all")
    _git(main, "commit", "--quiet", "--message", "start")
    worktree = main / ".posttrain" / "experiments" / "toy-seed1"
    _git(main, "worktree", "add", "--quiet", "-b", "exp/toy-seed1", str(worktree))
    _git(worktree, "commit", "--quiet", "--allow-empty", "--message", "knobs")
    return worktree


def run_pipeline(worktree: Path, settings: DispatchSettings) -> list[OfflineRun]:
    """Both stages as jobs; gives the runs of W&B that lie in the main tree's state folder then."""
    state = worktree.parents[1]
    runs, told = StageExecutor(worktree, settings=settings, state=state), list[str]()
    for node in read_graph(worktree):
        outcome = runs.run(node, told.append)
        assert outcome.state == "completed", (outcome, told)
    runs.close()
    return offline_runs(state)


def group_of(worktree: Path) -> str:
    """Name of the W&B group of its pipeline's runs."""
    return f"toy-seed1-{_git(worktree, 'rev-parse', 'HEAD')[:7]}"


def check_pipeline(worktree: Path, found: list[OfflineRun]) -> None:
    """Two runs, of the experiment's branch and commit, a record of each beside its outputs, and the
    snapshots that they ran in are gone."""
    group = group_of(worktree)
    assert [(one.run.job_type, one.run.run_group) for one in found] == [(name, group) for name in STAGES]
    assert [set(one.run.tags) for one in found] == [{"exp/toy-seed1", group[-7:]}] * 2
    assert not list((worktree.parents[1] / "snapshots").iterdir())
    records = read_records(worktree)
    assert [(name, record.seconds, record.peak_mib) for name, record in records.items()] == [
        (name, 7.0, 9.0) for name in STAGES
    ]
    assert {record.version for record in records.values()} == {_git(worktree, "rev-parse", "HEAD").strip()}


def _git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
