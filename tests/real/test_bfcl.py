import copy
import decimal
import json
import random
from dataclasses import replace
from functools import partial

import pytest
import yaml

from benchmarks.foreign.bfcl import measure, our_outcome, their_verdict
from benchmarks.foreign.bfcl_plays import Play, gold_play, some_call
from posttrain.debug.player import Player
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork, play_on
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.types import Message, StopReason, ToolCall, Trajectory
from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.domain import BfclDomain
from posttrain.worlds.bfcl.entries import SETS, Call, entries, entry_with, read_gold
from posttrain.worlds.bfcl.instances import make_instances
from posttrain.worlds.bfcl.params import BfclFlawRates, BfclParams, SplitShares
from posttrain.worlds.bfcl.schemas import READ_ONLY, schemas_of
from posttrain.worlds.bfcl.world import BfclWorld
from posttrain.worlds.scripts import ScriptedExpert, say
from posttrain.worlds.tools import ToolError
from tests.limits import limits_of

pytestmark = pytest.mark.needs_worlds
LIMITS = limits_of(40, 100, 100_000, max_result_chars=100_000)
SHARES = SplitShares(sft=0.4, rl=0.3, dev=0.1)


def domain_of(seed=1, sets=SETS, rate=0.5, system=""):
    return BfclDomain(
        BfclParams(
            type="bfcl",
            seed=seed,
            num_sft_tasks=1,
            num_rl_tasks=1,
            num_dev_tasks=1,
            num_test_tasks=1,
            sets=list(sets),
            split_shares=SHARES,
            system=system,
            flaw_rates=BfclFlawRates(**dict.fromkeys(BfclFlawRates.model_fields, rate)),
        )
    )


class Kept(BfclDomain):
    """Keeps its worlds, so that a test can ask them."""

    def open(self, task):
        self.worlds = [*getattr(self, "worlds", []), super().open(task)]
        return self.worlds[-1]


def outcomes(tasks, make_expert, seeds=None):
    """Episodes that are played at once, each with its world's verdict."""
    domain = Kept(domain_of()._params)
    seeds = seeds or [0] * len(tasks)
    played = run_episodes(ScriptedPolicy(make_expert), tasks, domain=domain, limits=LIMITS, seeds=seeds)
    return played, [world.grade(trajectory) for world, trajectory in zip(domain.worlds, played, strict=True)]


def gold_expert(task, seed):
    return domain_of().expert(task, seed=seed, is_flawless=True, reasoning_frac=0.5)


def turns_of(play):
    return copy.deepcopy(play.turns)


def changed(entry, **calls_by_turn):
    """The gold play with other calls in some turns: `turn_2=[Call(…)]`, a step each."""
    turns = turns_of(gold_play(entry))
    for name, calls in calls_by_turn.items():
        turns[int(name.removeprefix("turn_"))] = [[call] for call in calls]
    return Play(turns)


def calls_of(entry, turn):
    return list(entry.gold[turn])


# -- entries and tasks


@pytest.mark.parametrize("set_name", SETS)
def test_a_set_has_two_hundred_entries_with_gold_for_every_turn(set_name):
    assert len(entries(set_name)) == 200
    assert all(len(entry.turns) == len(entry.gold_texts) for entry in entries(set_name))
    assert all(entry.turns[0] for entry in entries(set_name))


def test_every_variant_of_a_scenario_is_in_one_split_and_none_is_in_two():
    domain = domain_of()
    by_split = {split: domain.tasks(split, count) for split, count in (("sft", 320), ("rl", 200), ("dev", 60))}
    by_split["test"] = domain.tasks("test", 150)
    entities = {split: {task.entities for task in tasks} for split, tasks in by_split.items()}
    assert sum(map(len, entities.values())) == len(set().union(*entities.values()))
    assert {task.labels["set"] for task in by_split["sft"][:4]} == set(SETS)
    assert len({task.entities for task in by_split["sft"][:70]}) >= 69  # two entries open with the same words
    assert len({task.task_id for tasks in by_split.values() for task in tasks}) == 730


def test_tasks_are_the_same_for_one_seed_and_a_shorter_list_begins_a_longer_one():
    assert domain_of().tasks("rl", 50) == domain_of().tasks("rl", 80)[:50]
    assert domain_of().tasks("rl", 50) != domain_of(seed=2).tasks("rl", 50)
    assert domain_of().tasks("test_paraphrase", 10) == []
    with pytest.raises(ValueError, match=r"raise its share in world\.split_shares"):
        domain_of(sets=["base"]).tasks("dev", 100)


def test_a_task_names_its_set_its_classes_and_its_turns_and_hides_its_gold():
    task = next(task for task in domain_of(system="Be brief.").tasks("sft", 300) if task.labels["set"] == "miss_func")
    entry = entry_with(task.task_id)
    assert task.labels == {
        "set": "miss_func",
        "classes": "+".join(entry.classes),
        "num_turns": str(len(entry.turns)),
    }
    assert [message.role for message in task.messages] == ["system", "user"]
    assert json.loads(task.goal) == {"entry": entry.entry_id}
    assert entry.gold_texts[-1][0] in domain_of().describe_goal(task) or not entry.gold_texts[-1]


def test_knobs_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="none is left for test"):
        SplitShares(sft=0.5, rl=0.4, dev=0.1)
    with pytest.raises(ValueError, match="one stands there twice"):
        domain_of(sets=["base", "base"])


# -- plays


def test_the_gold_player_succeeds_strictly_on_every_entry_and_one_who_does_nothing_on_none():
    domain = domain_of()
    counts = {"sft": 320, "rl": 236, "dev": 84, "test": 160}
    tasks = [task for split, count in counts.items() for task in domain.tasks(split, count)]
    played, found = outcomes(tasks, gold_expert)
    assert all(outcome.strict_success for outcome in found)
    assert all(set(outcome.scores.values()) == {1.0} for outcome in found)
    assert all(set(outcome.turn_scores) == {1.0} for outcome in found)
    assert {trajectory.stop_reason for trajectory in played} == {StopReason.DONE}
    assert max(sum(message.role == "assistant" for message in one.messages) for one in played) <= 22

    def idle():
        while True:
            yield say("I will not.")

    _, found = outcomes(tasks[:100], lambda task, seed: ScriptedExpert(idle()))
    assert {(outcome.success, outcome.failure) for outcome in found} == {(False, "no_call")}


def test_fifty_episodes_at_once_say_what_each_says_alone():
    """Half of them with flaws; what the long contexts of travel share in the package is theirs
    alone here."""
    shared = package.module("eval_checker.multi_turn_eval.func_source_code.long_context")
    before = copy.deepcopy((shared.CREDIT_CARD_EXTENSION, shared.BOOKING_RECORD_EXTENSION))
    domain = domain_of()
    tasks = [task for task in domain.tasks("sft", 316) if task.labels["set"] in ("long_context", "miss_func")][:25] * 2
    make_expert = partial(domain.expert, reasoning_frac=0.5)
    seeds = list(range(50))

    def expert(task, seed):
        return make_expert(task, seed=seed, is_flawless=seed < 25)

    together, found = outcomes(tasks, expert, seeds)
    alone = [outcomes([task], expert, [seed]) for task, seed in zip(tasks, seeds, strict=True)]
    assert [one.messages for one in together] == [played[0].messages for played, _ in alone]
    assert found == [verdicts[0] for _, verdicts in alone]
    assert 25 <= sum(outcome.success for outcome in found) < 50
    assert before == (shared.CREDIT_CARD_EXTENSION, shared.BOOKING_RECORD_EXTENSION)


def test_a_card_of_the_long_context_is_charged_in_one_episode_only():
    entry = next(entry for entry in entries("long_context") if entry.classes == ("TravelAPI",))
    charged, other = BfclWorld(entry), BfclWorld(entry)

    def balance(world):
        return json.loads(world.tools()["get_all_credit_cards"].call("{}"))["credit_card_list"][card]["balance"]

    shared = package.module("eval_checker.multi_turn_eval.func_source_code.long_context").CREDIT_CARD_EXTENSION
    card, full = next((number, held["balance"]) for number, held in shared.items() if held["balance"] > 10)
    instances = charged._instances.by_class["TravelAPI"]
    instances._set_card_balance(card, full - 5)
    assert (balance(charged), balance(other)) == (full - 5, full)


def test_an_episode_leaves_the_process_as_it_was():
    entry = next(entry for entry in entries("base") if "MathAPI" in entry.classes)
    tools = BfclWorld(entry).tools()
    precision = decimal.getcontext().prec, package.mpmath().mp.dps
    tools["square_root"].call('{"number": 2, "precision": 3}')
    tools["logarithm"].call('{"value": 2, "base": 3, "precision": 77}')
    assert (decimal.getcontext().prec, package.mpmath().mp.dps) == precision


# -- the rule


@pytest.mark.parametrize("set_name", SETS)
def test_our_verdicts_are_the_package_checkers_on_gold_and_changed_plays(set_name):
    found = measure(20, random.Random(set_name).sample(entries(set_name), 6))
    assert found.differences == []
    assert found.gold_ok == 6
    assert 0 < found.accepted < found.num_mutated


def verdicts(entry, play):
    ours = our_outcome(entry, play)
    assert ours.success == their_verdict(entry, play)
    return ours


def test_logging_out_at_the_end_fails():
    entry = entry_with("multi_turn_base_100")
    assert make_instances(entry)[0].by_class["TradingBot"].authenticated
    outcome = verdicts(entry, changed(entry, turn_1=[*calls_of(entry, 1), Call("trading_logout")]))
    assert (outcome.success, outcome.failure) == (False, "state_mismatch")
    assert outcome.turn_scores[-1] == 0.0
    assert "TradingBot.authenticated" in outcome.feedback


def test_a_lookup_beside_the_gold_is_a_success_and_no_strict_one_and_a_repeated_one_is_strict():
    entry = entry_with("multi_turn_base_100")
    beside = verdicts(entry, changed(entry, turn_0=[Call("get_account_info"), *calls_of(entry, 0)]))
    assert (beside.success, beside.strict_success) == (True, False)
    repeated = verdicts(entry, changed(entry, turn_0=calls_of(entry, 0) * 2))
    assert (repeated.success, repeated.strict_success) == (True, True)
    unknown = verdicts(entry, changed(entry, turn_0=[*calls_of(entry, 0), Call("buy_everything")]))
    assert (unknown.success, unknown.strict_success) == (True, False)


def test_a_call_in_a_turn_that_has_no_use_for_any_tells_only_in_what_it_leaves():
    """The package's runner does not call its check of such turns."""
    entry = entry_with("multi_turn_miss_param_150")
    assert not entry.gold_texts[1]
    read = verdicts(entry, changed(entry, turn_1=calls_of(entry, 0)))
    assert (read.success, read.strict_success, read.scores["restraint"]) == (True, True, 0.0)
    guessed = Call("set_budget_limit", {"access_token": "abc123token", "budget_limit": 1.0})
    mended = verdicts(entry, changed(entry, turn_1=[guessed]))  # the next turn sets the right one
    assert (mended.success, mended.strict_success) == (True, False)
    wrong = Call("cancel_booking", {"access_token": "abc123token", "booking_id": "none"})
    assert verdicts(entry, changed(entry, turn_1=[wrong])).success
    card = Call(
        "register_credit_card",
        {
            "access_token": "abc123token",
            "card_number": "1",
            "expiration_date": "12/2030",
            "cardholder_name": "A",
            "card_verification_number": 1,
        },
    )
    left = verdicts(entry, changed(entry, turn_1=[card]))
    assert (left.success, left.failure) == (False, "empty_turn_violated")


def test_an_episode_that_ends_before_the_last_turn_fails_and_one_within_it_is_judged():
    entry = entry_with("multi_turn_base_100")
    turns = turns_of(gold_play(entry))
    assert verdicts(entry, Play(turns[:1], is_cut_off=True)).failure == "turns_left"
    assert verdicts(entry, Play(turns, is_cut_off=True)).success


def test_more_than_twenty_messages_with_calls_in_one_turn_end_the_episode():
    entry = entry_with("multi_turn_base_100")
    many = verdicts(entry, changed(entry, turn_0=calls_of(entry, 0) * 21))
    assert (many.success, many.failure) == (False, "too_many_steps")
    assert verdicts(entry, changed(entry, turn_0=calls_of(entry, 0) * 20)).success
    last = changed(entry, turn_1=[*calls_of(entry, 1), *calls_of(entry, 0) * 30])
    assert verdicts(entry, last).success  # in the last turn the package judges what was done until then


def test_gold_text_is_read_and_never_evaluated():
    assert read_gold("sort('a.txt')") == Call("sort", {}, ("a.txt",))
    with pytest.raises(ValueError, match="malformed node"):
        read_gold("sort(open('x'))")


# -- tools


def test_an_added_function_is_told_of_in_its_turn_and_stands_in_no_schema_before():
    entry = entry_with("multi_turn_miss_func_0")
    assert entry.added == {3: ("sort",)}
    assert "sort" not in entry.offered
    world = BfclWorld(entry)
    said = [world.user_reply(say("")) for _ in range(5)]
    assert said[4] is None
    functions, words = said[2].split("\n")
    assert [schema["name"] for schema in json.loads(functions)] == ["sort"]
    assert words == "I have updated some more functions you can choose from. What about now?"
    assert json.loads(BfclWorld(entry).tools()["pwd"].call("{}"))


def test_arguments_reach_a_class_as_they_were_written():
    tools = BfclWorld(entry_with("multi_turn_base_100")).tools()
    assert tools["fund_account"].parse('{"amount": 5}') == {"amount": 5}
    assert isinstance(tools["fund_account"].parse('{"amount": 5}')["amount"], int)
    for arguments in ("{}", '{"amount": "5"}', '{"amount": 5, "now": true}'):
        with pytest.raises(ToolError, match="Error during execution"):
            tools["fund_account"].call(arguments)
    with pytest.raises(ToolError, match="not valid JSON"):
        tools["fund_account"].call("{amount: 5}")
    with pytest.raises(ToolError, match="Stock with symbol 'X' not found"):
        tools["get_stock_info"].call('{"symbol": "X"}')


def test_what_an_agent_writes_is_never_evaluated_and_never_computed_without_end():
    entry = next(entry for entry in entries("base") if "MathAPI" in entry.classes)
    instances = make_instances(entry)[0]
    assert "is not defined" in instances.answer(Call("__import__('os').getcwd", {}))
    assert "is not defined" in instances.answer(Call("_load_scenario", {"scenario": {}}))
    for name, arguments in (
        ("power", {"base": 9, "exponent": 10**9}),
        ("square_root", {"number": 2, "precision": 10**9}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ):
        assert "is not computed" in instances.answer(Call(name, arguments))
    assert json.loads(instances.answer(Call("power", {"base": 2, "exponent": 10}))) == {"result": 1024}


def test_an_answer_with_a_set_in_it_has_one_order_in_every_process():
    entry, flight = next(
        (entry, call)
        for entry in entries("base")
        for calls in entry.gold
        for call in calls
        if call.name == "book_flight"
    )
    wrong = replace(flight, arguments={**flight.arguments, "travel_class": "balcony"})
    assert "Must be one of {'business', 'economy', 'first'}" in make_instances(entry)[0].answer(wrong)


def test_functions_that_only_read_change_no_later_answer_and_no_state():
    for entry in (entry for set_name in SETS for entry in entries(set_name)[::8]):
        plain, asked = make_instances(entry)[0], make_instances(entry)[0]
        rng = random.Random(entry.entry_id)
        for call in (call for calls in entry.gold for call in calls):
            for name in (name for class_name in entry.classes for name in sorted(READ_ONLY[class_name])):
                asked.answer(some_call(name, rng))
            assert asked.answer(call) == plain.answer(call), entry.entry_id
        for class_name, instance in plain.by_class.items():
            assert asked.state(class_name) == plain.state(class_name)
            if hasattr(instance, "_random"):
                assert asked.by_class[class_name]._random.getstate() == instance._random.getstate()


def test_every_function_has_a_schema_of_json_types():
    types = {"string", "integer", "number", "boolean", "array", "object"}
    schemas = [schema for class_name in package.CLASSES for schema in schemas_of(class_name).values()]
    assert len(schemas) == len({schema["name"] for schema in schemas}) == 128
    assert {value["type"] for schema in schemas for value in schema["parameters"]["properties"].values()} <= types
    assert all(set(schema["parameters"]["required"]) <= set(schema["parameters"]["properties"]) for schema in schemas)
    assert READ_ONLY.keys() == set(package.CLASSES)
    assert all(names <= set(schemas_of(class_name)) for class_name, names in READ_ONLY.items())
    tools = domain_of().tools
    assert (len(tools), tools["pwd"].is_read_only, tools["cd"].is_read_only) == (128, True, False)


def test_the_example_of_its_knobs_is_a_world_that_can_give_its_tasks():
    params = BfclParams.model_validate({"type": "bfcl"} | yaml.safe_load(BfclParams.example))
    domain = BfclDomain(params)
    assert [
        len(domain.tasks(split, getattr(params, f"num_{split}_tasks"))) for split in ("sft", "rl", "dev", "test")
    ] == [300, 200, 80, 160]


def test_a_graded_trajectory_has_a_credit_for_each_message():
    entry = entry_with("multi_turn_base_100")
    world = BfclWorld(entry)
    messages = (Message("user", entry.turns[0]), Message("assistant", tool_calls=(ToolCall("call_1", "nope", "{"),)))
    outcome = world.grade(Trajectory(entry.entry_id, messages, StopReason.TURN_LIMIT))
    assert (outcome.turn_scores, outcome.failure) == ((0.0,), "turns_left")


def test_a_turn_of_just_as_many_steps_as_are_allowed_is_no_forced_end():
    world = domain_of().open(domain_of().tasks("dev", 1)[0])
    for _ in range(len(world._entry.turns) - 1):
        world.user_reply(Message("assistant", "Next."))
    assert not any(world.is_over() for _ in range(package.max_steps()))
    assert world.user_reply(Message("assistant", "Done.")) is None
    assert not world.is_over(), "it ends because the user has no more to say"


def test_an_episode_is_played_on_from_every_turn_and_its_state_is_that_before_the_turn():
    domain = domain_of()
    tasks = domain.tasks("dev", 40)
    recorded, _ = outcomes(tasks, gold_expert)
    for at in (1, 2, 4, 7):
        forks = [Fork(task, one, at) for task, one in zip(tasks, recorded, strict=True) if len(one.turns) >= at]
        branches = play_on(forks, ScriptedPolicy(gold_expert), domain=domain, limits=LIMITS)
        assert [branch.trajectory.messages for branch in branches] == [fork.trajectory.messages for fork in forks]
        assert not [branch for branch in branches if branch.differences]
    player = Player("nobody", domain, LIMITS, lambda _: ScriptedPolicy(gold_expert))
    states = [player.world_state(Fork(tasks[0], recorded[0], at)) for at in range(1, len(recorded[0].turns) + 1)]
    assert all("." in line and " = " in line for line in states[0].splitlines())
    assert len(set(states)) > 1
