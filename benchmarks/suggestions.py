"""Measures suggestions of the turn to edit: `python -m benchmarks.suggestions [--num 300]`.

Of failed episodes whose flawed turn the world's expert knows: how often the suggested turn is that
one, and how often the expert's message there flips the failure, played on greedily by the policy;
beside the first and the last turn with a call.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from posttrain.cli.traces import recorded_settings
from posttrain.debug.player import Player, model_player
from posttrain.debug.suggest import first_deviation, num_plays, suggest
from posttrain.evals.significance import share_interval
from posttrain.rollout.play_on import Fork
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.catalog import make_domain, require_expert

Failure = tuple[Task, Trajectory, int, Message]  # the flawed turn, and the expert's message there


def failures(store: Path, stage: str, num: int) -> tuple[list[Failure], Any]:
    """The last failed episodes with a flawed turn, one of a task, and the settings of their run."""
    found: dict[str, Failure] = {}
    with closing(open_to_read(store)) as connection:
        ids = matching(connection, EpisodeFilter(stage=stage, is_failed=True))
        for one in read_episodes(connection, ids):
            task, episode = one.traced.task, one.traced.trajectory
            run = one.run
            if task.task_id in found or episode.is_aborted:
                continue
            domain = require_expert(_domain(run), needed_by="the flawed turn")
            if deviation := first_deviation(domain, task, episode):
                found[task.task_id] = (task, episode, *deviation)
            if len(found) == num:
                break
    return list(found.values()), run


_DOMAINS: dict[str, Any] = {}


def _domain(run: Any) -> Any:
    if run.uid not in _DOMAINS:
        _DOMAINS[run.uid] = make_domain(recorded_settings(run, None)[0])
    return _DOMAINS[run.uid]


def calls(episode: Trajectory) -> list[int]:
    """The turns, from 1, in which the agent made a call; its only turn where it made none."""
    places = [turn.message_index for turn in episode.turns]
    found = [n for n, place in enumerate(places, 1) if place is not None and episode.messages[place].tool_calls]
    return found or [len(places)]


def flips(player: Player, cases: Sequence[Failure], turns: Sequence[int]) -> int:
    """Failures that the expert's message flips where the turn is the flawed one: at another turn a
    right message is not known, and nothing is counted."""
    forks = [
        Fork(task, episode, turn, message=message)
        for (task, episode, flawed, message), turn in zip(cases, turns, strict=True)
        if turn == flawed
    ]
    return sum(one.is_success for one in player.branches(forks, temperature=0.0)) if forks else 0


def measure(player: Player, cases: Sequence[Failure], *, nums: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """A row for each way to choose a turn."""
    episodes = [episode for _, episode, _, _ in cases]
    ways: dict[str, tuple[list[int], int]] = {
        "the flawed turn": ([flawed for _, _, flawed, _ in cases], 0),
        "the first call": ([calls(one)[0] for one in episodes], 0),
        "the last call": ([calls(one)[-1] for one in episodes], 0),
    }
    for num in nums:
        found = suggest([task for task, *_ in cases], episodes, player, num=num, seed=seed)
        ways[f"{num} plays from each turn"] = ([one.turn for one in found], num_plays(episodes, num))
    rows = []
    for name, (turns, plays) in ways.items():
        hits = sum(turn == flawed for turn, (_, _, flawed, _) in zip(turns, cases, strict=True))
        flipped = flips(player, cases, turns)
        rows.append(
            {
                "turn": name,
                "hit": [round(share, 3) for share in (hits / len(cases), *share_interval(hits, len(cases)))],
                "flipped": [round(share, 3) for share in (flipped / len(cases), *share_interval(flipped, len(cases)))],
                "plays": plays,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.suggestions", description=__doc__)
    parser.add_argument("--store", type=Path, default=Path(".posttrain/traces.db"))
    parser.add_argument("--model", type=Path, default=Path("data/models/sft"))
    parser.add_argument("--stage", default="evaluate@sft")
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plays", type=int, nargs="*", default=[4, 8, 16])
    given = parser.parse_args()
    cases, run = failures(given.store, given.stage, given.num)
    world, agent = recorded_settings(run, None)
    player = model_player(given.model, make_domain(world), agent)
    print(f"{len(cases)} failed episodes, {sum(len(one.turns) for _, one, _, _ in cases)} turns")
    for row in measure(player, cases, nums=given.plays, seed=given.seed):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
