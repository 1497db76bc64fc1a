"""Who plays which tasks, so that the rules have something to judge."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from posttrain.rewards.total import RuleReward
from posttrain.types import Task, Trajectory
from posttrain.world_check.policies import (
    ADVERSARIES,
    Part,
    every_other_tool,
    expert_part,
    gold_lines,
    play,
    recital,
    silent,
)
from posttrain.world_check.recorder import Recorder, WatchedDomain
from posttrain.worlds.protocol import Domain, ExpertDomain
from posttrain.worlds.scripts import say


@dataclass(frozen=True, slots=True)
class Played:
    """The plays of one task, scored. `gold` is None where the world has no expert; `others` has the
    adversaries' by name, and where there is no gold a call of every tool."""

    task: Task
    gold: Trajectory | None
    empty: Trajectory
    flawed: Trajectory | None
    others: Mapping[str, Trajectory]

    def all(self) -> Iterator[Trajectory]:
        yield from (one for one in (self.gold, self.empty, self.flawed) if one is not None)
        yield from self.others.values()


def gold_plays(domain: Domain, tasks: Sequence[Task], watch: Recorder) -> list[Trajectory]:
    """A flawless play of each task; none where the world has no expert."""
    if not isinstance(domain, ExpertDomain):
        return []
    return play(WatchedDomain(domain, watch), [expert_part(domain, task, watch) for task in tasks])


def other_plays(
    domain: Domain, tasks: Sequence[Task], gold: Sequence[Trajectory], watch: Recorder, rule: RuleReward
) -> list[Played]:
    """Everybody else's plays of the same tasks, all scored by `rule`."""
    parts: dict[tuple[str, int], Part] = {}
    for index, task in enumerate(tasks):
        parts["empty", index] = silent(task)
        if isinstance(domain, ExpertDomain):
            parts["flawed", index] = expert_part(domain, task, watch, is_flawless=False)
        lines = gold_lines(gold[index]) if gold and not gold[index].is_aborted else []
        if not lines:
            parts["who calls every tool", index] = recital(task, [*every_other_tool(task, [], watch.offered), say("")])
            continue
        for name, adversary in ADVERSARIES.items():
            if (said := adversary(task, lines, watch.offered)) is not None:
                parts[name, index] = recital(task, said)
    trajectories = play(WatchedDomain(domain, watch), list(parts.values()))
    scored = {key: rule.score(one, part.task) for (key, part), one in zip(parts.items(), trajectories, strict=True)}
    return [
        Played(
            task,
            rule.score(gold[index], task) if gold else None,
            scored["empty", index],
            scored.get(("flawed", index)),
            {name: one for (name, at), one in scored.items() if at == index and name not in ("empty", "flawed")},
        )
        for index, task in enumerate(tasks)
    ]  # fmt: skip
