"""A colleague's day: clones a repository whose results are committed and whose cache is not
there, runs experiments on it, and asks the commands of the docs what came out."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.arms import environment_of, make_small_copy
from posttrain.pipeline.git import git

pytestmark = [pytest.mark.needs_prefect, pytest.mark.xdist_group("experiments_on_a_clone")]
PLAN = """
overrides:
  - {name: base}
  - {name: quick, set: {train_policy.lr: 4.0e-3}}
seeds: [1]
"""
OF_BOTH = [
    "train_retriever",
    "generate_data",
    "validate_data",
    "prepare_model",
    "resample_data",
    "train_sft",
    "sample_preferences",
]
OF_BOTH += ["select_edits", "import_preferences", "train_process_model", "train_reward_model", "select_policy_inputs"]
OF_EACH = ["check_params", "train_policy", "report"]  # and what is evaluated: of the base git has that already
THIRD = "  - {name: slow, set: {train_policy.lr: 1.0e-3}}\n"


class Colleague:
    """Runs commands in a clone; its Prefect database and run cache are its own."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        self.environment = {
            **environment_of(clone),
            "PREFECT_HOME": str(clone.parent / "prefect"),
            "POSTTRAIN_THREADS": "1",
            "WANDB_MODE": "disabled",
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Fails where the command does, with what it said."""
        ran = subprocess.run(command, check=False, cwd=self.clone, env=self.environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}\n{ran.stderr}"
        return ran

    def experiments(self, plan: Path) -> list[str]:
        """The stages that ran, by their names."""
        said = self.run("python", "-m", "flows.experiments", str(plan)).stderr
        return sorted(re.findall(r"Task run '([^']+)' - Finished in state Completed", said))

    def asks(self, *branches: str) -> None:
        """Every command that the docs name, of the first and the last of `branches`."""
        pair = branches[0], branches[-1]
        knobs = json.loads(self.run("dvc", "params", "diff", *pair, "--json").stdout)["params.yaml"]
        assert list(knobs) == ["train_policy.lr"]
        metrics = json.loads(self.run("dvc", "metrics", "diff", *pair, "--all", "--json").stdout)
        assert {"policy_success", "grpo_reward_std"} < set(metrics.pop("reports/headline.json"))
        assert not metrics
        said = self.run("dvc", "plots", "diff", *pair).stdout
        page = Path(said.strip().removeprefix("file://")).read_text(encoding="utf-8")
        assert all(f'"rev": "{branch}"' in page for branch in pair)
        self.run("posttrain", "compare", *branches, "--json", "found.json", "--html", "found.html")
        found = json.loads((self.clone / "found.json").read_text(encoding="utf-8"))["settings"]
        assert [setting["runs"][0]["name"] for setting in found] == list(branches)
        assert not [problem for setting in found for run in setting["runs"] for problem in run["problems"]]
        assert {setting["difference"]["word"] for setting in found[1:]} == {"needs more"}  # of 8 tasks


def test_two_experiments_again_and_a_third_on_a_plain_clone(tmp_path):
    # by the world alone, all plays of so small a model may earn the same: no learning rate would
    # change anything
    committed = make_small_copy(tmp_path / "committed", {"train_policy.reward_model_weight": 0.5})
    Colleague(committed).run("dvc", "repro", "--quiet")
    for command in (["add", "--all"], ["commit", "--quiet", "--message", "results"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=committed, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(committed), str(clone)], check=True)
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "config", key, "a@b"], cwd=clone, check=True)
    colleague, plan = Colleague(clone), tmp_path / "plan.yaml"

    plan.write_text(PLAN)
    assert Counter(colleague.experiments(plan)) == Counter([*OF_BOTH, *OF_EACH, *OF_EACH, "evaluate@policy"])
    heads = [git(clone, "rev-parse", f"exp/{name}-seed1") for name in ("base", "quick")]
    colleague.asks("exp/base-seed1", "exp/quick-seed1")

    assert colleague.experiments(plan) == []
    assert [git(clone, "rev-parse", f"exp/{name}-seed1") for name in ("base", "quick")] == heads

    plan.write_text(PLAN.replace("seeds:", f"{THIRD}seeds:"))
    assert colleague.experiments(plan) == sorted([*OF_EACH, "evaluate@policy"])
    colleague.asks("exp/base-seed1", "exp/quick-seed1", "exp/slow-seed1")
    assert git(clone, "status", "--porcelain", "--untracked-files=no") == ""
