import sys
from dataclasses import replace
from decimal import Decimal

import pytest
from pydantic import ValidationError

from posttrain.rewards.params import ExtraScore, RewardParams
from posttrain.rewards.total import load_reward
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, Outcome, StopReason, Trajectory
from posttrain.worlds.grading import GENERAL_SCORES
from posttrain.worlds.lookups.gold import Answer
from posttrain.worlds.lookups.grade import SCORES as LOOKUP_SCORES
from tests.graded import graded
from tests.worlds.lookups.play import ERROR, PRICE, call, played, result, say, task

SCORES = (*GENERAL_SCORES, *LOOKUP_SCORES)
WEIGHTS = {"completion": 0.70, "strictness": 0.16, "tool_accuracy": 0.05, "timing": 0.05, "format": 0.04}
PENALTIES = {"wrong_tool": -0.004, "redundant_call": -0.003, "format_error": -0.002, "timeout": -0.001}


def params(*extra: tuple[str, float]) -> RewardParams:
    return RewardParams(
        weights=WEIGHTS, penalties=PENALTIES, extra=[ExtraScore(name=name, weight=weight) for name, weight in extra]
    )


def scored(trajectory, wanted, *extra):
    return load_reward(params(*extra), SCORES).score(graded(trajectory, wanted), wanted)


def reward(trajectory, wanted, *extra) -> float:
    return scored(trajectory, wanted, *extra).reward


@pytest.fixture
def module(tmp_path, monkeypatch):
    """`module(source)` makes an importable module and gives its name."""

    def make(source: str) -> str:
        name = f"scores_of_a_user_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return make


def test_a_perfect_episode_earns_one_and_an_empty_one_nothing():
    assert reward(played(call(), result(), say()), task(PRICE)) == 1.0
    assert reward(played(), task(PRICE)) == 0.0


def test_a_wrong_market_then_a_guess_earns_what_the_weights_say():
    trajectory = played(call("get_realtime_quote"), result(), say())
    # success and F1 0; timing: the call was due, the answer was not: 1/2; format 1; one penalty
    assert reward(trajectory, task(PRICE)) == pytest.approx(0.05 * 0.5 + 0.04 * 1 - 0.004)


def test_the_sum_is_not_clipped_at_zero_so_that_worse_is_worse():
    worst = played(
        call("", "{"),
        result(ERROR),
        call("get_realtime_quote"),
        result(),
        call("get_realtime_quote"),
        result(),
        stop=StopReason.TURN_LIMIT,
    )
    # timing 3/3 (a call was due all along), format 2/3; all four penalties
    assert reward(worst, task(PRICE)) == pytest.approx(0.05 + 0.04 * 2 / 3 - 0.004 - 0.003 - 0.002 - 0.001)


def test_scores_are_kept_unweighted_beside_the_reward():
    one = scored(played(call(), result(), say()), task(PRICE), ("step", 0.005))
    good = ("completion", "strictness", "tool_accuracy", "efficiency", "timing", "format", "accuracy", "step")
    assert one.scores == {
        **dict.fromkeys((*good, "tool_selection_accuracy"), 1.0),
        **dict.fromkeys(("wrong_tool", "redundant_call", "format_error", "timeout"), 0.0),
    }
    assert one.reward == 1.005


def test_the_worlds_own_reward_takes_the_place_of_the_weighted_sum():
    own = replace(played(say()), outcome=Outcome(success=True, strict_success=True, reward=7.5))
    assert load_reward(params(), SCORES).score(own, task(PRICE)).reward == 7.5


def test_a_lost_episode_earns_nothing_and_has_no_scores():
    lost = played(stop=StopReason.ENGINE_LOST)
    assert load_reward(params(), SCORES).score(lost, task(PRICE)) is lost


@pytest.mark.parametrize("knob", ["weights", "penalties"])
def test_a_score_that_the_world_does_not_give_is_refused_with_what_it_gives(knob):
    section = params().model_copy(update={knob: {"tool_acuracy": 0.1}})
    with pytest.raises(ConfigurationError, match=rf"reward\.{knob}\.tool_acuracy.*Did you mean 'tool_accuracy'"):
        load_reward(section, SCORES)
    every = r"^reward\.weights\.tool_accuracy, reward\.weights\.timing, .*: the world gives no such score"
    with pytest.raises(ConfigurationError, match=every):
        load_reward(params(), GENERAL_SCORES)


def test_equal_scores_give_bitwise_equal_rewards_whatever_was_said():
    wanted = task(answer=Answer("number", Decimal(3), "x"))
    rewards = {reward(played(say(text)), wanted) for text in ("ANSWER: 1 x", "ANSWER: 20 x", "ANSWER: 300 x")}
    assert len(rewards) == 1


def test_a_users_function_counts_with_its_weight(module):
    name = module("from posttrain.types import Score\n\ndef short(trajectory, task):\n    return Score(0.5)\n")
    assert reward(played(call(), result(), say()), task(PRICE), (f"{name}:short", 0.002)) == 1.001


@pytest.mark.parametrize(
    ("source", "function", "reason"),
    [
        ("", "absent", "'absent' is not there"),
        ("short = 3\n", "short", "is a int"),
        (
            "def short(trajectory):\n    return 1\n",
            "short",
            r"too many positional arguments; it must take",
        ),
        ("def short(trajectory, task, more):\n    return 1\n", "short", "must take"),
        ("import nothing_of_that_name\n", "short", "cannot be imported"),
        ("def short(:\n", "short", "cannot be imported"),
    ],
)
def test_a_users_function_that_cannot_work_is_refused_before_any_work(module, source, function, reason):
    with pytest.raises(ConfigurationError, match=reason):
        load_reward(params((f"{module(source)}:{function}", 0.001)), SCORES)


@pytest.mark.parametrize(
    "returned", ["1.0", "Score(1.5)", "Score(float('nan'))", "Score('1')", "Score(10**400)", "Score(None)"]
)
def test_a_users_function_that_returns_no_score_is_named(module, returned):
    name = module(f"from posttrain.types import Score\n\ndef short(trajectory, task):\n    return {returned}\n")
    with pytest.raises(ConfigurationError, match=f"{name}:short.* value in"):
        reward(played(), task(PRICE), (f"{name}:short", 0.001))


def test_feedback_says_what_would_have_been_better():
    outcome = graded(played(say("ANSWER: 1 HKD")), task(PRICE)).outcome
    assert outcome.feedback == "The answer is in the result of get_hk_realtime_quote."


def test_weights_by_which_a_failure_could_earn_more_than_a_success_are_refused():
    def refusal(**weights: float) -> str:
        with pytest.raises(ValidationError) as caught:
            RewardParams(weights=weights, penalties=PENALTIES, extra=[])
        return str(caught.value)

    assert "a failure could earn more than a success" in refusal(completion=0.5, strictness=0.3, format=0.2)
    assert "could earn more than one that chose" in refusal(completion=0.7, strictness=0.15, format=0.15)
    assert "sum to 0.9" in refusal(completion=0.9)
    with pytest.raises(ValidationError, match="format stands twice"):
        RewardParams(weights=WEIGHTS, penalties=PENALTIES, extra=[ExtraScore(name="format", weight=0.001)])


def test_what_failures_could_out_earn_is_tried_where_somebody_says_so():
    knobs = {"weights": {"completion": 0.4, "tool_accuracy": 0.6}, "penalties": {"timeout": -0.5}, "extra": []}
    tried = RewardParams.model_validate({**knobs, "allow_failure_above_success": True})
    assert "all others come to 1.1" in tried.inversion()
    with pytest.raises(ValidationError, match="allow_failure_above_success"):
        RewardParams.model_validate(knobs)


def test_a_length_penalty_has_its_own_target():
    extra = [{"name": "length_penalty", "weight": -0.1, "target_tokens": 4}]
    knobs = {"weights": {"completion": 1.0}, "penalties": {}, "extra": extra}
    term = load_reward(RewardParams.model_validate(knobs), ["completion"]).extra_terms[0]
    written = Trajectory("t", (Message("assistant", "x"),), StopReason.DONE, token_ids=(1,) * 6, mask=(1,) * 6)
    assert term.function(written, None).value == pytest.approx((6 - 4) / 4)
    with pytest.raises(ValidationError, match="is of length_penalty"):
        RewardParams.model_validate({**knobs, "extra": [{**extra[0], "name": "accuracy"}]})
