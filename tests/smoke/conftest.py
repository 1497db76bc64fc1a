"""A copy of the checkout as it is now, with knobs so small that the whole graph runs in a minute."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import apply_overrides, environment_of

TINY = {
    "world": {"type": "toy", "seed": 7, "max_difficulty": 2, "num_sft_tasks": 96, "num_rl_tasks": 16, "num_dev_tasks": 8, "num_test_tasks": 8},
    "agent.max_turns": 4,
    "agent.max_new_tokens": 24,
    "agent.max_context_tokens": 384,
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "model.mlp_size": 64,
    "model.vocab_size": 500,
    "prepare_model.warmup_steps": 4,
    "prepare_model.warmup_batch_size": 8,
    "resample_data.oversample.num_neighbors": 2,
    "resample_data.oversample.max_contamination": 1.0,
    "train_sft.max_steps": 24,
    "train_sft.batch_size": 8,
    "train_sft.eval_every_steps": 12,
    "sample_preferences.num_tasks": 8,
    "sample_preferences.num_samples": 4,
    "train_reward_model.max_steps": 4,
    "train_reward_model.batch_size": 4,
    "train_reward_model.checkpoint_every_steps": 2,
    "train_policy.algorithm": {
        "type": "grpo",
        "max_steps": 2,
        "tasks_per_step": 2,
        "group_size": 4,
        "temperature": 1.0,
        "beta": 0.0,
        "epsilon": 0.2,
        "advantage": "group_std",
        "importance_cap": 2.0,
        "max_staleness": 0,
    },
    "train_policy.checkpoint_every_steps": 1,
    "evaluate.num_samples": 4,
    "evaluate.num_bootstrap": 100,
}


@pytest.fixture(scope="session")
def make_copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_copy(overrides)` gives a committed copy of the working tree, tiny knobs first, then `overrides`."""

    def copy(overrides: Mapping[str, Any] | None = None) -> Path:
        root = tmp_path_factory.mktemp("pipeline")
        listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=repository, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            source, target = repository / name, root / name
            if source.is_file() and name != "dvc.lock" and (not name.startswith("reports/") or name == "reports/seeds.json"):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        apply_overrides(root / "params.yaml", {**TINY, **(overrides or {})})
        git = ["git", "-c", "user.name=smoke", "-c", "user.email=smoke@localhost"]
        for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "copy"]):
            subprocess.run([*git, *command], cwd=root, check=True)
        return root

    return copy


@pytest.fixture(scope="session")
def dvc() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`dvc(root, "repro", …)` runs dvc there as a person would, with the copy's own code first on the path."""

    def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**environment_of(root), "WANDB_MODE": "disabled"}
        return subprocess.run(["dvc", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False)

    return run
