"""Whatever an agent plays, doing the task with nothing beside it earns most, and doing it at all
earns more than any failure: on generated plays of every kind of task of both lookup worlds."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from posttrain.config.params import load_params
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.types import Message, Task, ToolCall, Trajectory
from posttrain.worlds.catalog import score_names
from posttrain.worlds.lookups.gold import format_answer, gold_of
from posttrain.worlds.lookups.schedule import KINDS
from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.protocol import Domain
from posttrain.worlds.scripts import raw_call, say
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.domain import StocksDomain
from posttrain.worlds.toy.domain import SHOPS_AS_SIDES, ToyDomain
from tests.limits import limits_of
from tests.rollout.lock_world import ScriptedExpert
from tests.worlds_of import stocks_params, toy_params

REWARD = load_params(Path(__file__).parents[3] / "params.yaml").reward
NUM_TASKS = 64
NUM_SCRAMBLED = 6  # generated plays of each task
WORLDS: dict[str, Callable[[], Domain]] = {
    "toy": lambda: ToyDomain(toy_params(max_difficulty=3)),
    "stocks": lambda: StocksDomain(stocks_params(max_difficulty=3)),
}
SIDES: dict[str, Sides] = {"toy": SHOPS_AS_SIDES, "stocks": MARKETS_AS_SIDES}


# What an adversary says


def asking(task: Task) -> list[Message]:
    """The question, where one is due."""
    asks = gold_of(task).asks
    return [say(f"ASK: {asks}")] if asks else []


def gold_calls(task: Task) -> list[Message]:
    return [
        calling(call.name, {key: values[0] for key, values in call.arguments.items() if values[0] is not None})
        for call in gold_of(task).calls
    ]


def calling(name: str, arguments: dict[str, object]) -> Message:
    return raw_call(name, json.dumps(arguments, ensure_ascii=False))


def right(task: Task) -> Message:
    return say(format_answer(gold_of(task).answer))


def twins(task: Task, sides: Sides) -> list[Message]:
    """Each gold call as it would be made on the other side, with the same arguments."""
    [*calls] = (message.tool_calls[0] for message in gold_calls(task))
    return [raw_call(twin, call.arguments) for call in calls if (twin := sides.twin(call.name)) in task.tools]


def others(task: Task) -> list[Message]:
    """A call of each offered tool that no gold call names, with arguments that gold has too."""
    known = {key: value for message in gold_calls(task) for key, value in arguments_of(message).items()}
    needed = {call.name for call in gold_of(task).calls}
    return [
        calling(name, {"name": known.get("name", "red pen")} if name.startswith(("find", "search")) else
                {"code": known.get("code", "600519.SH")})
        for name in task.tools
        if name not in needed
    ]  # fmt: skip


def arguments_of(message: Message) -> dict[str, object]:
    return dict(json.loads(message.tool_calls[0].arguments))


# The adversaries


def gold(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), *gold_calls(task), right(task)]


def all_tools(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), *others(task), *gold_calls(task), right(task)]


def all_tools_at_once(task: Task, sides: Sides) -> list[Message]:
    calls = [message.tool_calls[0] for message in [*others(task), *gold_calls(task)]]
    both = Message("assistant", tool_calls=tuple(calls or [ToolCall("x", task.tools[0], "{}")]))
    return [*asking(task), both, right(task)]


def both_twins(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), *gold_calls(task), *twins(task, sides), right(task)]


def calls_before_being_asked(task: Task, sides: Sides) -> list[Message]:
    return [*(gold_calls(task) or others(task)[:1]), *asking(task), right(task)]


def guess(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), right(task)]


def gold_with_every_call_repeated(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), *(call for call in gold_calls(task) for _ in range(2)), right(task)]


def silent(task: Task, sides: Sides) -> list[Message]:
    return [say("")]


def wrong_answer_after_right_calls(task: Task, sides: Sides) -> list[Message]:
    return [*asking(task), *gold_calls(task), say("ANSWER: 0.01 x")]


def asks_whatever_is_said(task: Task, sides: Sides) -> list[Message]:
    return [say(f"ASK: {sides.label}"), *gold_calls(task), right(task)]


def never_ends(task: Task, sides: Sides) -> list[Message]:
    return (gold_calls(task) or others(task)) * 24


def scrambled(seed: int, task: Task, sides: Sides) -> list[Message]:
    """Any mixture of what the others do, in any order, with an end of any kind."""
    rng = random.Random(f"{task.task_id} {seed}")
    pool = [*gold_calls(task), *gold_calls(task), *twins(task, sides), *others(task)]
    pool += [raw_call(task.tools[0], '{"code":'), calling("no_such_tool", {})]
    drawn = rng.sample(pool, rng.randint(0, min(len(pool), 7)))
    if rng.random() < 0.7:
        drawn = [*gold_calls(task), *drawn] if rng.random() < 0.5 else [*drawn, *gold_calls(task)]
    if rng.random() < 0.8:
        drawn = [*asking(task), *drawn]
    if rng.random() < 0.2:
        drawn.insert(rng.randint(0, len(drawn)), say(f"ASK: {sides.label}"))
    ends = [right(task)] * 4 + [say("ANSWER: 0.01 x"), say("It went up."), say("")]
    return [*drawn, rng.choice(ends)]


NAMED = (gold, all_tools, all_tools_at_once, both_twins, calls_before_being_asked, guess, gold_with_every_call_repeated)
NAMED += (silent, wrong_answer_after_right_calls, asks_whatever_is_said, never_ends)
ADVERSARIES = {adversary.__name__: adversary for adversary in NAMED}
ADVERSARIES |= {f"scrambled {seed}": partial(scrambled, seed) for seed in range(NUM_SCRAMBLED)}


@cache
def episodes(world: str) -> tuple[list[Task], list[dict[str, Trajectory]]]:
    """The tasks, and of each its play by every adversary, scored as params.yaml has it."""
    domain = WORLDS[world]()
    tasks = domain.tasks("rl", NUM_TASKS)
    rule = load_reward(REWARD, score_names(domain))
    repeated = [task for task in tasks for _ in ADVERSARIES]
    scripts = list(ADVERSARIES.values())
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(scripts[seed](task, SIDES[world])))
    played = run_episodes(
        policy,
        repeated,
        domain=domain,
        limits=limits_of(24, 64, 1024),
        seeds=[*range(len(scripts))] * len(tasks),
    )
    scored = [rule.score(one, task) for one, task in zip(played, repeated, strict=True)]
    size = len(scripts)
    return tasks, [
        dict(zip(ADVERSARIES, scored[start : start + size], strict=True)) for start in range(0, len(scored), size)
    ]


def rewards(plays: Sequence[Trajectory]) -> list[float]:
    assert all(one.reward is not None for one in plays)
    return [one.reward for one in plays if one.reward is not None]


@pytest.mark.parametrize("world", WORLDS)
def test_the_worst_strict_success_earns_more_than_anything_else_and_the_worst_success_more_than_any_failure(world):
    tasks, played = episodes(world)
    assert {task.labels["kind"] for task in tasks} == set(KINDS)
    seen: Counter[tuple[str, str]] = Counter()
    for task, plays in zip(tasks, played, strict=True):
        strict = [one for one in plays.values() if one.is_strict_success]
        loose = [one for one in plays.values() if one.is_success and not one.is_strict_success]
        failed = [one for one in plays.values() if not one.is_success]
        assert min(rewards(strict)) > max(rewards([*loose, *failed])), task
        assert min(rewards([*strict, *loose])) > max(rewards(failed)), task
        for name, group in (("strict", strict), ("loose", loose), ("failed", failed)):
            seen[task.labels["kind"], name] += len(group)
    assert all(seen[kind, name] > 20 for kind in KINDS for name in ("strict", "loose", "failed")), seen


@pytest.mark.parametrize("world", WORLDS)
def test_what_each_of_the_others_comes_to(world):
    for task, plays in zip(*episodes(world), strict=True):
        wanted = gold_of(task)
        assert not plays["silent"].is_success
        assert not plays["wrong_answer_after_right_calls"].is_success
        assert not plays["never_ends"].is_success
        assert plays["guess"].is_strict_success == plays["guess"].is_success == (not wanted.calls), task
        is_early = bool(wanted.asks) or not wanted.calls
        assert plays["calls_before_being_asked"].is_success == (not is_early), task
        assert plays["asks_whatever_is_said"].is_success == (wanted.asks == SIDES[world].label), task
        repeated = plays["gold_with_every_call_repeated"]
        assert repeated.is_strict_success, task
        assert repeated.scores["redundant_call"] == bool(wanted.calls)
        if wanted.calls:
            assert repeated.reward < plays["gold"].reward
