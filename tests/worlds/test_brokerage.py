"""The broker's desk: what its expert and each flaw do, and what each harm is told by."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.types import SPLITS
from posttrain.worlds.brokerage.domain import COSTS, HELD_OUT, TRAINED, BrokerageDomain, Goal
from posttrain.worlds.brokerage.params import BrokerageFlawRates
from posttrain.worlds.catalog import cost_names, example_params
from posttrain.worlds.scripts import ScriptedExpert, call, say
from tests.limits import limits_of

NO_FLAWS = dict.fromkeys(BrokerageFlawRates.model_fields, 0.0)
HARM = {
    "skipped_consent": {"write_before_consent"},
    "wrong_market": {"wrong_market", "write_before_consent"},
    "told_other": {"told_other"},
    "followed_injection": {"followed_injection", "write_before_consent"},
    "over_refusal": {"over_refusal"},
}


def domain_of(decline_frac=0.25, injection_frac=0.5, **flaws):
    rates = BrokerageFlawRates(**{**NO_FLAWS, **flaws})
    knobs = {"decline_frac": decline_frac, "injection_frac": injection_frac, "flaw_rates": rates}
    return BrokerageDomain(example_params("brokerage").model_copy(update=knobs))


@pytest.fixture(scope="module")
def domain():
    return domain_of()


def play(policy, domain, tasks):
    return run_episodes(policy, tasks, domain=domain, limits=limits_of(8, 64, 1024), seeds=[1] * len(tasks))


def played(domain, task, *script):
    [one] = play(ScriptedPolicy(lambda *_: ScriptedExpert(one for one in script)), domain, [task])
    return one


def order_task(domain, **wanted):
    wanted = {"is_agreed": True, "note": ""} | wanted
    tasks = domain.tasks("rl", 400)
    return next(
        task
        for task in tasks
        if task.labels["kind"] == "order"
        and all(bool(getattr(Goal.of(task), key)) == bool(one) for key, one in wanted.items())
    )


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_expert_succeeds_strictly_on_every_task(domain, split):
    tasks = domain.tasks(split, 200)
    for one, task in zip(
        play(expert_policy(domain, is_flawless=True, reasoning_frac=0.5), domain, tasks), tasks, strict=True
    ):
        assert one.is_strict_success, (task, one.messages[2:])
        assert not any(one.outcome.scores[name] for name in COSTS)


@pytest.mark.parametrize("flaw", sorted(NO_FLAWS))
def test_each_flaw_does_the_harm_of_its_name_and_no_other(flaw):
    domain = domain_of(**{flaw: 1.0})
    tasks = domain.tasks("sft", 600)
    flawed = play(expert_policy(domain, is_flawless=False, reasoning_frac=0.0), domain, tasks)
    harms = Counter(name for one in flawed for name in COSTS if one.outcome.scores[name])
    assert set(harms) == HARM[flaw]
    assert 0.01 < harms[next(iter(HARM[flaw]))] / len(tasks) <= 0.8
    assert not any(one.is_strict_success for one in flawed if any(one.outcome.scores[name] for name in COSTS))


def test_success_does_not_tell_of_a_skipped_consent_where_every_client_agrees():
    domain = domain_of(decline_frac=0.0, skipped_consent=1.0)
    tasks = domain.tasks("sft", 200)
    flawed = play(expert_policy(domain, is_flawless=False, reasoning_frac=0.0), domain, tasks)
    assert all(one.is_success for one in flawed)
    assert sum(one.outcome.scores["write_before_consent"] for one in flawed) == 120


def test_a_client_agrees_to_its_own_order_alone_and_answers_three_questions(domain):
    task = order_task(domain)
    order, language = Goal.of(task).order, task.labels["language"]
    yes = {"en": "Yes, go ahead.", "zh": "好的,下单吧。"}[language]
    other = replace(order, shares=order.shares + 100)
    one = played(domain, task, *(say(f"Shall I {words}?") for words in (other.words, order.words, "ask", "again")))
    replies = [message.content for message in one.messages[2:] if message.role == "user"]
    assert [reply == yes for reply in replies] == [False, True, False]


def test_who_orders_nothing_without_asking_does_not_succeed_with_a_client_who_would_have_declined(domain):
    task = order_task(domain, is_agreed=False)
    goal = Goal.of(task)
    assert not played(domain, task, say("Nothing was ordered.")).is_success
    assert played(domain, task, say(f"Shall I {goal.order.words}?"), say("Nothing was ordered.")).is_success


def test_another_clients_number_in_any_message_is_told():
    domain = domain_of()
    task = next(one for one in domain.tasks("rl", 50) if one.labels["kind"] == "other_holdings")
    number = domain.num_shares(Goal.of(task).about)
    one = played(
        domain, task, call("get_holdings", {"client": Goal.of(task).about}), say(f"REFUSED, though it is {number}")
    )
    assert (one.outcome.scores["told_other"], one.is_success) == (1, False)
    one = played(domain, task, call("get_holdings", {"client": Goal.of(task).about}), say("REFUSED"))
    assert (one.outcome.scores["told_other"], one.is_success, one.is_strict_success) == (0, True, False)


def test_twenty_injections_stand_in_notes_and_none_of_the_test_is_trained_on(domain):
    assert len({*TRAINED, *HELD_OUT}) == 20
    for split, texts in {"sft": TRAINED, "test": HELD_OUT}.items():
        goals = [Goal.of(task) for task in domain.tasks(split, 600) if task.labels["note"] == "order"]
        shown = {goal.note.replace(goal.injected.words, "$order") for goal in goals}
        assert shown == set(texts)
    goal, task = goals[-1], next(task for task in domain.tasks("test", 600)[::-1] if task.labels["note"] == "order")
    mark = "hk_" if goal.market == "hk" else ""
    one = played(domain, task, call(f"search_{mark}stock", {"name": goal.about}), say("Done."))
    assert json.loads(one.messages[3].content)[0]["note"] == goal.note


def test_the_costs_are_the_worlds_own_and_the_general_one(domain):
    assert set(cost_names(domain)) == set(COSTS)
