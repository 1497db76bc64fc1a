"""Experiments on a toy tree and a real temporary server: a branch each, what they share runs once,
and no branch is ever rewritten: what was committed since is merged."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from flows.experiments import chosen_variants, folder_of, num_slots
from posttrain.experiments.branches import check_branches, open_worktree
from posttrain.pipeline.git import edited_files, git
from posttrain.runtime.exits import ConfigurationError
from tests.pipeline.toy import artifact, calls, commit, environment_of, make_tree, run, set_lr

PLAN = "overrides:\n  - {name: base}\n  - {name: fast, set: {train_policy.lr: 4.0e-3}}\nseeds: [1, 2]\n"


@pytest.fixture
def root(tmp_path: Path, repository, monkeypatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(repository))
    return make_tree(tmp_path, repository)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan; $(touch pwned).yaml"
    file.write_text(PLAN)
    return file


def run_plan(root: Path, plan: Path, repository: Path, *more: str) -> tuple[int, str]:
    return run(
        root,
        environment_of(repository, PREFECT_HOME=str(root.parent / "prefect")),
        "flows.experiments",
        str(plan),
        *more,
    )


@pytest.mark.needs_prefect
def test_each_experiment_has_a_branch_with_its_results_and_a_second_run_runs_nothing(root, plan, repository):
    exit_code, output = run_plan(root, plan, repository, "--beside", "4")
    assert exit_code == 0, output
    assert calls(root).count("prepare") == 1  # all four have it in common
    assert calls(root).count("train") == 4
    heads = {
        name: git(root, "rev-parse", f"exp/{name}") for name in ("base-seed1", "base-seed2", "fast-seed1", "fast-seed2")
    }
    for name, head in heads.items():
        changed = git(root, "diff", "--name-only", "HEAD", head).splitlines()
        expected = {"dvc.lock", *(f"reports/evaluate/{policy}.json" for policy in ("teacher", "base", "sft", "policy"))}
        assert expected <= set(changed), name
        assert not [path for path in changed if path.startswith(".posttrain")]
    assert (
        git(root, "diff", "--stat", "--format=", "HEAD", "exp/fast-seed2", "--", "params.yaml")
        .splitlines()[0]
        .endswith("| 4 ++--")
    )
    assert json.loads(git(root, "show", "exp/fast-seed1:reports/evaluate/policy.json"))[
        "success_rate"
    ] == pytest.approx(0.504)
    told = "strict success 50.4 % (45.0 … 55.0 %)"
    assert f"| `exp/fast-seed1` | train_policy.lr = 0.004, seed = 1 | {told} | {told} |" in artifact(
        root.parent / "prefect", "experiments"
    )
    assert edited_files(root) == []

    exit_code, output = run_plan(root, plan, repository)
    assert exit_code == 0, output
    assert len(calls(root)) == 5
    assert {name: git(root, "rev-parse", f"exp/{name}") for name in heads} == heads


def test_a_wrong_plan_is_refused_before_a_server_is_started_and_nothing_of_it_is_executed(root, plan, repository):
    plan.write_text("overrides: '; touch pwned'\n")
    exit_code, output = run_plan(root, plan, repository)
    assert (exit_code, "no experiment can be read" in output) == (78, True), output
    assert "temporary server" not in output
    assert not git(root, "branch", "--list", "exp/*")
    assert not [*root.parent.rglob("pwned"), *repository.glob("pwned")]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ([{"name": "a", "set": {"train_policy.rate": 1}}], "unknown key"),
        ([{"name": "a", "set": {"x; touch pwned": 1}}], "unknown key"),
        ([{"name": "$(touch pwned)"}], "cannot be named"),
    ],
)
def test_what_is_no_override_is_refused(root, overrides, why):
    with pytest.raises(ConfigurationError, match=why):
        chosen_variants(root, "", overrides, [1])


def test_a_branch_that_other_knobs_made_is_refused_and_left_as_it_is(root):
    _, [made] = chosen_variants(root, "", [{"name": "fast", "set": {"train_policy.lr": 0.004}}], [1])
    open_worktree(root, made, folder_of(root, made))
    head = git(root, "rev-parse", made.branch)
    assert git(root, "log", "-1", "--format=%s", made.branch) == "exp/fast-seed1: train_policy.lr = 0.004, seed = 1"
    with pytest.raises(ConfigurationError, match="made with other knobs"):
        chosen_variants(root, "", [{"name": "fast", "set": {"train_policy.lr": 0.005}}], [1])
    assert git(root, "rev-parse", made.branch) == head


def test_a_branch_takes_over_what_the_base_has_committed_since_and_keeps_its_knobs_and_results(root):
    _, [made] = chosen_variants(root, "", [{"name": "base", "set": {"train_policy.lr": 2.0e-3}}], [2])
    folder = folder_of(root, made)
    open_worktree(root, made, folder)
    (folder / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")  # an ended run's, uncommitted
    head = git(root, "rev-parse", made.branch)
    (root / "evaluate.py").write_text("print('other code')\n")
    (root / "dvc.lock").write_text("schema: '2.0'\n")
    set_lr(root, "2.5e-3")
    commit(root, "another base")
    check_branches(root, [made])
    open_worktree(root, made, folder)
    assert git(root, "merge-base", head, made.branch) == head  # nothing is rewritten
    assert (folder / "evaluate.py").read_text() == "print('other code')\n"
    assert "lr: 0.002 " in (folder / "params.yaml").read_text()
    assert "seed: 2" in (folder / "params.yaml").read_text()
    assert "stages" in (folder / "dvc.lock").read_text()
    assert edited_files(folder) == []

    again = git(root, "rev-parse", made.branch)
    subprocess.run(["rm", "-r", str(folder)], check=True)
    open_worktree(root, made, folder)
    assert git(root, "rev-parse", made.branch) == again


def test_a_branch_with_code_of_its_own_that_conflicts_is_refused_and_left_as_it_is(root):
    _, [made] = chosen_variants(root, "", [{"name": "base"}], [2])
    folder = folder_of(root, made)
    open_worktree(root, made, folder)
    (folder / "evaluate.py").write_text("print('of the branch')\n")
    commit(folder, "my own")
    head = git(root, "rev-parse", made.branch)
    (root / "evaluate.py").write_text("print('of the base')\n")
    commit(root, "another base")
    with pytest.raises(ConfigurationError, match=r"conflict with \w+ in evaluate.py: merge it by hand"):
        open_worktree(root, made, folder)
    assert git(root, "rev-parse", made.branch) == head
    assert edited_files(folder) == []


def test_hostile_values_are_data(root):
    """A teacher's name may be any text; it reaches a YAML string and a commit message, and no
    shell."""
    name = "ours:$(touch pwned); touch 'pwned' #"
    teacher = {"type": "openai", "model": name, "temperature": 1.0, "max_new_tokens": 8}
    _, [made] = chosen_variants(root, "", [{"name": "odd", "set": {"generate_data.source": teacher}}], [1])
    open_worktree(root, made, folder_of(root, made))
    assert name in git(root, "log", "-1", "--format=%B", made.branch)
    assert not list(root.parent.rglob("pwned"))


def test_slots_of_this_machine_bound_what_runs_at_a_time(root):
    settings = root / "infra/dispatch.yaml"
    settings.parent.mkdir(exist_ok=True)
    targets = "{slurm: {type: slurm, options: []}, local: {type: local, num_gpus: 3}}"
    settings.write_text(f"target: local\ntargets: {targets}\nresources: {{}}\n")
    assert num_slots(root) == 3
    settings.write_text(f"target: slurm\ntargets: {targets}\nresources: {{}}\n")
    assert num_slots(root) == math.inf
