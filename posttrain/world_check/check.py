"""Every rule of the contract, tried on one world: what is said of each, and what was measured."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from posttrain.rewards.total import RuleReward
from posttrain.types import Split
from posttrain.world_check.closing import close_holds, leaves_nothing
from posttrain.world_check.episodes import Played, gold_plays, other_plays
from posttrain.world_check.findings import Broken, Finding, NotTried, judged
from posttrain.world_check.graded import (
    earns_less,
    empty_is_no_success,
    failures_are_named,
    gold_earns_one,
    gold_is_strict,
    grade_gives_outcomes,
    no_failure_earns_as_much,
    nothing_fails,
    scores_are_given,
    somebody_speaks_first,
    tools_are_there,
    turns_have_a_score_each,
)
from posttrain.world_check.policies import ADVERSARIES
from posttrain.world_check.recorder import OPTIONAL_OF_WORLDS, Recorder, WatchedDomain
from posttrain.world_check.repeated import (
    asked_anew,
    probes,
    same_between_others,
    same_several_at_once,
    same_when_played_again,
)
from posttrain.world_check.tasks import (
    TasksBySplit,
    as_asked,
    entities_are_kept_apart,
    ids_are_unique,
    labels_are_texts,
    listed,
    longer_begins_with_shorter,
    same_again,
    same_elsewhere,
    schemas_are_openais,
)
from posttrain.worlds.knobs import WorldParams
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Domain, ExpertDomain, ExplainingDomain, RealisingDomain, ScoringDomain

OPTIONAL_OF_DOMAINS: Mapping[str, type] = {
    "expert": ExpertDomain,
    "realise_anew": RealisingDomain,
    "wanted": ExplainingDomain,
    "scores": ScoringDomain,
}


@dataclass(frozen=True, slots=True)
class Checked:
    """`has` says of each optional part whether the world has it; `facts` are medians in ms, and
    episodes a second of the flawless plays (of the empty ones where there is no expert); None where
    nothing was measured."""

    world: str
    num_tasks: Mapping[str, int]
    findings: tuple[Finding, ...]
    has: Mapping[str, bool]
    facts: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """No rule that was tried is broken."""
        return all(finding.state != "FAILED" for finding in self.findings)


def check_world(
    make: Callable[[], Domain], counts: Mapping[Split, int], rule: RuleReward, *, section: WorldParams | None
) -> Checked:
    """Try every rule on `counts[split]` tasks of each split. `make` makes the domain, twice;
    `section` is what another process makes it of, which is not tried where there is none."""
    domain = make()
    name = str(domain.name)
    try:
        tasks = listed(domain, counts)
    except Broken as broken:
        return Checked(name, {}, (Finding("tasks: every split gives its tasks", "FAILED", str(broken)),), {})
    findings = [judged("tasks: every split gives its tasks", lambda: as_asked(tasks, counts))]
    findings += _of_tasks(make, domain, tasks, counts, section)
    watch = Recorder()
    played, facts = _play(domain, tasks, rule, watch)
    findings += _of_plays(domain, tasks, played, watch)
    has = {part: isinstance(domain, protocol) for part, protocol in OPTIONAL_OF_DOMAINS.items()}
    has |= {part: part in watch.has for part in OPTIONAL_OF_WORLDS}
    return Checked(name, {split: len(own) for split, own in tasks.items()}, tuple(findings), has, facts)


def _of_tasks(
    make: Callable[[], Domain],
    domain: Domain,
    tasks: TasksBySplit,
    counts: Mapping[Split, int],
    section: WorldParams | None,
) -> list[Finding]:
    def elsewhere() -> None:
        if section is None:
            raise NotTried("no section says how another process makes the world")
        same_elsewhere(section, counts, tasks)

    return [
        judged("tasks: no id stands twice", lambda: ids_are_unique(tasks)),
        judged("tasks: labels are texts", lambda: labels_are_texts(tasks)),
        judged("tasks: a longer list begins with the shorter", lambda: longer_begins_with_shorter(domain, tasks)),
        judged("tasks: the same in a second domain", lambda: same_again(tasks, listed(make(), counts))),
        judged("tasks: the same in another process", elsewhere),
        judged("tasks: held-out ones share no entity with sft", lambda: entities_are_kept_apart(tasks)),
    ]


def _play(
    domain: Domain, tasks: TasksBySplit, rule: RuleReward, watch: Recorder
) -> tuple[list[Played], dict[str, float | None]]:
    every = list(chain(*tasks.values()))
    start = time.perf_counter()
    gold = gold_plays(domain, every, watch)
    gold_s = time.perf_counter() - start
    start = time.perf_counter()
    played = other_plays(domain, every, gold, watch, rule)
    other_s, num_others = time.perf_counter() - start, sum(len(list(one.all())) for one in played) - len(gold)
    runs = [run for one in played for play in one.all() for turn in play.turns for run in turn.tool_runs]
    lengths = [len(agent_messages(one)) for one in gold]
    return played, {
        "open_ms": _median_ms(watch.open_s),
        "call_ms": _median_ms([run.latency_s for run in runs]),
        "grade_ms": _median_ms(watch.grade_s),
        "episodes_per_s": len(gold) / gold_s if gold else num_others / other_s,
        "num_episodes": len(gold) + num_others,
        "max_gold_messages": max(lengths, default=None),
    }


def _of_plays(domain: Domain, tasks: TasksBySplit, played: list[Played], watch: Recorder) -> list[Finding]:
    every, quiet = list(chain(*tasks.values())), Recorder()
    probed = probes(domain, tasks, played, quiet)
    watched = WatchedDomain(domain, quiet)
    adversaries = [judged(f"adversary: {name} earns less", _earning(name, played)) for name in ADVERSARIES]
    return [
        judged("tasks: a user's word or an opening comes first", lambda: somebody_speaks_first(played)),
        judged("tools: what a task offers is there", lambda: tools_are_there(watch)),
        judged("tools: schemas are OpenAI's", lambda: schemas_are_openais({**watch.offered, **domain.tools})),
        judged("world: nothing but an agent's mistake fails", lambda: nothing_fails(watch, played)),
        judged("gold: a flawless play is a strict success", lambda: gold_is_strict(watch, played)),
        judged("gold: it earns 1", lambda: gold_earns_one(played)),
        judged("empty: saying nothing is no success", lambda: empty_is_no_success(played)),
        *adversaries,
        judged("adversary: no failure earns what a success does", lambda: no_failure_earns_as_much(played)),
        judged("outcome: grade gives one, scores in [0, 1]", lambda: grade_gives_outcomes(watch)),
        judged("outcome: a failure is named", lambda: failures_are_named(watch, played)),
        judged("outcome: the named scores are given", lambda: scores_are_given(domain, watch)),
        judged("outcome: turn_scores fit the turns", lambda: turns_have_a_score_each(watch)),
        judged("outcome: the same when played again", lambda: same_when_played_again(watched, probed)),
        judged("outcome: the same beside another episode", lambda: same_between_others(watched, probed)),
        judged("outcome: the same 8 times at once", lambda: same_several_at_once(watched, probed)),
        judged("realise_anew: equal labels, other words", lambda: asked_anew(domain, every, quiet)),
        judged("wanted: says a goal in a line", lambda: _goals_are_said(domain, tasks)),
        judged("close: ends quietly, also where nothing was begun", lambda: close_holds(domain, every, watch)),
        judged("close: nothing stays open", lambda: leaves_nothing(watched, probed[0].mine if probed else None)),
    ]


def _earning(name: str, played: list[Played]) -> Callable[[], None]:
    return lambda: earns_less(name, played)


def _goals_are_said(domain: Domain, tasks: TasksBySplit) -> None:
    if not isinstance(domain, ExplainingDomain):
        raise NotTried("the world has no wanted")
    for task in chain(*tasks.values()):
        said: Any = domain.wanted(task)
        if not isinstance(said, str) or not said.strip() or "\n" in said:
            raise Broken(f"wanted of {task.task_id} gives {said!r}; give a line of text for a reader")


def _median_ms(seconds: list[float]) -> float | None:
    return statistics.median(seconds) * 1000 if seconds else None
