"""Measures playing on from recorded episodes: `python -m benchmarks.play_on`.

Of episodes that the model has played greedily: whether each is the same again from every turn, with
0 tokens generated before it; and tokens a second of 1,000 branches off 50 prefixes, beside those of
whole episodes with as many new tokens.
"""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.cli.traces import recorded_settings
from posttrain.debug.player import Player, model_player
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork
from posttrain.rollout.policy import Policy
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read
from posttrain.types import Trajectory
from posttrain.worlds.catalog import make_domain


class Counting:
    """A policy that counts the tokens that another one writes, into `num_written`."""

    num_written = 0

    def __init__(self, policy: Policy) -> None:
        self._policy, self.release = policy, policy.release

    async def reply(self, episode: Episode) -> Reply:
        reply = await self._policy.reply(episode)
        Counting.num_written += len(reply.token_ids)
        return reply


def same_again(player: Player, episodes: Sequence[Trajectory], tasks: Sequence[Any]) -> dict[str, Any]:
    """Every episode from every one of its turns, greedily."""
    most = max(len(one.turns) for one in episodes)
    num_same = num_forks = num_differences = num_generated = num_dropped = 0
    for at in range(1, most + 1):
        forks = [Fork(task, one, at) for task, one in zip(tasks, episodes, strict=True) if len(one.turns) >= at]
        before = Counting.num_written
        branches = player.branches(forks, temperature=0.0)
        num_generated += Counting.num_written - before
        num_dropped += sum(turn.num_written for fork in forks for turn in fork.trajectory.turns[at - 1 :])
        num_forks += len(forks)
        num_differences += sum(len(branch.differences) for branch in branches)
        num_same += sum(
            (branch.trajectory.token_ids, branch.trajectory.messages)
            == (tuple(branch.fork.trajectory.token_ids), branch.fork.trajectory.messages)
            for branch in branches
        )
    return {
        "episodes": len(episodes),
        "forks": num_forks,
        "same": num_same,
        "differences": num_differences,
        "generated": num_generated,
        "dropped": num_dropped,
    }


def branching(player: Player, episodes: Sequence[Trajectory], tasks: Sequence[Any], *, num: int) -> dict[str, float]:
    """Tokens a second of `num` branches at turn 2 of each episode, and of whole sampled episodes
    with as many new tokens; peak memory of the process in MiB."""
    forks = [Fork(task, one, 2, num=num, seed=1) for task, one in zip(tasks, episodes, strict=True)]
    rates = {}
    for name in ("branches", "fresh"):
        before, start = Counting.num_written, time.perf_counter()
        if name == "branches":
            branches = player.branches(forks)
            wanted = Counting.num_written - before
        else:
            plays = [fork.task for fork in forks for _ in range(num)]
            while Counting.num_written - before < wanted:
                run_episodes(
                    player.policy_at(1.0), plays, domain=player.domain, limits=player.limits, seeds=range(len(plays))
                )
        rates[name] = (Counting.num_written - before) / (time.perf_counter() - start)
    return {
        "num_branches": len(branches),
        "new_tokens": wanted,
        "branches_per_s": rates["branches"],
        "fresh_per_s": rates["fresh"],
        "ratio": rates["branches"] / rates["fresh"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.play_on", description=__doc__)
    parser.add_argument("--store", type=Path, default=Path(".posttrain/traces.db"))
    parser.add_argument("--model", type=Path, default=Path("data/models/sft"))
    parser.add_argument("--stage", default="evaluate@sft")
    parser.add_argument("--num", type=int, default=200, help="episodes that are played on from every turn")
    given = parser.parse_args()
    with closing(open_to_read(given.store)) as connection:
        found = matching(connection, EpisodeFilter(stage=given.stage, part="greedy"), limit=given.num)
        episodes = list(read_episodes(connection, found))
    world, agent = recorded_settings(episodes[0].run, None)
    loaded = model_player(given.model, make_domain(world), agent)
    player = replace(loaded, policy_at=lambda temperature: Counting(loaded.policy_at(temperature)))
    trajectories, tasks = [one.traced.trajectory for one in episodes], [one.traced.task for one in episodes]
    print(json.dumps(same_again(player, trajectories, tasks), indent=1))
    longer = [index for index, one in enumerate(trajectories) if len(one.turns) >= 3][:50]
    print(
        json.dumps(branching(player, [trajectories[i] for i in longer], [tasks[i] for i in longer], num=20), indent=1)
    )


if __name__ == "__main__":
    main()
