"""What must hold of a task that is played again, between others and several times at once, and of
one that is asked anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from posttrain.types import Message, Task, Trajectory
from posttrain.world_check.episodes import Played
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import Part, every_other_tool, expert_part, play, recital, silent
from posttrain.world_check.recorder import Recorder, WatchedDomain
from posttrain.world_check.tasks import TasksBySplit
from posttrain.worlds.protocol import Domain, ExpertDomain, RealisingDomain
from posttrain.worlds.scripts import say

NUM_PROBES = 4  # tasks that are played alone, again, between others and several times at once
NUM_AT_ONCE = 8
NUM_ANEW = 4  # seeds, one of which must give another text


@dataclass(frozen=True, slots=True)
class Probe:
    """One task, and who plays it: the expert, or where there is none who calls every tool; and
    somebody else."""

    task: Task
    mine: Part
    other: Part


def probes(domain: Domain, tasks: TasksBySplit, plays: Sequence[Played], watch: Recorder) -> list[Probe]:
    """A task of each of the first splits that can be played."""
    firsts = [own[0].task_id for own in tasks.values() if own][:NUM_PROBES]
    found = []
    for one in plays:
        if one.task.task_id in firsts and not any(play.is_aborted for play in one.all()):
            firsts.remove(one.task.task_id)
            calls = recital(one.task, [*every_other_tool(one.task, [], watch.offered), say("")])
            mine = expert_part(domain, one.task, watch) if isinstance(domain, ExpertDomain) else calls
            found.append(Probe(one.task, mine, calls if mine is not calls else silent(one.task)))
    return found


def same_when_played_again(domain: Domain, probed: Sequence[Probe]) -> None:
    """Alone, twice, and somebody else between."""
    for probe in _some(probed):
        first, _, second = chain(*(play(domain, [part]) for part in (probe.mine, probe.other, probe.mine)))
        _compare(probe.task, first, second, "played again")


def same_between_others(domain: Domain, probed: Sequence[Probe]) -> None:
    """With somebody else's episode of the same task turn by turn beside it."""
    for probe in _some(probed):
        alone = play(domain, [probe.mine])[0]
        first, _, second = play(domain, [probe.mine, probe.other, probe.mine])
        _compare(probe.task, alone, first, "played beside another episode of it")
        _compare(probe.task, alone, second, "played beside another episode of it")


def same_several_at_once(domain: Domain, probed: Sequence[Probe]) -> None:
    for probe in _some(probed):
        alone = play(domain, [probe.mine])[0]
        for one in play(domain, [probe.mine] * NUM_AT_ONCE):
            _compare(probe.task, alone, one, f"played {NUM_AT_ONCE} times at once")


# Rules about tasks that are asked anew


def asked_anew(domain: Domain, tasks: Sequence[Task], watch: Recorder) -> None:
    """Equal labels, template and split, other words, equal for an equal seed, and as solvable."""
    if not isinstance(domain, RealisingDomain):
        raise NotTried("the world has no realise_anew")
    made = [_anew(domain, task) for task in tasks]
    if isinstance(domain, ExpertDomain):
        watched = WatchedDomain(domain, watch)
        for task, gold in zip(made, play(watched, [expert_part(domain, task, watch) for task in made]), strict=True):
            if not gold.is_strict_success:
                raise Broken(
                    f"{task.task_id}, which was asked anew, is not solved by a flawless play ({_verdict(gold)}); "
                    "draw only what can be answered"
                )


def _anew(domain: RealisingDomain, task: Task) -> Task:
    anew = [domain.realise_anew(task, seed=seed) for seed in range(NUM_ANEW)]
    for one in anew:
        for name in ("labels", "template", "split"):
            if getattr(one, name) != getattr(task, name):
                raise Broken(
                    f"{task.task_id} asked anew has the {name} {getattr(one, name)!r} and not "
                    f"{getattr(task, name)!r}; keep it"
                )
    if all(one.messages == task.messages for one in anew):
        raise Broken(f"{task.task_id} asked anew says the same for {NUM_ANEW} seeds; draw other entities by seed")
    if domain.realise_anew(task, seed=0) != anew[0]:
        raise Broken(f"{task.task_id} asked anew twice with one seed is two tasks; draw from task and seed alone")
    return anew[0]


def _some(probed: Sequence[Probe]) -> Sequence[Probe]:
    if not probed:
        raise NotTried("no episode could be played")
    return probed


def _compare(task: Task, expected: Trajectory, found: Trajectory, how: str) -> None:
    if expected == found:
        return
    pairs = zip(expected.messages, found.messages, strict=False)
    differing = [(one, other) for one, other in pairs if one != other]
    what = (
        f"{_words(differing[0][0])!r} became {_words(differing[0][1])!r}" if differing
        else f"{_verdict(expected)} became {_verdict(found)}"
    )  # fmt: skip
    raise Broken(
        f"{task.task_id} {how} is another episode ({what}); keep an episode's state in the world that open() makes, "
        "and draw from the task alone"
    )


def _words(message: Message) -> str:
    return (message.content or " ".join(f"{call.name}({call.arguments})" for call in message.tool_calls))[:60]


def _verdict(trajectory: Trajectory) -> str:
    if trajectory.outcome is None:
        return trajectory.failure[:80]
    given = ", ".join(f"{name} {value:g}" for name, value in trajectory.outcome.scores.items())
    return f"{trajectory.outcome.failure or 'success'} of {len(trajectory.messages)} messages ({given})"
