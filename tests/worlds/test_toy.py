import json
from collections import Counter

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.types import SPLITS
from posttrain.worlds.lookups.schedule import KINDS
from posttrain.worlds.tools import ToolError
from posttrain.worlds.toy.domain import ToyDomain
from posttrain.worlds.toy.params import ToyFlawRates
from tests.limits import limits_of
from tests.worlds_of import toy_params

NO_FLAWS = dict.fromkeys(ToyFlawRates.model_fields, 0.0)


def domain_of(**flaws):
    return ToyDomain(toy_params(max_difficulty=3, flaw_rates={**NO_FLAWS, **flaws}))


@pytest.fixture(scope="module")
def domain():
    return domain_of()


def play(policy, domain, tasks):
    return run_episodes(policy, tasks, domain=domain, limits=limits_of(12, 64, 1024), seeds=[1] * len(tasks))


def play_expert(domain, tasks, *, is_flawless=True, reasoning_frac=0.0):
    return play(expert_policy(domain, is_flawless=is_flawless, reasoning_frac=reasoning_frac), domain, tasks)


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_expert_succeeds_strictly_on_every_task(domain, split):
    tasks = domain.tasks(split, 400)
    for trajectory, task in zip(play_expert(domain, tasks, reasoning_frac=0.5), tasks, strict=True):
        assert trajectory.is_strict_success, (task, trajectory.messages[2:])


@pytest.mark.parametrize("flaw", sorted(NO_FLAWS))
def test_every_flaw_shows_in_some_play(domain, flaw):
    tasks = domain.tasks("sft", 200)
    gold = play_expert(domain, tasks)
    flawed = play_expert(domain_of(**{flaw: 1.0}), tasks, is_flawless=False)
    assert (
        0.01 < sum(one.messages != other.messages for one, other in zip(gold, flawed, strict=True)) / len(tasks) < 0.9
    )
    lost = sum(not one.is_success for one in flawed)
    assert (lost > 0) == (flaw in ("wrong_shop", "give_up", "look_alike", "shop_flip"))


def test_a_longer_list_begins_with_the_shorter_and_splits_share_no_goods_and_no_text(domain):
    lists = {split: domain.tasks(split, 200) for split in SPLITS}
    assert all(domain.tasks(split, 50) == tasks[:50] for split, tasks in lists.items())
    goods = {split: {good for task in tasks for good in task.entities} for split, tasks in lists.items()}
    assert all(goods.values())
    assert not goods["sft"] & (goods["rl"] | goods["dev"] | goods["test"])
    texts = Counter(task.messages[1].content for tasks in lists.values() for task in tasks)
    assert max(texts.values()) == 1
    assert len({task.task_id for tasks in lists.values() for task in tasks}) == 1000


def test_rl_tasks_are_balanced_over_kinds_and_sft_tasks_are_not_over_shops(domain):
    rl = Counter(task.labels["kind"] for task in domain.tasks("rl", 240))
    assert set(rl) == set(KINDS)
    sft = Counter(task.labels["shop"] for task in domain.tasks("sft", 240))
    assert sft["north"] > 1.5 * sft["south"]


def test_one_name_on_two_shelves_has_two_codes_and_two_currencies(domain):
    code = json.loads(domain.tools["find_item"].call('{"name":"red pen"}'))["code"]
    assert code.endswith(".N")
    assert json.loads(domain.tools["get_shelf"].call(json.dumps({"code": code})))["currency"] == "EUR"
    code = json.loads(domain.tools["find_south_item"].call('{"name":"红笔"}'))["code"]
    assert code.endswith(".S")
    assert json.loads(domain.tools["get_south_shelf"].call(json.dumps({"code": code})))["currency"] == "USD"
    with pytest.raises(ToolError, match="no such code in the north shop"):
        domain.tools["get_shelf"].call(json.dumps({"code": code}))
