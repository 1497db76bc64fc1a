import json
from collections import Counter

import pytest

from posttrain.params import FlawRates, WorldParams
from posttrain.rewards.completion import is_success
from posttrain.types import KINDS, SPLITS, Message, StopReason, Trajectory
from posttrain.worlds.scripts import say
from posttrain.worlds.tools import ToolError, error_text
from posttrain.worlds.toy import ToyDomain

NO_FLAWS = dict.fromkeys(FlawRates.model_fields, 0.0)


def domain_of(max_difficulty=3, seed=7):
    world = WorldParams(
        type="toy",
        seed=seed,
        max_difficulty=max_difficulty,
        num_sft_tasks=1,
        num_rl_tasks=1,
        num_dev_tasks=1,
        num_test_tasks=1,
    )
    return ToyDomain(world)


@pytest.fixture(scope="module")
def domain():
    return domain_of()


def play(domain, task, expert, max_turns=12):
    world = domain.open(task)
    messages = list(task.messages)
    for _ in range(max_turns):
        message = expert.reply(messages)
        messages.append(message)
        if message.tool_calls:
            (call,) = message.tool_calls
            try:
                result = world.tools()[call.name].call(call.arguments)
            except ToolError as error:
                result = error_text(error)
            messages.append(Message("tool", result, tool_call_id=call.id))
        elif (reply := world.user_reply(message)) is not None:
            messages.append(Message("user", reply))
        else:
            return Trajectory(task.task_id, tuple(messages), StopReason.DONE)
    return Trajectory(task.task_id, tuple(messages), StopReason.TURN_LIMIT)


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_expert_succeeds_on_every_task(domain, split):
    for task in domain.tasks(split, 400):
        assert is_success(play(domain, task, domain.expert(task, seed=0, flaws=None, reasoning_frac=0.5)), task), task


def test_an_empty_episode_never_succeeds(domain):
    assert not any(
        is_success(Trajectory(task.task_id, task.messages, StopReason.DONE), task) for task in domain.tasks("dev", 300)
    )


@pytest.mark.parametrize("flaw", sorted(NO_FLAWS))
def test_every_flaw_shows_in_some_play(domain, flaw):
    flaws = FlawRates(**{**NO_FLAWS, flaw: 1.0})
    tasks = domain.tasks("sft", 200)
    gold = [play(domain, task, domain.expert(task, seed=1, flaws=None, reasoning_frac=0.0)) for task in tasks]
    flawed = [play(domain, task, domain.expert(task, seed=1, flaws=flaws, reasoning_frac=0.0)) for task in tasks]
    assert (
        0.01 < sum(one.messages != other.messages for one, other in zip(gold, flawed, strict=True)) / len(tasks) < 0.9
    )
    lost = sum(not is_success(one, task) for one, task in zip(flawed, tasks, strict=True))
    assert (lost > 0) == (flaw in ("wrong_market", "give_up", "indicator_mixup", "market_flip"))


def test_a_longer_list_begins_with_the_shorter_and_splits_share_no_goods_and_no_text(domain):
    lists = {split: domain.tasks(split, 200) for split in SPLITS}
    assert all(domain.tasks(split, 50) == tasks[:50] for split, tasks in lists.items())
    goods = {split: {company for task in tasks for company in task.companies} for split, tasks in lists.items()}
    assert not goods["sft"] & (goods["rl"] | goods["dev"] | goods["test"])
    texts = Counter(task.messages[1].content for tasks in lists.values() for task in tasks)
    assert max(texts.values()) == 1
    assert len({task.task_id for tasks in lists.values() for task in tasks}) == 1000


def test_rl_tasks_are_balanced_over_kinds_and_sft_tasks_are_not_over_markets(domain):
    rl = Counter(task.kind for task in domain.tasks("rl", 240))
    assert set(rl) == set(KINDS)
    sft = Counter(task.market for task in domain.tasks("sft", 240))
    assert sft["a"] > 1.5 * sft["hk"]


def test_more_tasks_than_there_are_is_said_so(domain):
    with pytest.raises(ValueError, match="different tasks for dev and 100000 are wanted"):
        domain.tasks("dev", 100_000)


def test_the_user_answers_only_what_was_left_open(domain):
    answers = {
        task.gold.asks: domain.open(task).user_reply(say("ASK: market"))
        for task in domain.tasks("dev", 60)
        if task.market == "hk"
    }
    assert answers[None] is None
    assert answers["market"] in ("Hong Kong", "香港")


def test_a_task_realised_anew_asks_the_same_about_other_goods(domain):
    tasks = domain.tasks("sft", 60)
    anew = [domain.realise_anew(task, seed=5) for task in tasks]
    for old, new in zip(tasks, anew, strict=True):
        assert (old.kind, old.market, old.language, old.difficulty, old.split, old.template) == (
            new.kind, new.market, new.language, new.difficulty, new.split, new.template,
        )  # fmt: skip
        assert is_success(play(domain, new, domain.expert(new, seed=0, flaws=None, reasoning_frac=0.0)), new)
    assert sum(old.companies != new.companies for old, new in zip(tasks, anew, strict=True)) > 50


def test_one_name_on_two_shelves_has_two_codes_and_two_currencies(domain):
    assert json.loads(domain.tools["find_item"].call('{"name":"red pen"}'))["code"].endswith(".A")
    code = json.loads(domain.tools["find_hk_item"].call('{"name":"红笔"}'))["code"]
    assert json.loads(domain.tools["get_hk_shelf"].call(json.dumps({"code": code})))["currency"] == "HKD"
    with pytest.raises(ToolError, match="no such code in the mainland shop"):
        domain.tools["get_shelf"].call(json.dumps({"code": code}))
