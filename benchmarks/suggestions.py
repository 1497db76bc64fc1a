"""Measures suggestions of the turn to edit: `python -m benchmarks.suggestions [--num 300]`.

Of failed episodes whose flawed turn the world's expert knows: how often the suggested turn is that
one, and how often the expert's message there flips the failure, played on greedily by the policy;
beside the first and the last turn with a call.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.cli.traces import read_stored, recorded_settings
from posttrain.debug.player import Player, model_player
from posttrain.debug.suggest import expert_edits, num_plays, suggest
from posttrain.evals.significance import share_interval
from posttrain.rollout.params import AgentParams
from posttrain.rollout.play_on import Fork
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read
from posttrain.types import Trajectory
from posttrain.worlds.catalog import make_domain, require_expert
from posttrain.worlds.protocol import Domain


def failures(store: Path, stage: str, num: int) -> tuple[list[Fork], Domain, AgentParams]:
    """The last failed episodes of the newest run, one of a task, each with the expert's message at
    its flawed turn."""
    with closing(open_to_read(store)) as connection:
        [newest] = matching(connection, EpisodeFilter(stage=stage, is_failed=True), limit=1)
        run = read_stored(connection, newest).run
        world, agent = recorded_settings(run, None)
        domain = require_expert(make_domain(world), needed_by="the flawed turn")
        ids = matching(connection, EpisodeFilter(stage=stage, is_failed=True))
        of_run = (one.traced for one in read_episodes(connection, ids) if one.run.uid == run.uid)
        return list(islice(expert_edits(of_run, domain), num)), domain, agent


def calls(episode: Trajectory) -> list[int]:
    """The turns, from 1, in which the agent made a call; its last turn where it made none."""
    messages = episode.turn_messages
    return [number for number, one in enumerate(messages, 1) if one and one.tool_calls] or [len(messages)]


def flips(player: Player, cases: Sequence[Fork], turns: Sequence[int]) -> int:
    """Failures that the expert's message flips where the turn is the flawed one: at another turn a
    right message is not known, and nothing is counted."""
    forks = [case for case, turn in zip(cases, turns, strict=True) if turn == case.at]
    return sum(one.is_success for one in player.branches(forks, temperature=0.0)) if forks else 0


def measure(player: Player, cases: Sequence[Fork], *, nums: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """A row for each way to choose a turn."""
    episodes = [case.trajectory for case in cases]
    ways: dict[str, tuple[list[int], int]] = {
        "the flawed turn": ([case.at for case in cases], 0),
        "the first call": ([calls(one)[0] for one in episodes], 0),
        "the last call": ([calls(one)[-1] for one in episodes], 0),
    }
    for num in nums:
        found = suggest([case.task for case in cases], episodes, player, num=num, seed=seed)
        ways[f"{num} plays from each turn"] = ([one.turn for one in found], num_plays(episodes, num))
    rows = []
    for name, (turns, plays) in ways.items():
        hits = sum(turn == case.at for turn, case in zip(turns, cases, strict=True))
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
    cases, domain, agent = failures(given.store, given.stage, given.num)
    player = model_player(given.model, domain, agent)
    print(f"{len(cases)} failed episodes, {sum(len(case.trajectory.turns) for case in cases)} turns")
    for row in measure(player, cases, nums=given.plays, seed=given.seed):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
