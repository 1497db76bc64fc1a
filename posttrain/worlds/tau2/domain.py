"""A tau2 domain of an installed package: `world: {type: tau2, package: …, domain: …}`."""

import json
import random
from collections.abc import Mapping, Sequence

from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, Split, Task
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, call, say
from posttrain.worlds.tau2.databases import References
from posttrain.worlds.tau2.goals import Action, Goal, goal_of, goal_text
from posttrain.worlds.tau2.grade import SCORES
from posttrain.worlds.tau2.package import load_package
from posttrain.worlds.tau2.params import OpenAiUserParams, Tau2FlawRates, Tau2Params
from posttrain.worlds.tau2.users import OpenAiUser, ScriptedUser, User, UserEndpoint
from posttrain.worlds.tau2.world import Tau2World, agent_tools
from posttrain.worlds.tools import Tool


class Tau2Domain:
    """Starts the server once, to read its tools. The split `test` is tau2's `test`; sft, rl and dev
    are disjoint parts of its `train`, in an order drawn from the world's seed."""

    scores: Sequence[str] = SCORES

    def __init__(self, params: Tau2Params) -> None:
        self._params = params
        self._package = load_package(params.package, domain=params.domain, server=params.server)
        self._references = References(self._package)
        self._endpoint = UserEndpoint(params.user) if isinstance(params.user, OpenAiUserParams) else None
        self._ids = self._split_ids()
        self.name = f"tau2_{params.domain}"
        self.tools: Mapping[str, Tool] = agent_tools(self._package.mcp_server().tools(), self._package.write_tools)

    def tasks(self, split: Split, count: int) -> list[Task]:
        if split == "test_paraphrase":
            return []
        ids = self._ids[split]
        if count > len(ids):
            raise ValueError(f"{count} {split} tasks are asked for, and {self.name} has {len(ids)} of them")
        return [self._task(task_id, split) for task_id in ids[:count]]

    def open(self, task: Task) -> World:
        return Tau2World(task, self.tools, package=self._package, references=self._references, user=self._user(task))

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        draw = random.Random(f"tau2 {task.task_id} {seed}")
        goal, is_reasoning = goal_of(task), draw.random() < reasoning_frac
        if is_flawless:
            return ScriptedExpert(script(goal.actions, last_words(goal), is_reasoning=is_reasoning))
        rates, write_tools = self._params.flaw_rates, self._package.write_tools
        return ScriptedExpert(flawed_script(goal, rates, write_tools=write_tools, draw=draw, is_reasoning=is_reasoning))

    def describe_goal(self, task: Task) -> str:
        """The reference calls that write, and what must be said."""
        goal = goal_of(task)
        calls = [
            f"{action.name}({json.dumps(action.arguments, ensure_ascii=False)})"
            for action in goal.actions
            if action.name in self._package.write_tools
        ]
        said = [f"say {', '.join(goal.communicated)}"] if goal.communicated else []
        return "; ".join((*calls, *said)) or "no change"

    def _user(self, task: Task) -> User:
        scenario = goal_of(task).scenario
        return ScriptedUser(scenario) if self._endpoint is None else OpenAiUser(scenario, self._endpoint)

    def _task(self, task_id: str, split: Split) -> Task:
        raw = self._package.tasks[task_id]
        actions = (raw["evaluation_criteria"] or {}).get("actions") or ()
        num_writes = sum(action["name"] in self._package.write_tools for action in actions)
        return Task(
            task_id=f"tau2/{self._params.domain}/{task_id}",
            split=split,
            messages=(Message("system", self._package.policy),),
            tools=tuple(self.tools),
            labels={"domain": self._params.domain, "writes": str(num_writes) if num_writes < 3 else "3+"},
            goal=goal_text(raw),
        )

    def _split_ids(self) -> dict[Split, Sequence[str]]:
        params = self._params
        train, test = list(self._package.splits["train"]), self._package.splits["test"]
        random.Random(f"tau2 {params.domain} {params.seed}").shuffle(train)
        sft_end = params.num_sft_tasks
        rl_end = sft_end + params.num_rl_tasks
        dev_end = rl_end + params.num_dev_tasks
        if dev_end > len(train) or params.num_test_tasks > len(test):
            raise ConfigurationError(
                f"tau2's {params.domain} has {len(train)} train and {len(test)} test tasks, and world asks for "
                f"{params.num_sft_tasks} + {params.num_rl_tasks} + {params.num_dev_tasks} (sft, rl, dev) and "
                f"{params.num_test_tasks} (test): lower num_sft_tasks and its like, splits share no task"
            )
        return {"sft": train[:sft_end], "rl": train[sft_end:rl_end], "dev": train[rl_end:dev_end], "test": test}


_DONE = "That is all taken care of."
_REFUSED = "I am sorry, our policy does not allow that."
_TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."


def flawed_script(
    goal: Goal, rates: Tau2FlawRates, *, write_tools: frozenset[str], draw: random.Random, is_reasoning: bool
) -> Script:
    """The reference calls with flaws: one that writes is left out, one that reads is made twice."""
    actions = list(goal.actions)
    writes = [place for place, action in enumerate(actions) if action.name in write_tools]
    if writes and draw.random() < rates.dropped_write:
        del actions[draw.choice(writes)]
    reads = [place for place, action in enumerate(actions) if action.name not in write_tools]
    if reads and draw.random() < rates.repeated_read:
        place = draw.choice(reads)
        actions.insert(place, actions[place])
    return script(actions, last_words(goal), is_reasoning=is_reasoning)


def script(actions: Sequence[Action], words: str, *, is_reasoning: bool = False) -> Script:
    """The calls in order, a message each, then the last words, as often as the user goes on."""
    for action in actions:
        yield call(action.name, action.arguments, reasoning=f"Next: {action.name}." if is_reasoning else None)
    while True:
        yield say(words)


def last_words(goal: Goal) -> str:
    """The facts to communicate, and a transfer to a human where the reference hands over."""
    if any(action.name == "transfer_to_human_agents" for action in goal.actions):
        words = _TRANSFERRED
    else:
        words = _DONE if goal.actions else _REFUSED
    return " ".join((*goal.communicated, words)) if goal.communicated else words
