"""The planner: processes that are refused, what its expert and each flaw do, what tells harm."""

import itertools
import random
from collections import Counter

import pytest
from pydantic import ValidationError
from statemachine.io import load

from posttrain.config.named_world import DEFAULT_REWARD
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.types import SPLITS, StopReason, Task
from posttrain.world_check.check import check_world
from posttrain.worlds.catalog import cost_names, example_params, make_domain, score_names, world_params
from posttrain.worlds.scripts import ScriptedExpert, call, say
from posttrain.worlds.state_machine.case import COSTS, Goal, Report, Step
from posttrain.worlds.state_machine.domain import StateMachineDomain
from posttrain.worlds.state_machine.drawing import draw_way, feasible_lengths
from posttrain.worlds.state_machine.params import StateMachineFlawRates
from posttrain.worlds.state_machine.process import FOLDER, load_process, read_process
from tests.limits import limits_of

NAMES = sorted(path.stem for path in FOLDER.glob("*.scxml"))
NO_FLAWS = dict.fromkeys(StateMachineFlawRates.model_fields, 0.0)
HARM = {
    "takes_over": {"takes_over"},
    "believes_early": {"state_lost", "wrong_delegation"},
    "ignores_correction": {"state_lost", "wrong_delegation"},
    "believes_twice": set(),
    "skips_update": {"missed_report"},
    "wrong_agent": {"wrong_delegation"},
}
OWNERS = {"Build": "Ada", "Testing": "Bo", "Noting": "Cy", "Rollout": "Dee"}


def domain_of(flaws=(), **knobs):
    rates = StateMachineFlawRates(**{**NO_FLAWS, **dict(flaws)})
    knobs = {"flaw_rates": rates, "renamed_frac": 0.0, **knobs}
    return StateMachineDomain(example_params("state_machine").model_copy(update=knobs))


@pytest.fixture(scope="module")
def domain():
    return domain_of()


def play(policy, domain, tasks):
    return run_episodes(policy, tasks, domain=domain, limits=limits_of(40, 64, 4096), seeds=[1] * len(tasks))


def told(state, event, *before):
    return Step(state, event, [*before, Report("event", f"{OWNERS[state]}: now {event}.", event)])


def release(*steps):
    """A task of the release process."""
    goal = Goal("release", {}, OWNERS, steps).as_json()
    some = next(one for one in domain_of().tasks("rl", 4) if one.labels["process"] == "release")
    return Task("release", "rl", some.messages, some.tools, some.labels, goal)


def played(domain, task, *script):
    [one] = play(ScriptedPolicy(lambda *_: ScriptedExpert(one for one in script)), domain, [task])
    return one


def results(trajectory):
    return [message.content for message in trajectory.messages if message.role == "tool"]


def delegate(state, agent=None):
    return call("delegate", {"agent": agent or OWNERS[state], "instruction": state})


def update(event):
    return call("update_state", {"event": event})


def finish(report):
    return call("finish", {"report": report})


DROPPED = release(told("Build", "Abandoned"))
ALL_WELL = release(told("Build", "Built"), told("Testing", "Green"), told("Noting", "Noted"), told("Rollout", "Live"))


# Processes


@pytest.mark.parametrize("name", NAMES)
def test_what_was_explored_is_what_python_statemachine_does(name):
    """On a machine of its own class for every way, because a datamodel is filled for the first
    machine of a class alone, with its first option for each datum."""
    process, text = load_process(name), (FOLDER / f"{name}.scxml").read_text(encoding="utf-8")
    draw = random.Random(name)
    for values in process.situations:
        data = dict(zip(process.data, values, strict=True))
        for first, value in zip(process.data.values(), values, strict=True):
            text = text.replace(f'expr="{first[0]!r}"', f'expr="{value!r}"')
        for length in feasible_lengths(name, data, range(1, 11)):
            machine, events = load(text, format="scxml")(), draw_way(name, data, length, draw)
            for count, event in enumerate(events, 1):
                machine.send(event)
                found = process.after(data, events[:count])
                active = [state for state in process.owners if state in machine.configuration_values]
                assert (sorted(found.working), found.is_end) == (sorted(active), machine.is_terminated)
            assert list(machine.configuration_values) == [found.name]
        text = (FOLDER / f"{name}.scxml").read_text(encoding="utf-8")


def test_the_processes_have_history_guards_and_parallel_regions():
    def after(name, events, **data):
        found = load_process(name).after(data, events)
        return found and found.name

    assert after("order", ["Paid", "Held"]) == "Paused"
    assert after("order", ["Paid", "Held", "Resumed"]) == "Packing"
    assert [after("incident", ["Confirmed", "Patched", "Healthy"], severity=one) for one in ("low", "high")] == [
        "Solved",
        "Review",
    ]
    assert after("approval", ["Filed", "Returned", "Filed"], amount=200, returns=0) == "Screening"
    assert after("approval", ["Filed", "Returned", "Filed", "Returned"], amount=200, returns=0) is None
    ways = itertools.permutations(["Green", "Noted"])
    assert [after("release", ["Built", *way]) for way in ways] == ["Rollout", "Rollout"]


def test_a_process_is_shown_in_a_line_for_each_state():
    assert load_process("order").text({"Payment": "Ada", "Packing": "Bo", "Shipping": "Cy", "Paused": "Ada"}) == (
        "Open{Payment@Ada:Paid>Packing,Declined>Cancelled\n"
        "Packing@Bo:Packed>Shipping,Missing>Payment\n"
        "Shipping@Cy:Delivered>Fulfilled,Lost>Packing}Held>Paused\n"
        "Paused@Ada:Resumed>Open*,Withdrawn>Cancelled"
    )
    assert load_process("approval").text({}).splitlines()[1] == (
        "Screening:Cleared[amount>500]>Board,Cleared>Granted,Returned[returns<1]>Drafting,Rejected>Denied"
    )
    assert "Gate{Tests{Testing:Green>Tested}&Notes{Noting:Noted>Described}}done>Rollout" in load_process(
        "release"
    ).text({})


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("severity ==", "severty ==", "name 'severty' is not defined"),
        ("severity == 'high'", "severity in ['high']", "cannot be run"),
        ("severity == 'high'", "_event.data['x'] == 1", "cannot be run"),
        ("severity == 'high'", "severity != 'none'", "Healthy of Checking|has one value only"),
        (" p:options=\"'low' 'high'\"", "", "has one value only|nothing leads to the state Review"),
        ('target="Escalation"', 'target="Repair"', "nothing leads to the state Escalation"),
        ('<transition event="Advised" target="Repair"/>', "", "no end can be reached from Escalation"),
        ('<state id="Repair" p:owner="2">', '<state id="Repair">', "Repair has an owner and no work, or work and no"),
        ('<final id="Solved"/>', '<final id="Solved" p:owner="1"/>', "Solved has an owner and no work"),
        ('event="Stuck"', 'event="Triage"', "'Triage' names a state or an event"),
        ('event="Stuck"', 'event="got stuck"', "'got stuck' names a state or an event"),
        ('target="Escalation"', 'target="Escaltion"', "cannot be run"),
    ],
)
def test_a_process_that_scxml_would_pass_over_is_refused(before, after, why):
    text = (FOLDER / "incident.scxml").read_text(encoding="utf-8")
    assert read_process(text).name == "incident"
    assert before in text
    with pytest.raises(ValueError, match=why):
        read_process(text.replace(before, after))


def test_a_counter_without_a_guard_is_refused():
    text = (FOLDER / "approval.scxml").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="over 200 situations; a counter needs a guard"):
        read_process(text.replace(' cond="returns &lt; 1"', ""))


# Tasks


@pytest.mark.parametrize("split", SPLITS)
def test_held_out_and_longer_tasks_are_in_the_tests_alone(domain, split):
    tasks = domain.tasks(split, 300)
    parts = Counter(task.labels["part"] for task in tasks)
    if not split.startswith("test"):
        assert set(parts) == {"trained"}
    else:
        assert all(abs(parts[part] / 300 - 0.2) < 0.06 for part in ("held_out", "longer"))
    for task in tasks:
        is_held_out = task.labels["process"] in ("claim", "onboarding")
        assert is_held_out == (task.labels["part"] == "held_out")
        lengths = range(6, 11) if task.labels["part"] == "longer" else range(2, 6)
        assert int(task.labels["num_reports"]) == len(Goal.of(task).steps) in lengths


def test_paraphrases_have_words_that_no_other_split_has(domain):
    def frames(split):
        goals = [Goal.of(task) for task in domain.tasks(split, 160)]
        reports = [report for goal in goals for step in goal.steps for report in step.reports]
        words = {" ".join(word for word in report.text.split()[1:] if not word[0].isupper()) for report in reports}
        return words - {""}

    assert not frames("test_paraphrase") & (frames("sft") | frames("test"))
    assert len(frames("sft")) >= 9


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"held_out_processes": ["order", "claim"]}, "order is trained and held out"),
        ({"held_out_processes": []}, "no process is held out"),
        ({"longer_frac": 0.9}, "sum to more than 1"),
        ({"processes": ["ordr"]}, "should be 'order'"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(knobs, why):
    section = example_params("state_machine").model_dump(mode="json")
    assert world_params(section)
    with pytest.raises(ValidationError, match=why):
        world_params({**section, **knobs})


def test_a_renamed_process_is_the_same_under_other_words(domain):
    plain, renamed = load_process("order"), load_process("order#3")
    words = dict(zip(plain.owners, renamed.owners, strict=True))
    assert list(plain.owners.values()) == list(renamed.owners.values())
    event = dict(zip(plain.reports["Payment"], renamed.reports[words["Payment"]], strict=True))
    assert renamed.after({}, [event["Held"]]).name == words["Paused"]
    assert f"{words['Payment']}:{event['Paid']}>{words['Packing']}," in renamed.text({})
    assert {"#" in Goal.of(task).process for task in domain_of(renamed_frac=1.0).tasks("dev", 20)} == {False}
    assert {"#" in Goal.of(task).process for task in domain_of(renamed_frac=1.0).tasks("rl", 20)} == {True}


# Expert and flaws


@pytest.mark.parametrize(
    "knobs", [{"renamed_frac": 1.0}, {"is_solo": True}, {"is_state_shown": False, "num_agents": 1}], ids=str
)
def test_the_gold_expert_succeeds_strictly_on_every_task(knobs):
    domain = domain_of(**knobs)
    tasks = [task for split in SPLITS for task in domain.tasks(split, 16)]
    for one, task in zip(
        play(expert_policy(domain, is_flawless=True, reasoning_frac=0.5), domain, tasks), tasks, strict=True
    ):
        assert one.is_strict_success, (task, one.messages[2:])
        assert not any(one.outcome.scores[name] for name in COSTS)
        assert set(one.outcome.turn_scores) == {1.0}


@pytest.mark.parametrize("flaw", sorted(HARM))
def test_each_flaw_does_the_harm_of_its_name_and_no_other(flaw):
    domain = domain_of({flaw: 1.0})
    flawed = play(expert_policy(domain, is_flawless=False, reasoning_frac=0.0), domain, domain.tasks("sft", 80))
    harms = Counter(name for one in flawed for name in COSTS if one.outcome.scores[name])
    assert set(harms) == HARM[flaw]
    failures = {one.outcome.failure for one in flawed} - {""}
    assert failures == ({"state_lost"} if "state_lost" in HARM[flaw] else set())
    assert sum(not one.is_strict_success for one in flawed) / len(flawed) > 0.1


def test_solo_has_the_same_ways_and_no_agents():
    tasks, alone = (domain_of(is_solo=is_solo).tasks("test", 40) for is_solo in (False, True))
    assert [task.goal for task in tasks] == [task.goal for task in alone]
    assert all("@" in task.messages[1].content and "delegate" in task.tools for task in tasks)
    assert not any("@" in task.messages[1].content or "delegate" in task.tools for task in alone)


@pytest.mark.parametrize("is_solo", [False, True])
def test_the_world_keeps_the_contract(is_solo):
    domain = domain_of({"skips_update": 0.5}, is_solo=is_solo)
    rule = load_reward(RewardParams.model_validate(DEFAULT_REWARD), score_names(domain))
    found = check_world(lambda: domain, dict.fromkeys(SPLITS, 3), rule, section=None)
    assert {finding.why for finding in found.findings if finding.state == "FAILED"} == set()
    assert len(found.findings) == 12


def test_the_costs_are_scores_of_every_outcome(domain):
    assert set(COSTS) < set(cost_names(domain))
    assert make_domain(example_params("state_machine")).name == "state_machine"


# Grades


def test_taking_over_succeeds_and_is_told_by_its_cost_alone(domain):
    one = played(domain, DROPPED, call("execute", {"state": "Build"}), update("Abandoned"), finish("Dropped"))
    assert results(one)[:2] == ['{"event":"Abandoned"}', '{"final":"Dropped"}']
    assert (one.is_success, one.is_strict_success) == (True, False)
    assert [name for name in COSTS if one.outcome.scores[name]] == ["takes_over"]
    assert one.outcome.turn_scores == (0.0, 1.0, 1.0)


def test_parallel_work_may_be_done_in_either_order(domain):
    side = [[delegate("Testing"), update("Green")], [delegate("Noting"), update("Noted")]]
    for way in (side, side[::-1]):
        begin, end = [delegate("Build"), update("Built")], [delegate("Rollout"), update("Live"), finish("Released")]
        assert played(domain, ALL_WELL, *begin, *way[0], *way[1], *end).is_strict_success


def test_a_report_that_was_not_taken_in_before_the_next_act_is_missed(domain):
    script = [delegate("Build"), delegate("Testing"), update("Built"), update("Green")]
    script += [delegate("Noting"), update("Noted"), delegate("Rollout"), update("Live"), finish("Released")]
    one = played(domain, ALL_WELL, *script)
    assert [name for name in COSTS if one.outcome.scores[name]] == ["missed_report"]
    assert (one.is_success, one.is_strict_success) == (True, False)
    assert one.outcome.turn_scores == (1.0, 0.0, *[1.0] * 7)


def test_an_event_that_has_not_happened_loses_the_state_where_the_planner_acts_on_it(domain):
    vague = Report("vague", "Ada: not Built yet.", "Built")
    task = release(told("Build", "Abandoned", vague))
    one = played(domain, task, delegate("Build"), update("Built"), delegate("Testing"), finish("Testing+Noting"))
    assert results(one)[2] == '"Bo: not my work now."'
    assert {name for name in COSTS if one.outcome.scores[name]} == {"state_lost", "wrong_delegation"}
    assert (one.outcome.failure, one.outcome.feedback) == ("state_lost", "Wanted: Abandoned; report Dropped.")


def test_a_correction_takes_the_last_update_back(domain):
    step = told("Build", "Abandoned", Report("wrong", "Ada: now Built.", "Built"))
    script = [delegate("Build"), update("Built"), delegate("Noting"), call("correct_state", {"event": "Abandoned"})]
    one = played(domain, release(step), *script, finish("Dropped"))
    assert results(one)[2:4] == ['"Ada: now Abandoned."', '{"final":"Dropped"}']
    assert one.is_strict_success
    one = played(domain, release(step), *script[:3], update("Abandoned"), finish("Dropped"))
    assert results(one)[3] == '{"error":"Abandoned is no event there"}'
    assert (one.is_success, one.outcome.failure) == (False, "state_lost")


def test_a_late_report_comes_as_a_message_to_a_planner_who_waits(domain):
    late = release(told("Build", "Abandoned", Report("late", "Ada: I will write.", "")))
    one = played(domain, late, delegate("Build"), say("I wait."), update("Abandoned"), finish("Dropped"))
    assert one.is_strict_success
    assert [message.content for message in one.messages if message.role == "user"][1:] == ["Ada: now Abandoned."]
    one = played(domain, late, delegate("Build"), call("ask", {"agent": "Ada"}), say("?"), update("Abandoned"), say(""))
    assert results(one)[:2] == ['"Ada: I will write."'] * 2
    assert (one.outcome.turn_scores, one.outcome.failure) == ((1.0, 0.0, 1.0, 1.0, 0.0), "no_report")


def test_a_report_that_is_repeated_is_no_event_any_more(domain):
    again = Report("repeated", "Ada: now Built.", "Built")
    task = release(told("Build", "Built"), told("Testing", "Green", again), *Goal.of(ALL_WELL).steps[2:])
    begin = [delegate("Build"), update("Built"), delegate("Testing")]
    end = [call("ask", {"agent": "Bo"}), update("Green"), delegate("Noting"), update("Noted"), delegate("Rollout")]
    end += [update("Live"), finish("Released")]
    assert played(domain, task, *begin, *end).is_strict_success
    one = played(domain, task, *begin, update("Built"), *end)
    assert (results(one)[3], one.is_success, one.is_strict_success) == (
        '{"error":"Built is no event there"}',
        True,
        False,
    )


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ([finish("Dropped")], "wrong_report"),
        ([delegate("Build"), update("Abandoned"), finish("Released")], "wrong_report"),
        ([delegate("Build"), finish("Dropped")], "missed_report"),
        ([delegate("Build"), update("Abandoned")], "no_report"),
        ([delegate("Build", "Bo"), delegate("Testing", "Ada"), say("Done.")], "wrong_delegation"),
        ([call("execute", {"state": "Rollout"}), say("Done.")], "takes_over"),
        ([call("correct_state", {"event": "Built"}), say("Done.")], "no_report"),
        ([call("fly", {}), say("Done.")], "no_report"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_failure_has_the_gravest_class(domain, script, failure):
    one = played(domain, DROPPED, *script, say(""))
    assert (one.is_success, one.outcome.failure) == (False, failure)
    assert one.stop_reason in (StopReason.DONE, StopReason.STOP_TOOL)


def test_a_hidden_state_is_not_in_any_result():
    domain = domain_of(is_state_shown=False)
    one = played(domain, DROPPED, delegate("Build"), update("Abandoned"), finish("Dropped"))
    assert (one.is_strict_success, results(one)[1]) == (True, '{"event":"Abandoned"}')


def test_both_places_are_described_for_a_person(domain):
    world = domain.open(ALL_WELL)
    world.tools()["delegate"].call('{"agent":"Ada","instruction":"Build"}')
    assert world.describe() == ("told: Built, which leads to Testing+Noting\nupdated: nothing, which leads to Build")
    assert domain.describe_goal(DROPPED) == "Abandoned; report Dropped"
