"""Plays a world's tasks with every policy, so that the rules have episodes to judge."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from posttrain.rewards.total import RuleReward
from posttrain.types import Task, Trajectory
from posttrain.world_check.policies import (
    EmptyPolicy,
    ExpertPolicy,
    PlannedEpisode,
    ReplayPolicy,
    adversaries,
    calls_of_other_tools,
    play,
)
from posttrain.world_check.recorder import RecordedDomain, Recorder
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Domain, ExpertDomain
from posttrain.worlds.scripts import say


@dataclass(frozen=True, slots=True)
class TaskEpisodes:
    """The scored episodes of one task. `gold` is the flawless expert's and `flawed` the other's,
    None where the world has no expert; `others` has the adversaries' by name, and where no expert
    played an episode that calls every tool."""

    task: Task
    gold: Trajectory | None
    empty: Trajectory
    flawed: Trajectory | None
    others: Mapping[str, Trajectory]

    def all(self) -> Iterator[Trajectory]:
        yield from (one for one in (self.gold, self.empty, self.flawed) if one is not None)
        yield from self.others.values()


def planned_expert(domain: ExpertDomain, task: Task, recorder: Recorder, *, is_flawless: bool = True) -> PlannedEpisode:
    return PlannedEpisode(task, partial(ExpertPolicy, domain, task, recorder, is_flawless=is_flawless))


def planned_call_of_every_tool(task: Task, recorder: Recorder) -> PlannedEpisode:
    calls = calls_of_other_tools(task, [], recorder.offered)
    return PlannedEpisode(task, partial(ReplayPolicy, [*calls, say("")]))


def play_gold(domain: Domain, tasks: Sequence[Task], recorder: Recorder) -> list[Trajectory]:
    """A flawless episode of each task; none where the world has no expert."""
    if not isinstance(domain, ExpertDomain):
        return []
    return play(RecordedDomain(domain, recorder), [planned_expert(domain, task, recorder) for task in tasks])


def play_others(
    domain: Domain, tasks: Sequence[Task], gold: Sequence[Trajectory], recorder: Recorder, rule: RuleReward
) -> list[TaskEpisodes]:
    """The other policies' episodes of the same tasks, all scored by `rule`."""
    planned: dict[tuple[str, int], PlannedEpisode] = {}
    for index, task in enumerate(tasks):
        planned["empty", index] = PlannedEpisode(task, EmptyPolicy)
        if isinstance(domain, ExpertDomain):
            planned["flawed", index] = planned_expert(domain, task, recorder, is_flawless=False)
        written = [message for _, message in agent_messages(gold[index])] if gold and not gold[index].is_aborted else []
        if not written:
            planned["calls every tool", index] = planned_call_of_every_tool(task, recorder)
            continue
        for name, messages in adversaries(task, written, recorder.offered).items():
            planned[name, index] = PlannedEpisode(task, partial(ReplayPolicy, messages))
    trajectories = play(RecordedDomain(domain, recorder), list(planned.values()))
    scored = {key: rule.score(one, plan.task) for (key, plan), one in zip(planned.items(), trajectories, strict=True)}
    return [
        TaskEpisodes(
            task,
            rule.score(gold[index], task) if gold else None,
            scored["empty", index],
            scored.get(("flawed", index)),
            {name: one for (name, at), one in scored.items() if at == index and name not in ("empty", "flawed")},
        )
        for index, task in enumerate(tasks)
    ]
