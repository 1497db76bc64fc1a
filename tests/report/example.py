"""A whole `reports/` folder as the stages write it, with round figures: what a test changes is what
it is about."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.report.arms import setting_digest


def success(rate: float, num_tasks: int = 40, strict: float | None = None) -> dict[str, Any]:
    """The strict success is a tenth lower, unless it is given."""
    strict = max(0.0, rate - 0.1) if strict is None else strict
    return {
        "strict_success_rate": strict,
        "strict_ci_low": max(0.0, strict - 0.05),
        "strict_ci_high": min(1.0, strict + 0.05),
        "success_rate": rate,
        "ci_low": max(0.0, rate - 0.05),
        "ci_high": min(1.0, rate + 0.05),
        "num_tasks": num_tasks,
    }


def evaluation(rate: float) -> dict[str, Any]:
    return {
        **success(rate),
        "ci_level": 0.95,
        "num_lost": 0,
        "pass_hat_4": rate**4,
        "strict_pass_hat_4": max(0.0, rate - 0.1) ** 4,
        "scores": {
            "completion": {"mean": rate, "num_tasks": 40},
            "plan_success": {"mean": None, "num_tasks": 0},
            "timing": {"mean": rate / 2, "num_tasks": 10},
        },
        "turns_mean": 2.5,
        "reward_mean": rate - 0.1,
        "failures": {"wrong_market": 3, "wrong_value": 1},
        "by": {
            "kind": {"tool_selection": success(rate, 30), "timing_decision": success(rate / 2, 10)},
            "market": {"a": success(rate, 20), "hk": success(rate, 20)},
            "language": {"en": success(rate, 25), "zh": success(rate, 15)},
            "difficulty": {"1": success(rate, 22), "2": success(rate, 18)},
        },
        "paraphrase": success(rate / 2),
    }


def task_record(task_id: str, *, failure: str | None = None, split: str = "test", **changes: Any) -> dict[str, Any]:
    record = {
        "task_id": task_id,
        "split": split,
        "cell": "tool_selection/hk/zh/1",
        "success": failure is None,
        "strict_success": failure is None,
        "samples": [1, 0],
        "reward": 1.0 if failure is None else 0.25,
        "scores": {"completion": 1.0},
        "turns": 3,
        "stop_reason": "done",
        "failure": failure,
        "transcript": [
            {"role": "user", "content": f"腾讯控股现在多少钱? {task_id}"},
            {
                "role": "assistant",
                "reasoning": "Hong Kong, so the twin.",
                "calls": [["get_hk_realtime_quote", '{"code": "00700.HK"}']],
            },
            {"role": "tool", "content": '{"price": 380.2, "currency": "HKD"}'},
            {"role": "assistant", "content": "ANSWER: 380.20 HKD"},
        ],
    }
    return record | changes


def grpo_line(step: int) -> dict[str, Any]:
    return {
        "definition_version": 2,
        "step": step,
        "success": min(1.0, 0.5 + 0.015 * step),
        "strict_success": min(1.0, 0.4 + 0.015 * step),
        "reward_mean": 0.4 + 0.012 * step,
        "reward_std": 0.3 - 0.006 * step,
        "reward_std_batch": 0.4 - 0.004 * step,
        "frac_reward_zero_std": 0.125 + 0.5 * (step > 10),
        "frac_reward_zero_std_all_bad": 0.0625,
        "frac_reward_zero_std_all_good": 0.5 * (step > 10),
        "frac_reward_zero_std_other": 0.0625,
        "frac_tokens_nonzero_advantage": 0.8,
        "tool_failures": 0.1,
        "entropy": 0.4 / (1 + 0.1 * step),
        "kl": 0.002 * step,
        "length": 60.0,
        "turns": 3.1 - 0.01 * step,
        "lr": 1e-3,
        "grad_norm": 0.5,
    }


def arm_record(policies: dict[str, Any], knobs: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    """An arm of `reports/experiments/seeds.json` that ran with these knobs."""
    digests = {"setting": setting_digest(knobs), "code": "c", "sft": "s", "commit": "abc1234"}
    return {"override": "base", "seed": 1, "overrides": overrides, "policies": policies, **digests}


def good_reports() -> dict[str, Any]:
    """Contents by path below `reports/`: an object for a .json, a list of objects for a .jsonl."""
    rates = {"teacher": 1.0, "base": 0.0, "sft": 0.6, "policy": 0.9}
    before = [task_record(f"t{index}", failure="wrong_market" if index < 3 else None) for index in range(8)]
    after = [
        task_record(f"t{index}", failure="wrong_market" if index == 0 else "wrong_value" if index == 7 else None)
        for index in range(8)
    ]
    return {
        "experiments/seeds.json": {"arms": {}},
        **{f"evaluate/{policy}.json": evaluation(rate) for policy, rate in rates.items()},
        "evaluate/sft.tasks.jsonl": before,
        "evaluate/policy.tasks.jsonl": after,
        "train_sft/metrics.jsonl": [
            line
            for step in range(1, 41)
            for line in (
                {
                    "step": step,
                    "loss": 3 / step + 0.2,
                    "loss_call": 2 / step,
                    "loss_reasoning": 4 / step if step % 7 else None,
                    "lr": 1e-3,
                },
                *([{"step": step, "eval_loss": 3 / step + 0.3}] if step % 10 == 0 else []),
            )
        ],
        "train_policy/metrics.jsonl": [grpo_line(step) for step in range(1, 31)],
        "validate_data/summary.json": {
            "num_demonstrations": 6000,
            "num_kept": 5900,
            "num_quarantined": 100,
            "quarantined_frac": 0.016667,
            "quarantined_by_rule": {"arguments_parse": 90, "roles_alternate": 10},
        },
        "resample_data/summary.json": {
            "num_validated": 5900,
            "num_after_quality": 5700,
            "num_after_coreset": 5000,
            "num_realised": 800,
            "num_duplicated": 0,
            "num_after": 5800,
            "contamination": 0.125,
            "cells": {
                "tool_selection/a/zh/tools": {
                    "validated": 1800,
                    "after_quality": 1800,
                    "after_coreset": 1500,
                    "after": 1500,
                },
                "timing_decision/hk/en/reasoning": {
                    "validated": 12,
                    "after_quality": 12,
                    "after_coreset": 12,
                    "after": 750,
                },
            },
        },
        "sample_preferences/summary.json": {
            "num_tasks": 256,
            "num_samples": 8,
            "num_pairs": 180,
            "num_ties": 76,
            "success_rate": 0.55,
            "strict_success_rate": 0.45,
            "num_success_over_failure": 150,
            "num_strict_over_plain": 30,
            "reward_mean": 0.6,
        },
        "train_reward_model/summary.json": {
            "num_pairs": 144,
            "num_held_out_pairs": 36,
            "num_held_out_tasks": 51,
            "accuracy": 0.9,
            "accuracy_low": 0.84,
            "accuracy_high": 0.94,
            "accuracy_by_length": 0.6,
            "accuracy_by_turns": 0.55,
            "calibration_error": 0.04,
            "reliability": [
                {"low": 0.5, "high": 0.6, "num_pairs": 6, "confidence": 0.55, "accuracy": 0.5},
                {"low": 0.9, "high": 1.0, "num_pairs": 30, "confidence": 0.96, "accuracy": 0.98},
            ],
            "best_of_4": {"num_groups": 102, "picked": 0.8, "random": 0.55, "first": 0.54, "oracle": 0.88},
        },
    }


def write_reports(folder: Path, reports: Mapping[str, Any]) -> Path:
    for name, content in reports.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = content if isinstance(content, list) else [content]
        path.write_text("".join(json.dumps(line, ensure_ascii=True) + "\n" for line in lines), encoding="utf-8")
    return folder
