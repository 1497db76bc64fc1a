"""Measures branch values: `python -m benchmarks.branch_values [--num 20]`.

The turns of episodes that the SFT model plays are played on from by few and by many branches, as
`credit: {type: branch_values}` does. Correlations over turns with the values of the many, and over
all turns with the advantages by these; tokens beside the episodes' own.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.config.params import load_params
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.episode_sampler import ScoredWorld, Stream, episode_seeds
from posttrain.rollout.generator import RolloutSchedule
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.credit import StepContext
from posttrain.train.advantages.groups import EpisodeGroup, FloatArray, TurnAdvantages
from posttrain.train.online.branches import play_branches
from posttrain.train.online.learning import PolicyEpisodes

GROUP_SIZE = 4


def credit_of(branches: int) -> BranchValueCredit:
    plain = {"type": "branch_values", "at": {"type": "turns"}, "scale": {"type": "none"}}
    return BranchValueCredit.model_validate({**plain, "branches": branches})


def flat(numbers: TurnAdvantages) -> FloatArray:
    return np.concatenate([own for of_group in numbers for own in of_group])


def correlation(one: FloatArray, other: FloatArray) -> float:
    return round(float(np.corrcoef(one, other)[0, 1]), 3)


def measure(
    world: ScoredWorld, model: Any, codec: ChatCodec, *, num: int, nums: Sequence[int], temperature: float, seed: int
) -> list[dict[str, Any]]:
    """A row for outcomes alone, and one for each number of branches; the last is the reference."""
    tasks = [task for task in world.domain.tasks("dev", num // GROUP_SIZE) for _ in range(GROUP_SIZE)]
    source = PolicyEpisodes(world.sampler(model, codec, temperature=temperature))
    played = source.run(tasks, episode_seeds(Stream.MEASUREMENT, seed, count=len(tasks)))
    groups = [
        EpisodeGroup(tasks[place], played[place : place + GROUP_SIZE]) for place in range(0, len(tasks), GROUP_SIZE)
    ]
    members, own_tokens = [one.group for one in groups], sum(sum(one.trajectory.mask) for one in played)
    rows, values, advantages = [], [], []
    with RolloutSchedule(source) as rollouts:
        # no branches at all: an episode's outcome for each of its turns
        unknown = [[np.full(len(turns), np.nan) for turns in one.turns_G] for one in members]
        for step, branches in enumerate([0, *nums]):
            rule, found = credit_of(max(branches, 1)), None
            if branches:
                found = play_branches(groups, rule, rollouts.play_on, entropies=None, seed=seed, step=step)
            context = StepContext(values=found.values if found else unknown)
            values.append(flat(context.values or []))
            advantages.append(flat(rule.turn_advantages(members, context)))
            rows.append({"branches": branches, "tokens": found.num_tokens if found else 0, "own_tokens": own_tokens})
    for row, own, credited in zip(rows, values, advantages, strict=True):
        is_known = np.isfinite(own) & np.isfinite(values[-1])
        row |= {"episodes": len(played), "turns": len(own), "points": int(is_known.sum())}
        row["values"] = correlation(own[is_known], values[-1][is_known]) if row["branches"] else None
        row["advantages"] = correlation(credited, advantages[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.branch_values", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("data/models/sft"))
    parser.add_argument("--num", type=int, default=20, help="episodes, in groups of 4")
    parser.add_argument("--branches", type=int, nargs="*", default=[1, 4, 64])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    params = load_params(Path("params.yaml"))
    world = ScoredWorld.of(params.world, params.reward, params.agent)
    model, codec = load_model(given.model).eval(), load_codec(given.model)
    knobs = {"num": given.num, "nums": given.branches, "temperature": given.temperature, "seed": given.seed}
    for row in measure(world, model, codec, **knobs):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
