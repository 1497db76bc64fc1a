"""The calculator's word problems: what its expert and each flaw do, and what the tool computes."""

import json
from collections import Counter
from fractions import Fraction

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.types import SPLITS
from posttrain.worlds.calculator.domain import CalculatorDomain, value_of, value_text
from posttrain.worlds.calculator.params import CalculatorFlawRates
from posttrain.worlds.catalog import example_params
from posttrain.worlds.scripts import ScriptedExpert, call, say
from posttrain.worlds.tools import ToolError
from tests.limits import limits_of

NO_FLAWS = dict.fromkeys(CalculatorFlawRates.model_fields, 0.0)


def domain_of(**flaws):
    knobs = {"max_difficulty": 3, "flaw_rates": CalculatorFlawRates(**{**NO_FLAWS, **flaws})}
    return CalculatorDomain(example_params("calculator").model_copy(update=knobs))


def play(domain, tasks, policy):
    return run_episodes(policy, tasks, domain=domain, limits=limits_of(4, 64, 512), seeds=[1] * len(tasks))


def flawed(domain, split="sft"):
    return play(domain, domain.tasks(split, 100), expert_policy(domain, is_flawless=False, reasoning_frac=0.5))


def said(*messages):
    domain = domain_of()
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(message for message in messages))
    [one] = play(domain, domain.tasks("rl", 1), policy)
    return one.outcome


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1+0.2", "0.3"),
        ("(3+4)*12.5", "87.5"),
        ("-(2-5)*-1", "-3"),
        ("1/3", "1/3"),
        ("1/3*3", "1"),
        ("9" * 90 + "*" + "9" * 90, str(int("9" * 90) ** 2)),
    ],
)
def test_values_are_exact(expression, value):
    assert value_text(value_of(expression)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2**9",
        "7//2",
        "abs(1)",
        "1/0",
        "1/(2-2)",
        "(1",
        "(" * 99 + "1" + ")" * 99 + "+1" * 9,
        "007",
        "1 2",
        "()",
        "1(2)",
    ],
)
def test_what_is_no_arithmetic_is_the_agents_mistake(expression):
    with pytest.raises(ToolError):
        value_of(expression)


@pytest.mark.parametrize("split", SPLITS)
def test_an_expert_without_flaws_succeeds_strictly(split):
    assert all(one.is_strict_success for one in flawed(domain_of(), split))


@pytest.mark.parametrize(
    ("flaw", "failures", "strict"),
    [
        ("wrong_expression", {"wrong_answer": 100}, 0),
        ("mental_arithmetic", {"wrong_answer": 100}, 0),
        ("redundant_call", {"": 100}, 0),
        ("malformed_json", {"": 100}, 0),
    ],
)
def test_each_flaw_costs_what_it_should(flaw, failures, strict):
    played = flawed(domain_of(**{flaw: 1.0}))
    assert Counter(one.outcome.failure for one in played) == failures
    assert sum(one.is_strict_success for one in played) == strict


def test_the_right_number_without_the_calculator_is_a_success_and_no_strict_one():
    domain = domain_of()
    goal = json.loads(domain.tasks("rl", 1)[0].goal)
    right = say(f"So:\nANSWER: {goal['answer']}")
    called = call("calculate", {"expression": goal["expression"]})
    alone, by_tool = said(right), said(called, right)
    assert (alone.success, alone.strict_success, alone.scores["calculated"]) == (True, False, 0.0)
    assert (by_tool.strict_success, by_tool.scores["calculated"]) == (True, 1.0)
    assert said(say("42?")).failure == "no_answer"


def test_every_goal_is_worked_out_from_the_numbers_of_its_story():
    for task in domain_of().tasks("test", 140):
        goal = json.loads(task.goal)
        assert Fraction(eval(goal["expression"].replace("/", "//1/"))) == pytest.approx(float(goal["answer"]))
        numbers = set(filter(None, "".join(c if c.isdigit() else " " for c in goal["expression"]).split()))
        text = "".join(c if c.isdigit() else " " for c in task.messages[1].content).split()
        assert numbers - {"100"} <= set(text)
