"""Rules about episodes that must not see each other: replayed, interleaved and regenerated ones,
and what stays open behind them."""

import gc
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from posttrain.types import Message, Task, Trajectory
from posttrain.world_check.episodes import TaskEpisodes, planned_call_of_every_tool, planned_expert
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import EmptyPolicy, PlannedEpisode, ReplayPolicy, play
from posttrain.world_check.recorder import RecordedDomain, Recorder
from posttrain.world_check.tasks import TasksBySplit
from posttrain.worlds.protocol import Domain, ExpertDomain, RegeneratingDomain

NUM_PROBES = 4  # tasks that are played again
NUM_AT_ONCE = 8
NUM_SEEDS = 4  # of regenerated tasks, one of which must have another text
WAIT_S = 3.0  # for what ends by itself after close


@dataclass(frozen=True, slots=True)
class Probe:
    """A task with two planned episodes: the expert's (without one, a call of every tool) and
    another."""

    task: Task
    mine: PlannedEpisode
    other: PlannedEpisode


def probes(domain: Domain, tasks: TasksBySplit, episodes: Sequence[TaskEpisodes], recorder: Recorder) -> list[Probe]:
    """The first task of each split, where it can be played."""
    firsts = [own[0].task_id for own in tasks.values() if own][:NUM_PROBES]
    found = []
    for one in episodes:
        if one.task.task_id in firsts and not any(trajectory.is_aborted for trajectory in one.all()):
            firsts.remove(one.task.task_id)
            calls = planned_call_of_every_tool(one.task, recorder)
            if isinstance(domain, ExpertDomain):
                found.append(Probe(one.task, planned_expert(domain, one.task, recorder), calls))
            else:
                found.append(Probe(one.task, calls, PlannedEpisode(one.task, EmptyPolicy)))
    return found


# Rule: episodes are independent


def same_when_replayed(domain: Domain, probed: Sequence[Probe]) -> None:
    """Alone and once more, with another policy's episode before."""
    for probe in _some(probed):
        first = play(domain, [probe.mine])[0]
        play(domain, [probe.other])
        _compare(probe.task, first, play(domain, [probe.mine])[0], "replayed")


def same_when_interleaved(domain: Domain, probed: Sequence[Probe]) -> None:
    """Turn by turn beside another policy's episode of the same task, and eight times at once."""
    for probe in _some(probed):
        alone = play(domain, [probe.mine])[0]
        first, _, second = play(domain, [probe.mine, probe.other, probe.mine])
        _compare(probe.task, alone, first, "played beside another episode of it")
        _compare(probe.task, alone, second, "played beside another episode of it")
        for one in play(domain, [probe.mine] * NUM_AT_ONCE):
            _compare(probe.task, alone, one, f"played {NUM_AT_ONCE} times at once")


# Rule: regenerated tasks


def regenerated_tasks_are_alike(domain: Domain, tasks: Sequence[Task], recorder: Recorder) -> None:
    """Equal labels, template and split, another text, equal for equal seeds, and as solvable."""
    if not isinstance(domain, RegeneratingDomain):
        raise NotTried("the world has no regenerate")
    made = [_regenerated(domain, task) for task in tasks]
    if isinstance(domain, ExpertDomain):
        recorded = RecordedDomain(domain, recorder)
        played = play(recorded, [planned_expert(domain, task, recorder) for task in made])
        for task, gold in zip(made, played, strict=True):
            if not gold.is_strict_success:
                raise Broken(
                    f"{task.task_id}, which was regenerated, is not solved by a flawless episode ({_verdict(gold)}); "
                    "draw only what can be answered"
                )


def _regenerated(domain: RegeneratingDomain, task: Task) -> Task:
    made = [domain.regenerate(task, seed=seed) for seed in range(NUM_SEEDS)]
    for one in made:
        for name in ("labels", "template", "split"):
            given, wanted = getattr(one, name), getattr(task, name)
            if given != wanted:
                raise Broken(f"{task.task_id} regenerated has the {name} {given!r} and not {wanted!r}; keep it")
    if all(one.messages == task.messages for one in made):
        raise Broken(f"{task.task_id} regenerated says the same for {NUM_SEEDS} seeds; draw other entities by seed")
    if domain.regenerate(task, seed=0) != made[0]:
        raise Broken(f"{task.task_id} regenerated twice with one seed is two tasks; draw from task and seed alone")
    return made[0]


# Rule: close releases everything


def close_ends_quietly(domain: Domain, tasks: Sequence[Task], recorder: Recorder) -> None:
    """After every episode so far, and of a world in which nothing was done."""
    if "close" not in recorder.has:
        raise NotTried("the world has no close")
    play(RecordedDomain(domain, recorder), [PlannedEpisode(task, lambda: ReplayPolicy([])) for task in tasks[:1]])
    if problem := recorder.first("close"):
        raise Broken(f"close of {problem.task_id} {problem.text}; let it end quietly, also where nothing was opened")


def nothing_stays_open(domain: Domain, probed: Sequence[Probe]) -> None:
    """Counts what is open before and after eight episodes; earlier ones have warmed up every cache.
    A file or thread more may be a library's own; one for every other episode is not."""
    probe = _some(probed)[0]
    before = _open()
    play(domain, [probe.mine] * NUM_AT_ONCE)
    end = time.monotonic() + WAIT_S
    while (left := _more(before, _open())) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    if left:
        kind, number = next(iter(left.items()))
        raise Broken(
            f"{NUM_AT_ONCE} episodes of {probe.task.task_id} left {number} {kind} open; "
            "end them in the world's `async def close`"
        )


def _open() -> dict[str, int]:
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "threads": threading.active_count(),
        "sockets": len(process.net_connections(kind="all")),
        "files": process.num_fds() if hasattr(process, "num_fds") else 0,
    }


def _more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {kind: after[kind] - before[kind] for kind in before if after[kind] - before[kind] >= NUM_AT_ONCE // 2}


def _some(probed: Sequence[Probe]) -> Sequence[Probe]:
    if not probed:
        raise NotTried("no episode could be played")
    return probed


def _compare(task: Task, expected: Trajectory, found: Trajectory, how: str) -> None:
    if expected == found:
        return
    pairs = zip(expected.messages, found.messages, strict=False)
    differing = [(_words(one), _words(other)) for one, other in pairs if one != other]
    before, after = differing[0] if differing else (_verdict(expected), _verdict(found))
    raise Broken(
        f"{task.task_id} {how} is another episode ({before!r} became {after!r}); keep an episode's state in the world "
        "that open() makes, and draw from the task alone"
    )


def _words(message: Message) -> str:
    return (message.content or " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls))[:60]


def _verdict(trajectory: Trajectory) -> str:
    if trajectory.outcome is None:
        return trajectory.failure[:80]
    scores = ", ".join(f"{name} {value:g}" for name, value in trajectory.outcome.scores.items())
    return f"{trajectory.outcome.failure or 'success'} of {len(trajectory.messages)} messages ({scores})"
