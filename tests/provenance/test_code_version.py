import subprocess
from pathlib import Path

import pytest

from posttrain.provenance.code_version import wandb_variables
from posttrain.provenance.environment import stage_environment


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "params.yaml").write_text("# seed: 9\nseed: 3   # of every draw\nlr: 1\n")
    for name in ("dvc.lock", "data/.gitignore", "reports/evaluate/sft.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "start")
    return folder


def short(root: Path) -> str:
    return git(root, "rev-parse", "HEAD")[:7]


def test_a_pipeline_is_named_by_experiment_seed_and_commit(root):
    assert wandb_variables(root, {}) == {
        "WANDB_RUN_GROUP": f"main-seed3-{short(root)}",
        "WANDB_TAGS": f"main,{short(root)}",
        "WANDB_GIT_COMMIT": git(root, "rev-parse", "HEAD").strip(),
    }


def test_an_experiment_in_a_worktree_has_its_own_branch_and_commit(root, tmp_path):
    git(root, "worktree", "add", "--quiet", "-b", "exp/dpo-seed3", str(tmp_path / "experiment"))
    git(tmp_path / "experiment", "commit", "--quiet", "--allow-empty", "--message", "knobs")
    found = wandb_variables(tmp_path / "experiment", {})
    assert short(tmp_path / "experiment") != short(root)
    assert found["WANDB_RUN_GROUP"] == f"dpo-seed3-{short(tmp_path / 'experiment')}"
    assert found["WANDB_TAGS"] == f"exp/dpo-seed3,{short(tmp_path / 'experiment')}"


def test_edited_knobs_are_another_pipeline_and_the_results_of_one_that_runs_are_not(root):
    groups = [wandb_variables(root, {})["WANDB_RUN_GROUP"]]
    (root / "dvc.lock").write_text("schema: '2.0'\n")
    (root / "reports/evaluate/sft.json").write_text("{}")
    (root / "data/.gitignore").write_text("/model\n")
    groups.append(wandb_variables(root, {})["WANDB_RUN_GROUP"])
    for lr in (2, 3, 2):
        (root / "params.yaml").write_text(f"seed: 3\nlr: {lr}\n")
        groups.append(wandb_variables(root, {})["WANDB_RUN_GROUP"])
    clean, landed, two, three, again = groups
    assert (clean == landed, two == again, len({clean, two, three})) == (True, True, 3)
    assert two.startswith(f"{clean}+")


def test_what_a_person_says_to_wandb_stays(root):
    asked = {"WANDB_RUN_GROUP": "mine", "WANDB_TAGS": ""}
    found = wandb_variables(root, asked)
    assert (found["WANDB_RUN_GROUP"], found["WANDB_TAGS"]) == ("mine", f"main,{short(root)}")


def test_a_pod_without_git_has_what_it_was_told(root, tmp_path):
    told = wandb_variables(root, {})
    assert wandb_variables(tmp_path, told) == told


def test_a_folder_without_git_or_with_a_damaged_file_of_knobs_has_a_name_too(tmp_path):
    assert wandb_variables(tmp_path, {}) == {"WANDB_RUN_GROUP": "no-git-seed0"}
    (tmp_path / "params.yaml").write_bytes(b"\xff")
    assert wandb_variables(tmp_path, {}) == {"WANDB_RUN_GROUP": "no-git-seed0"}


def test_a_name_is_no_longer_than_wandb_takes(root):
    git(root, "checkout", "--quiet", "-b", f"{'a' * 90}/{'b' * 90},c")
    found = wandb_variables(root, {})
    assert len(found["WANDB_RUN_GROUP"]) <= 128
    assert [len(tag) <= 64 for tag in found["WANDB_TAGS"].split(",")] == [True, True]


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, "copy/.posttrain"), ("", "copy/.posttrain"), ("runs", "runs"), ("/runs", "/runs")]
)
def test_runs_lie_below_the_state_folder_or_where_a_person_wants_them(tmp_path, monkeypatch, asked, expected):
    monkeypatch.chdir(tmp_path)
    given = {} if asked is None else {"WANDB_DIR": asked}
    assert stage_environment(tmp_path / "copy", given)["WANDB_DIR"] == str(tmp_path / expected)
