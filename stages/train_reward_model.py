"""A Bradley-Terry reward model on the pairs, judged on tasks that it never saw: accuracy with its
interval beside two baselines, calibration, best of four and of eight."""

import dataclasses
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.files import leave_untrained, write_json
from posttrain.data.preferences import Pair, read_pairs
from posttrain.data.schemas import TrajectoryRow, read_trajectories
from posttrain.models.codec import ChatCodec
from posttrain.models.distributed import is_sharded
from posttrain.models.loading import load_codec
from posttrain.models.params import at_once_of
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import ConfigurationError
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.episode_tokens import token_rows
from posttrain.train.preference_pairs import NO_PAIRS, all_pairs_of, group_by_task, orders_of
from posttrain.train.resumable_trainer import open_run
from posttrain.train.reward_ensemble import RewardModels, member_folder, scale_of, write_scale
from posttrain.train.reward_model import fold_heads, head_scores, load_reward_model, new_reward_model
from posttrain.train.reward_model import train_reward_model as train
from posttrain.train.reward_model_quality import (
    accuracy_interval,
    best_of,
    counting_accuracy,
    expected_calibration_error,
    pair_accuracy,
    reliability,
    reward_bench,
)
from posttrain.train.trainable import save_trained

SFT = Path("data/models/sft")
PAIRS = Path("data/preferences/pairs.parquet")
MODEL, SUMMARY = Path("data/models/reward"), Path("reports/train_reward_model/summary.json")
NUM_CHOICES = 4, 8  # best of as many: what a deployment can afford to sample


def train_reward_model(run: StageRun) -> None:
    params, settings = run.params, run.params.train_reward_model
    groups = group_by_task(read_trajectories(Path("data/preferences/samples.parquet")))
    pairs = read_pairs(PAIRS)
    tasks = [group[0].trajectory.task_id for group in groups]
    tasks = list(dict.fromkeys([*tasks, *(pair.chosen.trajectory.task_id for pair in pairs)]))
    held_out_tasks = _draw(tasks, settings.holdout_frac, seed=params.seed)
    held_out_groups = [group for group in groups if group[0].trajectory.task_id in held_out_tasks]
    seen = [pair for pair in pairs if pair.chosen.trajectory.task_id not in held_out_tasks]
    held_out = [pair for group in held_out_groups for pair in all_pairs_of(group)]
    held_out += [
        pair for pair in pairs if pair.said.source != "sampled" and pair.chosen.trajectory.task_id in held_out_tasks
    ]
    if not seen or not held_out:
        # select_policy_inputs refuses a run whose policy reads a reward model
        why = f"{PAIRS} has {len(seen)} pairs to train on and {len(held_out)} to judge by; both are needed: " + (
            "raise sample_preferences.num_tasks or change train_reward_model.holdout_frac" if pairs else NO_PAIRS
        )
        print(f"[{run.full_name}] {why}", file=sys.stderr, flush=True)
        write_json(SUMMARY, {"num_pairs": len(seen), "num_held_out_pairs": len(held_out)})
        leave_untrained(MODEL, why)
        return
    codec = load_codec(SFT)
    chosen, rejected = (token_rows([getattr(pair, side) for pair in seen], codec) for side in ("chosen", "rejected"))
    rows = list(zip(chosen, rejected, strict=True))
    orders = _orders(seen, list(settings.heads))
    members, scales = [], []
    by_head: dict[str, Any] = {}
    if run.is_first:
        shutil.rmtree(MODEL, ignore_errors=True)  # members of another run
    for number in range(1, settings.num_members + 1):
        drawn = _bootstrap(seen, number, seed=params.seed) if settings.num_members > 1 else range(len(seen))
        folder = run.checkpoint_dir if number == 1 else run.checkpoint_dir / f"member-{number}"
        model = new_reward_model(SFT, params.model, seed=params.seed, num_heads=max(1, len(settings.heads)))
        with open_run(
            folder,
            sinks=wandb_sinks(run, run.checkpoint_dir) if number == 1 else (),
            progress=run.progress,
            at_once=at_once_of(params.model),
        ) as training:
            train(
                model,
                codec.tokenizer,
                pairs=[rows[place] for place in drawn],
                weights=[seen[place].weight for place in drawn],
                orders=[orders[place] for place in drawn],
                params=settings,
                seed=params.seed + number - 1,
                run=training,
            )
        model.eval()
        if settings.heads:
            by_head = by_head or _judge_heads(model, codec, held_out, list(settings.heads))
            model = fold_heads(model, list(settings.heads.values()))
        if is_sharded():
            # the first process judges by the whole model
            save_trained(model, codec.tokenizer, member_folder(MODEL, number))
            model = load_reward_model(member_folder(MODEL, number)) if run.is_first else None
        if run.is_first:
            members.append(model)
            scales.append(scale_of(model, [row.input_ids for pair in rows for row in pair]))
            if not is_sharded():
                save_trained(model, codec.tokenizer, member_folder(MODEL, number))
            write_scale(member_folder(MODEL, number), scales[-1])
    if run.is_first:
        judged = _judge(RewardModels(members, scales), codec, seen, held_out, held_out_groups)
        write_json(SUMMARY, {"num_held_out_tasks": len(held_out_tasks), **judged, **by_head})


def _orders(pairs: Sequence[Pair], heads: Sequence[str]) -> list[list[float]]:
    """Order every pair by each head. Raises ConfigurationError for a head that no pair teaches."""
    if heads and is_sharded():
        raise ConfigurationError("train_reward_model.heads are not learnt under FSDP: take ddp.yaml, or no heads")
    orders = [orders_of(pair, heads) for pair in pairs]
    for place, head in enumerate(heads):
        if not any(order[place] for order in orders):
            known = dict.fromkeys(name for pair in pairs for name in pair.chosen.trajectory.scores)
            raise ConfigurationError(
                f"train_reward_model.heads has {head}, and no pair of {PAIRS} differs in it: their episodes have "
                f"{', '.join(known) or 'no scores'}"
            )
    return orders


def _judge_heads(model: Any, codec: ChatCodec, held_out: Sequence[Pair], heads: Sequence[str]) -> dict[str, Any]:
    """How often each head has the held-out pairs in order that differ in its score."""
    orders_N_K = np.array([orders_of(pair, heads) for pair in held_out])
    chosen_N_K, rejected_N_K = (
        head_scores(model, [row.input_ids for row in token_rows([getattr(pair, side) for pair in held_out], codec)])
        for side in ("chosen", "rejected")
    )
    found = {}
    for place, head in enumerate(heads):
        told = np.flatnonzero(orders_N_K[:, place]).tolist()
        margins = (orders_N_K * (chosen_N_K - rejected_N_K))[told, place].tolist()
        low, high = accuracy_interval(margins, [held_out[one].chosen.trajectory.task_id for one in told])
        figures = {"accuracy": pair_accuracy(margins), "accuracy_low": low, "accuracy_high": high}
        found[head] = {"num_pairs": len(told), **(figures if margins else {})}
    return {"heads": found}


def _bootstrap(pairs: Sequence[Pair], number: int, *, seed: int) -> list[int]:
    """Places of the pairs of as many tasks as there are, drawn with replacement."""
    by_task: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        by_task.setdefault(pair.chosen.trajectory.task_id, []).append(place)
    tasks = list(by_task)
    drawn = np.random.default_rng([seed, number]).integers(len(tasks), size=len(tasks))
    return [place for task in drawn for place in by_task[tasks[task]]]


def _draw(tasks: Sequence[str], frac: float, *, seed: int) -> set[str]:
    """Draw tasks, with all their episodes, so that none of a task that is judged is trained on."""
    drawn = np.random.default_rng(seed).permutation(len(tasks))[: round(frac * len(tasks))]
    return {tasks[index] for index in drawn}


def _judge(
    models: RewardModels,
    codec: ChatCodec,
    seen: Sequence[Pair],
    held_out: Sequence[Pair],
    held_out_groups: Sequence[list[TrajectoryRow]],
) -> dict[str, Any]:
    rows = {row.trajectory_id: row for group in held_out_groups for row in group}
    rows |= {row.trajectory_id: row for pair in held_out for row in (pair.chosen, pair.rejected)}
    ids = [row.input_ids for row in token_rows(list(rows.values()), codec)]
    score_of = dict(zip(rows, models.score(ids).tolist(), strict=True))
    margins = [score_of[pair.chosen.trajectory_id] - score_of[pair.rejected.trajectory_id] for pair in held_out]
    tasks = [pair.chosen.trajectory.task_id for pair in held_out]
    bins = reliability([models.unit * margin for margin in margins])  # logits are what predicts a winner
    interval = accuracy_interval(margins, tasks)
    rows |= {row.trajectory_id: row for pair in seen for row in (pair.chosen, pair.rejected)}
    encoded = token_rows(list(rows.values()), codec)
    num_tokens = {name: len(row.input_ids) for name, row in zip(rows, encoded, strict=True)}

    def by_count(count: Callable[[TrajectoryRow], int]) -> float:
        differences = ([float(count(one.chosen) - count(one.rejected)) for one in side] for side in (seen, held_out))
        return counting_accuracy(*differences)

    scores_P_K = [[score_of[row.trajectory_id] for row in group] for group in held_out_groups]
    success_P_K = [[row.trajectory.is_success for row in group] for group in held_out_groups]
    return {
        "num_pairs": len(seen),
        "num_held_out_pairs": len(held_out),
        "accuracy": pair_accuracy(margins),
        "accuracy_low": interval[0],
        "accuracy_high": interval[1],
        "accuracy_by_length": by_count(lambda row: num_tokens[row.trajectory_id]),
        "accuracy_by_turns": by_count(lambda row: sum(one.role == "assistant" for one in row.trajectory.messages)),
        "calibration_error": expected_calibration_error(bins),
        "reliability": [dataclasses.asdict(found) for found in bins],
        "reward_bench": reward_bench(scores_P_K, success_P_K),
        **{
            f"best_of_{num}": best_of(scores_P_K, success_P_K, num_samples=num)
            for num in NUM_CHOICES
            if any(len(group) >= num for group in held_out_groups)
        },
    }


if __name__ == "__main__":
    run_stage(train_reward_model, is_launchable=True)
