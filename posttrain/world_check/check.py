"""Tries every rule of the contract on one world: a finding for each, and what was measured."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from posttrain.rewards.total import RuleReward
from posttrain.types import Split, Task
from posttrain.world_check import isolation, outcomes
from posttrain.world_check import tasks as of_tasks
from posttrain.world_check.findings import Broken, Check, Finding, judged, raised
from posttrain.world_check.policies import OF_STAFF, REMEDIES, TaskEpisodes, play_all
from posttrain.world_check.tasks import TasksBySplit, list_tasks
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import (
    ClosableWorld,
    Domain,
    EndingWorld,
    ExpertDomain,
    GoalDomain,
    OpeningWorld,
    RegeneratingDomain,
    ScoringDomain,
    StaffedDomain,
    World,
)

OPTIONAL_OF_DOMAINS: Mapping[str, type] = {
    "expert": ExpertDomain,
    "regenerate": RegeneratingDomain,
    "describe_goal": GoalDomain,
    "scores": ScoringDomain,
}
OPTIONAL_OF_WORLDS: Mapping[str, type] = {"opening": OpeningWorld, "is_over": EndingWorld, "close": ClosableWorld}
COMPLETE = "tasks: every split is complete, with unique ids, text labels and a goal in a line"
RAISES = "episodes: a user's message comes first, and nothing but ToolError is raised"


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings about one world. `has` tells for each optional part whether the world has it;
    `facts` are the number of episodes, how many a second, and the most messages of the expert's in
    one (`agent.max_turns`; None without an expert)."""

    world: str
    num_tasks: Mapping[str, int]
    findings: tuple[Finding, ...]
    has: Mapping[str, bool] = field(default_factory=dict)
    facts: Mapping[str, float | None] = field(default_factory=dict)


def check_world(
    make: Callable[[], Domain], counts: Mapping[Split, int], rule: RuleReward, *, section: WorldParams | None
) -> Checked:
    """Tries every rule on `counts[split]` tasks of each split; those about episodes not where the
    world raises in one. `make` makes the domain, twice; another process makes it of `section`,
    which is not tried where that is None."""
    domain = make()
    name = str(domain.name)
    try:
        tasks = list_tasks(domain, counts)
    except Broken as broken:
        return Checked(name, {}, (Finding(COMPLETE, "FAILED", str(broken)),))
    rules = {
        **_rules_of_tasks(domain, tasks, counts),
        "tasks: the same in every list, domain and process": (
            lambda: of_tasks.longer_list_begins_with_shorter(domain, tasks),
            lambda: of_tasks.same_in_second_domain(tasks, list_tasks(make(), counts)),
            lambda: of_tasks.same_in_other_process(section, counts, tasks),
        ),
    }
    findings = [judged(*one) for one in rules.items()]
    has = {part: isinstance(domain, protocol) for part, protocol in OPTIONAL_OF_DOMAINS.items()}
    start, facts = time.perf_counter(), {}
    every = list(chain(*tasks.values()))
    try:
        unused = domain.open(every[0])
        has |= {part: isinstance(unused, protocol) for part, protocol in OPTIONAL_OF_WORLDS.items()}
        episodes = play_all(domain, every, rule)
    except Exception as error:  # the world's own code
        remedy = "what the agent does wrong is a ToolError, and nothing else may be raised"
        findings.append(Finding(RAISES, "FAILED", f"{raised(error)}; {remedy}"))
    else:
        facts = _facts(episodes, time.perf_counter() - start)
        findings += [judged(*one) for one in _rules_of_episodes(domain, every, episodes, unused).items()]
    return Checked(name, {split: len(own) for split, own in tasks.items()}, tuple(findings), has, facts)


def _rules_of_tasks(domain: Domain, tasks: TasksBySplit, counts: Mapping[Split, int]) -> dict[str, Sequence[Check]]:
    return {
        COMPLETE: (
            lambda: of_tasks.splits_are_complete(tasks, counts),
            lambda: of_tasks.goals_are_described(domain, tasks),
        ),
        "tasks: held-out splits share no entity with sft": (lambda: of_tasks.entities_are_kept_apart(tasks),),
        "tools: all that are offered exist, with an OpenAI schema": (
            lambda: of_tasks.offered_tools_exist(domain, tasks),
            lambda: of_tasks.schemas_are_openais(domain.tools),
        ),
    }


def _facts(episodes: Sequence[TaskEpisodes], seconds: float) -> dict[str, float | None]:
    num_episodes = sum(len(one.by) for one in episodes)
    golds = [one.gold for one in episodes if one.gold is not None]
    return {
        "num_episodes": num_episodes,
        "episodes_per_s": num_episodes / seconds,
        "max_gold_messages": max((len(agent_messages(one)) for one in golds), default=None),
    }


def _rules_of_episodes(
    domain: Domain, tasks: Sequence[Task], episodes: Sequence[TaskEpisodes], unused: World
) -> dict[str, Sequence[Check]]:
    """`unused` is a world in which nothing was done."""
    return {
        RAISES: (
            lambda: outcomes.only_tool_errors_are_raised(episodes),
            lambda: outcomes.user_speaks_before_agent(episodes),
        ),
        "expert: a strict success on every task, with reward 1": (
            lambda: outcomes.expert_succeeds_strictly(episodes),
            lambda: outcomes.expert_earns_one(episodes),
        ),
        "rewards: an empty episode fails, and no failure earns as much as a success": (
            lambda: outcomes.empty_is_no_success(episodes),
            lambda: outcomes.no_failure_earns_as_a_success(episodes),
        ),
        "rewards: every adversary earns less than the expert": [
            partial(outcomes.adversary_earns_less, name, episodes)
            for name in REMEDIES
            if name not in OF_STAFF or isinstance(domain, StaffedDomain)
        ],
        "grade: the named scores, a class for each failure, a score for each turn or none": (
            lambda: outcomes.failures_are_named(episodes),
            lambda: outcomes.named_scores_are_given(domain, episodes),
            lambda: outcomes.turn_scores_fit_the_turns(episodes),
        ),
        "episodes: the same when replayed, interleaved and eight at once": (
            lambda: isolation.same_episodes_again(domain, episodes),
        ),
        "regenerate: the same question about other entities": (
            lambda: isolation.regenerated_tasks_are_alike(domain, tasks),
        ),
        "close: nothing is raised, and nothing stays open": (
            lambda: isolation.close_ends_quietly(unused),
            lambda: isolation.nothing_stays_open(domain, episodes),
        ),
    }
