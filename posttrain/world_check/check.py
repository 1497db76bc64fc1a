"""Tries every rule of the contract on one world: a finding for each, and what was measured."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from posttrain.rewards.total import RuleReward
from posttrain.types import Split
from posttrain.world_check import isolation, outcomes
from posttrain.world_check import tasks as of_tasks
from posttrain.world_check.episodes import TaskEpisodes, play_gold, play_others
from posttrain.world_check.findings import Broken, Check, Finding, judged
from posttrain.world_check.policies import REMEDIES
from posttrain.world_check.recorder import OPTIONAL_OF_WORLDS, RecordedDomain, Recorder
from posttrain.world_check.tasks import TasksBySplit, list_tasks
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import Domain, ExpertDomain, GoalDomain, RegeneratingDomain, ScoringDomain

OPTIONAL_OF_DOMAINS: Mapping[str, type] = {
    "expert": ExpertDomain,
    "regenerate": RegeneratingDomain,
    "describe_goal": GoalDomain,
    "scores": ScoringDomain,
}
COMPLETE = "tasks: every split is complete, with unique ids, text labels and a goal in a line"


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings about one world. `has` tells for each optional part whether the world has it;
    `facts` are the number of episodes, how many a second, and the most messages of the expert's in
    one (`agent.max_turns`; None without an expert)."""

    world: str
    num_tasks: Mapping[str, int]
    findings: tuple[Finding, ...]
    has: Mapping[str, bool]
    facts: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """True where no rule that was tried is broken."""
        return all(finding.state != "FAILED" for finding in self.findings)


def check_world(
    make: Callable[[], Domain], counts: Mapping[Split, int], rule: RuleReward, *, section: WorldParams | None
) -> Checked:
    """Tries every rule on `counts[split]` tasks of each split. `make` makes the domain, twice;
    another process makes it of `section`, which is not tried where that is None."""
    domain = make()
    name = str(domain.name)
    try:
        tasks = list_tasks(domain, counts)
    except Broken as broken:
        return Checked(name, {}, (Finding(COMPLETE, "FAILED", str(broken)),), {})
    recorder = Recorder()
    episodes, facts = _play(domain, tasks, rule, recorder)
    rules: dict[str, Sequence[Check]] = {
        COMPLETE: (
            lambda: of_tasks.splits_are_complete(tasks, counts),
            lambda: of_tasks.ids_are_unique(tasks),
            lambda: of_tasks.labels_are_texts(tasks),
            lambda: of_tasks.goals_are_described(domain, tasks),
        ),
        "tasks: the same in every list, domain and process": (
            lambda: of_tasks.longer_list_begins_with_shorter(domain, tasks),
            lambda: of_tasks.same_in_second_domain(tasks, list_tasks(make(), counts)),
            lambda: of_tasks.same_in_other_process(section, counts, tasks),
        ),
        "tasks: held-out splits share no entity with sft": (lambda: of_tasks.entities_are_kept_apart(tasks),),
        **_rules_of_episodes(domain, tasks, episodes, recorder),
    }
    findings = tuple(judged(rule_name, checks) for rule_name, checks in rules.items())
    has = {part: isinstance(domain, protocol) for part, protocol in OPTIONAL_OF_DOMAINS.items()}
    has |= {part: part in recorder.has for part in OPTIONAL_OF_WORLDS}
    return Checked(name, {split: len(own) for split, own in tasks.items()}, findings, has, facts)


def _play(
    domain: Domain, tasks: TasksBySplit, rule: RuleReward, recorder: Recorder
) -> tuple[list[TaskEpisodes], dict[str, float | None]]:
    every = list(chain(*tasks.values()))
    start = time.perf_counter()
    gold = play_gold(domain, every, recorder)
    episodes = play_others(domain, every, gold, recorder, rule)
    num_episodes = sum(len(list(one.all())) for one in episodes)
    return episodes, {
        "num_episodes": num_episodes,
        "episodes_per_s": num_episodes / (time.perf_counter() - start),
        "max_gold_messages": max((len(agent_messages(one)) for one in gold), default=None),
    }


def _rules_of_episodes(
    domain: Domain, tasks: TasksBySplit, episodes: Sequence[TaskEpisodes], recorder: Recorder
) -> dict[str, Sequence[Check]]:
    every, unseen = list(chain(*tasks.values())), Recorder()  # `unseen` keeps problems of replays out of the record
    probed = isolation.probes(domain, tasks, episodes, recorder)
    recorded = RecordedDomain(domain, unseen)
    return {
        "tools: all that are offered exist, with an OpenAI schema": (
            lambda: outcomes.offered_tools_exist(recorder),
            lambda: of_tasks.schemas_are_openais({**recorder.offered, **domain.tools}),
        ),
        "episodes: a user's message comes first, and nothing but ToolError is raised": (
            lambda: outcomes.only_tool_errors_are_raised(recorder, episodes),
            lambda: outcomes.user_speaks_before_agent(episodes),
        ),
        "expert: a strict success on every task, with reward 1": (
            lambda: outcomes.expert_succeeds_strictly(recorder, episodes),
            lambda: outcomes.expert_earns_one(episodes),
        ),
        "rewards: an empty episode fails, and no failure earns as much as a success": (
            lambda: outcomes.empty_is_no_success(episodes),
            lambda: outcomes.no_failure_earns_as_a_success(episodes),
        ),
        "rewards: every adversary earns less than the expert": [
            partial(outcomes.adversary_earns_less, name, episodes) for name in REMEDIES
        ],
        "grade: valid outcomes, with the named scores and a class for each failure": (
            lambda: outcomes.grade_returns_outcomes(recorder),
            lambda: outcomes.failures_are_named(recorder, episodes),
            lambda: outcomes.named_scores_are_given(domain, recorder),
            lambda: outcomes.turn_scores_fit_the_turns(recorder),
        ),
        "episodes: the same when replayed, interleaved and eight at once": (
            lambda: isolation.same_when_replayed(recorded, probed),
            lambda: isolation.same_when_interleaved(recorded, probed),
        ),
        "regenerate: the same question about other entities": (
            lambda: isolation.regenerated_tasks_are_alike(domain, every, unseen),
        ),
        "close: nothing is raised, and nothing stays open": (
            lambda: isolation.close_ends_quietly(domain, every, recorder),
            lambda: isolation.nothing_stays_open(recorded, probed),
        ),
    }
