"""Sub-agents who are a policy: what their tools tell, what a lie of theirs does, their expert's
flaws, and the record by which an episode is graded."""

from collections import Counter

import pytest

from posttrain.config.named_world import DEFAULT_REWARD
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.offers import staffed
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import SPLITS, WORKER, Task
from posttrain.world_check.check import check_world
from posttrain.worlds.catalog import example_params, make_domain, score_names
from posttrain.worlds.scripts import ScriptedExpert, call, say
from posttrain.worlds.state_machine.case import Goal, Report, Step
from posttrain.worlds.state_machine.params import StateMachineFlawRates
from posttrain.worlds.tools import ToolError
from tests.limits import limits_of

OWNERS = {"Build": "Ada", "Testing": "Bo", "Noting": "Cy", "Rollout": "Dee"}
LIMITS = limits_of(40, 64, 4096)
DONE = Report("event", "", "Abandoned")
HARM = {
    "takes_over": {"takes_over"},
    "skips_update": {"missed_report"},
    "wrong_agent": {"wrong_delegation"},
    "reports_early": {"false_report"},
    "gives_up": {"work_undone"},
}


def domain_of(flaws=(), **knobs):
    rates = StateMachineFlawRates(**{**dict.fromkeys(StateMachineFlawRates.model_fields, 0.0), **dict(flaws)})
    params = example_params("state_machine").model_copy(update={"flaw_rates": rates, "renamed_frac": 0.0, **knobs})
    return staffed(make_domain(params))


DOMAIN = domain_of()


def play(policy, domain, tasks):
    return run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=[1] * len(tasks))


def dropped(*before):
    """A release that is abandoned at once, with these results before."""
    goal = Goal("release", {}, OWNERS, [Step("Build", "Abandoned", [*before, DONE])])
    some = next(one for one in DOMAIN.tasks("rl", 4) if one.labels["process"] == "release")
    return Task("release", "rl", some.messages, some.tools, some.labels, goal.as_json())


def played(planner, *workers, task=None):
    """An episode in which everybody says what stands here, workers one after another."""
    left = iter(workers)

    def made(task, _):
        return ScriptedExpert(one for one in (next(left) if task.agent_name == WORKER else planner))

    [one] = play(ScriptedPolicy(made), DOMAIN, [task or dropped()])
    return one


def results(messages):
    return [message.content for message in messages if message.role == "tool"]


def delegate(state):
    return call("delegate", {"agent": OWNERS[state], "instruction": state})


def update(event):
    return call("update_state", {"event": event})


def finish(state):
    return call("finish", {"report": state})


BEGIN = call("begin", {"state": "Build"})


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ((), '"event":"Abandoned","status":"done"'),
        ((Report("vague", "", "Built"),), '"event":"Built","status":"pending"'),
        ((Report("late", "", ""),), '"status":"pending"'),
        ((Report("wrong", "", "Built"),), '"event":"Built","status":"draft"'),
    ],
)
def test_a_tool_tells_how_the_job_is_going_and_the_event_once_it_is_done(before, told):
    case = DOMAIN.case(dropped(*before))
    given = case.delegate("Ada", "Build")
    assert [message.content for message in given.task.messages[1:]] == ["Ada: Build"]
    job = case.begin("Build")["job"]
    checked = given.tools["check"].call(f'{{"job":{job}}}')
    assert checked == f'{{"job":{job},{told}}}'
    again = case.confirm(job) if "draft" in told else case.check(job)
    assert again == {"job": job, "event": "Abandoned", "status": "done"}
    for mistake in (case.confirm, lambda _: case.check(job + 1), lambda _: case.begin("Testing")):
        with pytest.raises(ToolError, match=r"has no draft|there is no job|has no work now"):
            mistake(job)


def test_a_stale_result_is_of_another_job():
    case = DOMAIN.case(dropped(Report("repeated", "", "Built")))
    job = case.begin("Build")["job"]
    stale = case.check(job)
    assert (stale["status"], stale["event"], stale["job"] == job) == ("done", "Built", False)
    assert case.check(job)["event"] == "Abandoned"


def test_the_gold_expert_of_both_roles_succeeds_strictly_on_every_task():
    domain = domain_of(renamed_frac=1.0)
    tasks = [task for split in SPLITS for task in domain.tasks(split, 8)]
    gold = play(expert_policy(domain, is_flawless=True, reasoning_frac=0.5), domain, tasks)
    for one, task in zip(gold, tasks, strict=True):
        assert one.is_strict_success, (task, one.messages[2:])
        assert len(one.delegated) == len(Goal.of(task).steps)


@pytest.mark.parametrize("flaw", sorted(HARM))
def test_each_flaw_does_the_harm_of_its_name_and_workers_are_blamed_for_theirs(flaw):
    domain = domain_of({flaw: 1.0})
    flawed = play(expert_policy(domain, is_flawless=False, reasoning_frac=0.0), domain, domain.tasks("sft", 30))
    harms = Counter(name for one in flawed for name in domain.costs if one.outcome.scores[name])
    assert {*harms} == HARM[flaw]
    assert sum(not one.is_strict_success for one in flawed) / len(flawed) > 0.1
    failures = {one.outcome.failure for one in flawed} - {""}
    assert failures == (HARM[flaw] if flaw in ("reports_early", "gives_up") else set())


def test_a_lie_leads_the_planner_astray_until_its_state_is_delegated_again():
    astray = [delegate("Build"), update("Built"), delegate("Testing")]
    back = [delegate("Build"), call("correct_state", {"event": "Abandoned"}), finish("Dropped")]
    lie, truth = [BEGIN, say("now Built.")], [BEGIN, None, say("now Abandoned.")]
    job = DOMAIN.case(dropped()).begin("Build")["job"]
    truth[1] = call("check", {"job": job})
    none = [call("begin", {"state": "Testing"}), say("no work.")]
    lost = played([*astray, finish("Dropped")], lie, none)
    assert (lost.outcome.failure, lost.outcome.scores["false_report"]) == ("false_report", 1.0)
    assert results(lost.messages)[2] == '"Bo: no work."'
    assert results(lost.delegated[1].messages) == ['{"error":"Testing has no work now"}']
    found = played([*astray, *back], lie, none, truth)
    assert (found.is_success, found.is_strict_success) == (True, False)
    assert [name for name in DOMAIN.costs if found.outcome.scores[name]] == ["false_report"]
    assert found.outcome.turn_scores == (1.0,) * 6


def test_an_event_that_nobody_worked_for_has_not_happened_though_it_be_the_right_one():
    one = played([delegate("Build"), update("Abandoned"), finish("Dropped")], [say("now Abandoned.")])
    assert (one.is_success, one.outcome.failure) == (False, "false_report")


def test_a_worker_who_leaves_the_work_is_blamed_where_the_time_runs_out():
    script = [delegate("Build")] * 40
    one = played(script, *[[say("")]] * 40)
    assert (one.outcome.failure, results(one.messages)[0]) == ("work_undone", '"Ada: nothing."')
    assert one.outcome.scores["work_undone"] == 1.0


def test_the_planner_is_blamed_for_harm_of_its_own():
    execute = call("execute", {"state": "Build"})
    one = played([execute, update("Abandoned"), finish("Released")])
    assert (one.outcome.failure, one.delegated) == ("takes_over", ())
    gone = played([delegate("Build"), finish("Released")], [BEGIN, say("later.")])
    assert gone.outcome.failure == "wrong_report"


def test_the_world_keeps_the_contract_with_workers():
    domain = domain_of({"reports_early": 0.5, "skips_update": 0.5})
    rule = load_reward(RewardParams.model_validate(DEFAULT_REWARD), score_names(domain))
    found = check_world(lambda: domain, dict.fromkeys(SPLITS, 1), rule, section=None)
    assert {finding.why for finding in found.findings if finding.state == "FAILED"} == set()


def test_scripted_sub_agents_are_other_tasks_and_a_solo_planner_has_nobody():
    params = example_params("state_machine")
    plain = make_domain(params).tasks("rl", 20)
    both = zip(plain, staffed(make_domain(params)).tasks("rl", 20), strict=True)
    assert all(one.task_id != other.task_id and one.goal == other.goal for one, other in both)
    for wrong in (params.model_copy(update={"is_solo": True}), example_params("toy")):
        with pytest.raises(ConfigurationError, match=r"nobody to delegate to|delegates nothing"):
            staffed(make_domain(wrong))
