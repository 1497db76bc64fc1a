"""Branch and worktree of an experiment: a branch `exp/NAME-seedN` with its knobs, in a worktree
below the main tree's state folder.

The worktree shares DVC's cache with the main tree, so that only changed stages run. A branch is
made once and never rewritten: the next run merges what was committed since, and goes on where the
last one ended. A plan that says something else by the same name is refused.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from dvc.repo import Repo

from posttrain.experiments.plan import Variant, with_knobs
from posttrain.pipeline.dvc_threads import allow_threads
from posttrain.pipeline.git import file_at, git, succeeds
from posttrain.pipeline.snapshot import configure_dvc
from posttrain.provenance.lockfile import lock_entries
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.plain_yaml import load_yaml
from posttrain.runtime.state import STATE_DIR
from posttrain.train.policy_inputs import EARLIER_EPISODES, EARLIER_POLICY

PARAMS = "params.yaml"
EARLIER_RUN = {
    "data/models/policy": str(EARLIER_POLICY),
    "data/experience/episodes.parquet": str(EARLIER_EPISODES),
}


def check_branches(root: Path, variants: Sequence[Variant]) -> None:
    """Before anything runs. Raises ConfigurationError for a branch that other knobs made, and where
    git knows nobody to commit as."""
    git(root, "var", "GIT_COMMITTER_IDENT")
    for variant in variants:
        git(root, "check-ref-format", "--branch", variant.branch)
        text = file_at(root, variant.branch, PARAMS) if _exists(root, variant) else None
        if text is not None and load_yaml(with_knobs(text, variant), PARAMS) != load_yaml(text, PARAMS):
            raise ConfigurationError(
                f"{variant.branch} is there already and was made with other knobs than {variant.sentence()}; "
                "results would be mixed up. Give the "
                "experiment another name, or delete the branch (`git worktree remove`, "
                f"then `git branch -D {variant.branch}`)"
            )


def open_worktree(root: Path, variant: Variant, folder: Path) -> None:
    """The branch, made at HEAD or with HEAD merged, in `folder`, with all outputs that DVC's cache
    has. Raises ConfigurationError where git cannot merge."""
    allow_threads()
    if not _exists(root, variant):
        _make_branch(root, variant)
    if not (folder / ".git").exists():
        git(root, "worktree", "prune")  # one whose folder a person deleted
        git(root, "worktree", "add", "--quiet", str(folder), variant.branch)
    _merge_head(root, variant, folder)
    with Repo(str(root)) as repo:
        cache = Path(repo.cache.legacy.path)
    configure_dvc(folder, cache)
    command = [sys.executable, "-m", "dvc", "checkout", "--quiet", "--force", "--allow-missing"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)  # what it cannot bring, the stages make


def _merge_head(root: Path, variant: Variant, folder: Path) -> None:
    """Merge HEAD, with the variant's knobs; results stay the branch's, for DVC to compare with."""
    head = git(root, "rev-parse", "HEAD")
    if succeeds(folder, "merge-base", "--is-ancestor", head, "HEAD"):
        return
    succeeds(folder, "merge", "--abort")  # of a run that was killed right here
    commit_results(folder, f"{variant.branch}: before {head[:8]}")  # of a run that was ended
    merge = ("merge", "--no-commit", "--no-ff", head)  # results conflict (.gitattributes), and knobs may
    if not succeeds(folder, *merge) and not succeeds(folder, "rev-parse", "--quiet", "--verify", "MERGE_HEAD"):
        git(folder, *merge)  # it was not begun: raises what git says
    for results in ("dvc.lock", "reports"):
        succeeds(folder, "checkout", "HEAD", "--", results)  # where there are some
    (folder / PARAMS).write_text(with_knobs(file_at(root, head, PARAMS) or "", variant), encoding="utf-8")
    git(folder, "add", "--", PARAMS)
    if conflicts := git(folder, "diff", "--name-only", "--diff-filter=U").split():
        git(folder, "merge", "--abort")
        raise ConfigurationError(
            f"{variant.branch} has commits of its own that conflict with {head[:8]} in {', '.join(conflicts)}: "
            f"merge it by hand in {folder}, or delete the branch (`git worktree remove`, then "
            f"`git branch -D {variant.branch}`)"
        )
    git(folder, "commit", "--quiet", "--no-verify", "--message", f"{variant.branch} on {head[:8]}")


def take_earlier_run(folder: Path, earlier: Path) -> None:
    """Put the policy and the replay buffer of the tree `earlier` into `data/earlier_run` of the
    tree `folder`, tracked by DVC: they are in the cache that both share. Raises DataError where
    that tree has not been run."""
    outs = {out["path"]: out for out in lock_entries(earlier).get("train_policy", {}).get("outs", ())}
    for made, name in EARLIER_RUN.items():
        if made not in outs:
            raise DataError(f"{earlier} has no {made} in its dvc.lock: run its train_policy first")
        file = folder / f"{name}.dvc"
        file.write_text(yaml.safe_dump({"outs": [{**outs[made], "path": Path(name).name}]}), encoding="utf-8")
        command = [sys.executable, "-m", "dvc", "checkout", "--quiet", "--force", str(file.relative_to(folder))]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataError(f"{made} of {earlier} is not in DVC's cache: {done.stderr.strip()}")


def commit_results(folder: Path, message: str) -> str:
    """Everything in the worktree that git sees, `dvc.lock` and reports before all; the short name
    of the branch's last commit."""
    git(folder, "add", "--all")
    git(
        folder, "rm", "-r", "--cached", "--quiet", "--ignore-unmatch", "--", STATE_DIR.as_posix()
    )  # where no .gitignore names it
    if not succeeds(folder, "diff", "--cached", "--quiet"):
        git(folder, "commit", "--quiet", "--no-verify", "--message", message)  # hooks are for what people edit
    return git(folder, "rev-parse", "--short", "HEAD")


def _exists(root: Path, variant: Variant) -> bool:
    return succeeds(root, "show-ref", "--verify", "--quiet", f"refs/heads/{variant.branch}")


def _make_branch(root: Path, variant: Variant) -> None:
    """HEAD and the knobs in one commit, without a working tree: whoever finds the branch finds it
    whole. The last step fails where another was first."""
    text = with_knobs(file_at(root, "HEAD", PARAMS) or "", variant)
    blob = git(root, "hash-object", "-w", "--stdin", text=text)
    with tempfile.TemporaryDirectory() as scratch:
        index = {**os.environ, "GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(root, "read-tree", "HEAD", environment=index)
        git(
            root,
            "update-index",
            "--cacheinfo",
            f"100644,{blob},{git(root, 'rev-parse', '--show-prefix')}{PARAMS}",
            environment=index,
        )
        tree = git(root, "write-tree", environment=index)
    commit = git(root, "commit-tree", tree, "-p", "HEAD", text=f"{variant.branch}: {variant.sentence()}\n")
    git(root, "update-ref", f"refs/heads/{variant.branch}", commit, "")
