"""The errands: who remembers the fact succeeds, and who does not fails by name."""

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.worlds.catalog import example_params, make_domain
from posttrain.worlds.errands.domain import Goal, _script
from posttrain.worlds.scripts import ScriptedExpert
from tests.limits import limits_of

DOMAIN = make_domain(example_params("errands"))
TASKS = DOMAIN.tasks("rl", 20)
LIMITS = limits_of(60, 60, 4000)


def outcomes(make_script):
    policy = ScriptedPolicy(lambda task, _: ScriptedExpert(make_script(Goal.of(task))))
    return [one.outcome for one in run_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=range(len(TASKS)))]


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (lambda goal: _script(goal, goal.ordered, None, has_note=False), ""),
        (lambda goal: _script(goal, goal.items[0], None, has_note=True), "wrong_item"),
        (
            lambda goal: _script(Goal(goal.items, "1234", goal.ordered), goal.ordered, None, has_note=True),
            "wrong_member",
        ),
    ],
)
def test_the_order_decides(script, failure):
    found = outcomes(script)
    assert {one.failure for one in found} == {failure}
    assert {one.success for one in found} == {not failure}


def test_the_flawed_expert_notes_as_often_as_the_knob_says():
    policy = expert_policy(DOMAIN, is_flawless=False, reasoning_frac=0.0)
    tasks = DOMAIN.tasks("sft", 300)
    found = run_episodes(policy, tasks, domain=DOMAIN, limits=LIMITS, seeds=[1] * len(tasks))
    noted = sum(one.outcome.scores["noted"] for one in found) / len(found)
    assert 0.4 < noted < 0.6  # 1 - no_note: three standard errors are 0.087
    assert sum(one.outcome.failure == "wrong_item" for one in found) > 3
