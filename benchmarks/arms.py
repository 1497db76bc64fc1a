"""Copies of the checkout in which a benchmark or a test runs the pipeline, some with tiny knobs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from posttrain.pipeline.git import commit_tree, copy_tree
from posttrain.runtime.plain_yaml import read_yaml

REPOSITORY = Path(__file__).resolve().parents[1]
# so small that the whole graph runs in a minute or two
SMALL: dict[str, Any] = {
    "world": {
        "type": "toy",
        "seed": 7,
        "max_difficulty": 2,
        "num_sft_tasks": 96,
        "num_rl_tasks": 16,
        "num_dev_tasks": 8,
        "num_test_tasks": 8,
        "flaw_rates": {
            "wrong_shop": 0.85,
            "give_up": 0.7,
            "look_alike": 0.55,
            "redundant_call": 0.1,
            "malformed_json": 0.03,
            "shop_flip": 0.1,
            "repeated_ask": 0.1,
        },
    },
    "resample_data.cells": ["kind", "shop", "language"],
    "evaluate.by": ["kind", "shop", "language", "difficulty"],
    "agent.max_turns": 4,
    "agent.max_new_tokens": 24,
    "agent.max_context_tokens": 384,
    "validate_data.max_tokens": 384,
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
    "train_policy.begin_with": None,
    "train_policy.algorithm": {
        "type": "online",
        "max_steps": 2,
        "max_generated_tokens": None,
        "tasks_per_step": 2,
        "group_size": 4,
        "temperature": 1.0,
        "updates_per_step": 1,
        "max_staleness": 0,
        "sampling": {"order": {"type": "uniform"}, "max_refills": 0},
        "join": {"type": "none"},
        "credit": {
            "type": "episode",
            "baseline": {"type": "group_mean"},
            "scale": {"type": "group_std", "floor": 1e-4},
            "drop": "none",
            "equal_groups": {"type": "by_baseline"},
        },
        "objective": {"type": "policy_gradient"},
        "average": "tokens",
        "kl": {"type": "none"},
        "entropy_bonus": 0.0,
        "importance_cap": 2.0,
        "dev": {"every_steps": 1, "num_tasks": 4, "keep": "last"},
    },
    "train_policy.checkpoint_every_steps": 1,
    "evaluate.num_samples": 4,
}


def clone_checkout(target: Path) -> Path:
    """The last commit of this checkout, cloned to `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(target)], check=True)
    return target


def make_small_copy(root: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """The working tree as it is now, uncommitted edits too, as one commit in `root`, with the knobs
    of `SMALL`, then `overrides`; nothing run."""
    copy_tree(REPOSITORY, root)
    apply_overrides(root / "params.yaml", {**SMALL, **(overrides or {})})
    commit_tree(root)
    return root


def environment_of(copy: Path) -> dict[str, str]:
    """For a `dvc` started in a copy: this interpreter's programs, and the copy's own code before
    the installed one."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(copy)}


def apply_overrides(params_yaml: Path, overrides: Mapping[str, Any]) -> None:
    """Write values at dotted keys; a key that is not there raises KeyError, so that a renamed knob
    cannot silently make an arm the default."""
    content = read_yaml(params_yaml)
    for key, value in overrides.items():
        *path, last = key.split(".")
        section = content
        for part in path:
            section = section[part]
        if last not in section:
            raise KeyError(f"params.yaml has no {key}")
        section[last] = deepcopy(value)  # a later key may lie below it
    params_yaml.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
