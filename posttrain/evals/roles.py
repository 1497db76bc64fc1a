"""Figures by role of episodes that two policies play (`agent.worker`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.types import PLANNER, WORKER, Trajectory


def tokens_by_role(trajectory: Trajectory) -> Mapping[str, int]:
    """Tokens that each role wrote; 0 where nobody counted them (an expert, an endpoint)."""
    of_worker = [turn.num_written for one in trajectory.delegated for turn in one.turns]
    return {PLANNER: sum(turn.num_written for turn in trajectory.turns), WORKER: sum(of_worker)}


def role_summary(episodes: Sequence[Trajectory], worker_failures: Sequence[str]) -> dict[str, Any]:
    """Per episode: tokens and messages of each role, and delegations. `failed_by_worker`: the share
    of the failures whose class is one of `worker_failures`; null without a failure."""
    failures = [one.outcome.failure for one in episodes if one.outcome is not None and not one.is_success]
    num, num_turns = max(len(episodes), 1), {PLANNER: 0, WORKER: 0}
    for one in episodes:
        num_turns[PLANNER] += len(one.turns)
        num_turns[WORKER] += sum(len(own.turns) for own in one.delegated)
    tokens = {role: sum(tokens_by_role(one)[role] for one in episodes) for role in num_turns}
    return {
        **{role: {"tokens": round(tokens[role] / num, 3), "turns": round(num_turns[role] / num, 3)} for role in tokens},
        "delegations": round(sum(len(one.delegated) for one in episodes) / num, 3),
        "failures": len(failures),
        "failed_by_worker": round(sum(one in worker_failures for one in failures) / len(failures), 6)
        if failures
        else None,
    }
