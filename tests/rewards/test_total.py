import sys
from decimal import Decimal

import pytest

from posttrain.exits import ConfigurationError
from posttrain.params import ExtraScore, RewardParams, RewardPenalties, RewardWeights
from posttrain.rewards.total import load_reward
from posttrain.types import Answer, Score, StopReason
from tests.rewards.play import ERROR, PRICE, call, played, result, say, task

WEIGHTS = RewardWeights(completion=0.40, tool_accuracy=0.25, efficiency=0.15, timing=0.10, format=0.10)
PENALTIES = RewardPenalties(wrong_tool=-0.3, redundant_call=-0.2, format_error=-0.1, timeout=-0.5)


def params(*extra: tuple[str, float]) -> RewardParams:
    return RewardParams(
        weights=WEIGHTS, penalties=PENALTIES, extra=[ExtraScore(name=name, weight=weight) for name, weight in extra]
    )


def reward(trajectory, wanted, *extra) -> float:
    return load_reward(params(*extra)).score(trajectory, wanted).reward


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
    # completion 0, F1 0, efficiency 0; timing: the call was due, the answer was not: 1/2; format 1;
    # one penalty
    assert reward(trajectory, task(PRICE)) == pytest.approx(0.10 * 0.5 + 0.10 * 1 - 0.3)


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
    assert reward(worst, task(PRICE)) == pytest.approx(0.10 + 0.10 * 2 / 3 - 0.3 - 0.2 - 0.1 - 0.5)


def test_scores_are_kept_unweighted_beside_the_reward():
    scored = load_reward(params(("step", 0.5))).score(played(call(), result(), say()), task(PRICE))
    assert scored.scores == {
        **dict.fromkeys(("completion", "tool_accuracy", "efficiency", "timing", "format", "step"), 1.0),
        **dict.fromkeys(("wrong_tool", "redundant_call", "format_error", "timeout"), 0.0),
    }
    assert scored.reward == 1.5


def test_equal_scores_give_bitwise_equal_rewards_whatever_was_said():
    wanted = task(answer=Answer("number", Decimal(3), "x"))
    rewards = {reward(played(say(text)), wanted) for text in ("ANSWER: 1 x", "ANSWER: 20 x", "ANSWER: 300 x")}
    assert len(rewards) == 1


def test_a_users_function_counts_with_its_weight(module):
    name = module("from posttrain.types import Score\n\ndef short(trajectory, task):\n    return Score(0.5)\n")
    assert reward(played(call(), result(), say()), task(PRICE), (f"{name}:short", 0.2)) == 1.1


@pytest.mark.parametrize(
    ("source", "function", "reason"),
    [
        ("", "absent", "'absent' is not there"),
        ("short = 3\n", "short", "is a int"),
        ("def short(trajectory):\n    return 1\n", "short", r"signature is \(trajectory\)"),
        ("def short(trajectory, task, more):\n    return 1\n", "short", "must take"),
        ("import nothing_of_that_name\n", "short", "cannot be imported"),
        ("def short(:\n", "short", "cannot be imported"),
    ],
)
def test_a_users_function_that_cannot_work_is_refused_before_any_work(module, source, function, reason):
    with pytest.raises(ConfigurationError, match=reason):
        load_reward(params((f"{module(source)}:{function}", 1.0)))


@pytest.mark.parametrize("returned", ["1.0", "Score(1.5)", "Score(float('nan'))"])
def test_a_users_function_that_returns_no_score_is_named(module, returned):
    name = module(f"from posttrain.types import Score\n\ndef short(trajectory, task):\n    return {returned}\n")
    with pytest.raises(ConfigurationError, match=f"{name}:short.* value in"):
        reward(played(), task(PRICE), (f"{name}:short", 1.0))


def test_feedback_says_what_would_have_been_better():
    explained = load_reward(params()).explain(played(say("ANSWER: 1 HKD")), task(PRICE))
    assert explained["completion"] == Score(
        0.0,
        {"answer_stated": 0.0, "answer_held": 0.0, "asked_first": 1.0},
        "The answer is in the result of get_hk_realtime_quote.",
    )
