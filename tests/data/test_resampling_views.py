from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from posttrain.data.params import KeepParams
from posttrain.data.resampling.cells import cell_of, opening_text, steps_of
from posttrain.data.resampling.coreset import choose_coreset, features, lexical_diversity, num_kept, number_of
from posttrain.data.resampling.quality import Mistake, keeper, mistakes, refuse_too_many_dropped
from posttrain.data.schemas import TrajectoryRow
from posttrain.models.codec import TokenRow
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, StopReason, ToolCall, Trajectory

CELLS = ["kind", "language"]

LIMITS = {"num_tokens": 1, "max_turns": 4, "max_context_tokens": 64}
RULES = Message("system", "End with a line `ANSWER: <value>`.")
ASKED = Message("user", "腾讯的股价？")
NOTHING = np.zeros(0)


def call(
    arguments: str = '{"code":"x"}', name: str = "quote", call_id: str = "c1", reasoning: str | None = None
) -> Message:
    return Message("assistant", reasoning_content=reasoning, tool_calls=(ToolCall(call_id, name, arguments),))


def result(content: str = '{"price":1}', call_id: str = "c1") -> Message:
    return Message("tool", content, tool_call_id=call_id)


def other() -> list[Message]:
    return [call(name="hk", call_id="c3"), result(call_id="c3")]


TURNS = Mistake.TOO_MANY_TURNS
ERROR = '{"error":"not found"}'
ANSWER = Message("assistant", "ANSWER: 1 HKD")


def row(*messages: Message, language: str = "zh") -> TrajectoryRow:
    labels = {"kind": "tool_selection", "language": language}
    return TrajectoryRow(Trajectory("t", messages, StopReason.DONE), labels, "sft", "price", (), ())


def test_steps_say_what_was_done_and_not_about_whom():
    failed = [call('{"name":"x"}', "search"), result(ERROR)]
    again = [call('{"name":"x"}', "search_hk", "c2", "market: HK"), result(call_id="c2")]
    assert steps_of([RULES, ASKED, *failed, *again, ANSWER]) == ("search", "<failed>", "<reason>", "search_hk", "<say>")


def test_an_identical_call_is_marked_and_the_same_tool_with_other_arguments_is_not():
    again = [call(call_id="c2"), result(call_id="c2")]
    other_code = [call('{"code":"y"}', call_id="c3"), result(call_id="c3")]
    steps = steps_of([ASKED, call(), result(), *again, *other_code, ANSWER])
    assert steps == ("quote", "quote", "<again>", "quote", "<say>")


def test_a_question_back_is_a_step_of_its_own():
    assert steps_of([ASKED, Message("assistant", "ASK: market"), Message("user", "HK"), ANSWER]) == ("<ask>", "<say>")


def test_the_cell_tells_a_reasoning_demonstration_from_one_that_only_acts():
    assert cell_of(row(ASKED, call(), result(), ANSWER), CELLS) == "tool_selection/zh/tools"
    assert cell_of(row(ASKED, call(reasoning="HK"), result(), ANSWER), CELLS) == "tool_selection/zh/reasoning"


def test_the_labels_that_are_named_make_the_cell_in_their_order_and_one_that_a_row_lacks_is_a_dash():
    one = row(ASKED, ANSWER)
    assert cell_of(one, ("language", "kind")) == "zh/tool_selection/tools"
    assert cell_of(one, ("kind", "shop")) == "tool_selection/-/tools"
    assert cell_of(one, ()) == "tools"


def test_the_opening_text_ends_where_the_agent_begins():
    assert (
        opening_text([RULES, ASKED, Message("assistant", "ASK: market"), Message("user", "HK"), ANSWER])
        == "腾讯的股价？"
    )


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([RULES, ASKED, call(), result(), ANSWER], []),
        ([RULES, ASKED, call(), result(ERROR), call(name="hk"), result(), ANSWER], []),
        (
            [RULES, ASKED, call('{"code":'), result(ERROR), call(call_id="c2"), result(call_id="c2"), ANSWER],
            [Mistake.MALFORMED_JSON],
        ),
        ([RULES, ASKED, call(), result(ERROR), Message("assistant", "ANSWER: none")], [Mistake.ENDS_ON_ERROR]),
        ([ASKED, call(), result("Error: user not found"), ANSWER], [Mistake.ENDS_ON_ERROR]),
        ([RULES, ASKED, call(), result()], [Mistake.NO_FINAL_LINE]),
        ([RULES, ASKED, Message("assistant", "It costs 1 HKD.")], [Mistake.NO_FINAL_LINE]),
        ([RULES, ASKED, Message("assistant", "ASK: market")], [Mistake.NO_FINAL_LINE]),
        ([ASKED, Message("assistant", "It costs 1 HKD.")], []),
        ([RULES, ASKED, call(), result(), call(call_id="c2"), result(call_id="c2"), ANSWER], [Mistake.REPEATED_CALL]),
        ([RULES, ASKED, *[Message("assistant", "ASK: market"), Message("user", "HK")] * 4, ANSWER], [TURNS]),
        # with a user: asked again, or after a call that may have changed something
        ([ASKED, call(), result(), ANSWER, ASKED, call(call_id="c2"), result(call_id="c2"), ANSWER], []),
        ([ASKED, call(), result(), *other(), call(call_id="c2"), result(call_id="c2"), ANSWER], []),
        ([ASKED, call(), result(), call(call_id="c2"), result("2", call_id="c2"), ANSWER], []),
        ([ASKED, call(), result("Error: closed"), ANSWER, Message("user", "Then not."), ANSWER], []),
    ],
)
def test_visible_mistakes(messages, found):
    assert list(mistakes(messages, StopReason.DONE, **LIMITS | {"num_tokens": 64})) == found


def test_a_repeated_call_is_a_mistake_behind_other_calls_that_change_nothing():
    again = [ASKED, call(), result(), *other(), call(call_id="c2"), result(call_id="c2"), ANSWER]
    wide = LIMITS | {"max_turns": 9}
    assert mistakes(again, StopReason.DONE, **wide, read_only={"hk"}) == (Mistake.REPEATED_CALL,)
    assert mistakes(again, StopReason.DONE, **wide, read_only={"quote"}) == ()


def test_a_stop_tool_ends_an_episode_without_a_last_word_and_its_context_holds_it():
    ended = [RULES, ASKED, call(name="transfer"), result("done")]
    assert mistakes(ended, StopReason.STOP_TOOL, **LIMITS) == ()
    assert mistakes([ASKED, ANSWER], StopReason.DONE, **LIMITS | {"num_tokens": 65}) == (Mistake.TOO_LONG,)


def test_too_many_dropped_demonstrations_are_refused_with_a_knob_for_each_reason():
    found = [(), (Mistake.TOO_LONG,), (Mistake.TOO_MANY_TURNS, Mistake.TOO_LONG), ()]
    refuse_too_many_dropped(found, max_dropped_frac=0.5, source=Path("d.parquet"))
    with pytest.raises(DataError) as caught:
        refuse_too_many_dropped(found, max_dropped_frac=0.4, source=Path("d.parquet"))
    for part in ("2 of 4", "40.0%", "too_long 2 (raise agent.max_context_tokens)", "too_many_turns 1"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="drops 1 of 1"):
        refuse_too_many_dropped(found[1:2], max_dropped_frac=1.0, source=Path("d.parquet"))


def test_alike_questions_in_chinese_are_neighbours_without_spaces_between_words():
    texts = [f"查一下{name}的股价" for name in ("腾讯", "美团", "茅台")]
    texts += [f"比较{names}谁更贵" for names in ("平安和招行", "中石油和中石化", "美的和格力")]
    points = features([(Message("user", text), ANSWER) for text in texts], seed=1)
    alike = points @ points.T
    assert all(alike[i, j] > alike[i, k] for i in range(3) for j in range(3) for k in range(3, 6))


def test_the_same_question_is_farther_from_a_play_with_other_steps_than_from_one_with_equal_steps():
    plays = [
        [call(), result()],
        [call('{"code":"y"}'), result()],
        [call(name="macd"), result(ERROR), call(name="bands"), result()],
    ]
    points = features([(ASKED, *play, ANSWER) for play in plays], seed=1)
    assert points[0] @ points[1] > 0.999
    assert points[0] @ points[2] < 0.9


def test_features_are_the_same_to_the_bit_for_any_number_of_threads(toy_rows):
    conversations = [one.trajectory.messages for one in toy_rows]
    found = []
    for num_threads in (1, 2):  # OpenBLAS starts as many as it is asked for, also on one core
        with threadpool_limits(num_threads):
            found.append(features(iter(conversations), seed=1).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_a_handful_of_rows_has_features_too(toy_rows, num_rows):
    conversations = [one.trajectory.messages for one in toy_rows[:num_rows]]
    assert np.isfinite(features(conversations, seed=1)).all()


def test_the_hardest_rows_are_kept_and_ties_go_to_the_earlier():
    assert choose_coreset(
        "loss_topk", keep=3, losses_N=np.array([1.0, 3, 2, 3, 2]), features_N_D=NOTHING, seed=1
    ).tolist() == [1, 2, 3]


def test_centres_cover_the_line():
    # On 0 1 2 9 10 the mean is 4.4, nearest to it is 2; the farthest from 2 is 10, then 0 (2 from
    # 2).
    line = np.array([[0.0], [1], [2], [9], [10]])
    assert choose_coreset("diversity", keep=2, losses_N=NOTHING, features_N_D=line, seed=1).tolist() == [2, 4]
    assert choose_coreset("diversity", keep=3, losses_N=NOTHING, features_N_D=line, seed=1).tolist() == [0, 2, 4]


def test_hybrid_covers_what_the_hardest_rows_left_uncovered():
    # Of 4, two by loss: 3 and 4, at 9 and 10. Farthest from them is 0, then 2 (2 from 0; 1 is 1
    # from 0).
    line = np.array([[0.0], [1], [2], [9], [10]])
    losses = np.array([0.0, 0, 0, 1, 2])
    assert choose_coreset("hybrid", keep=4, losses_N=losses, features_N_D=line, seed=1).tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize(("strategy", "given"), [("diversity", []), ("hybrid", [290, 291, 292, 293, 294])])
def test_each_centre_is_the_row_farthest_from_those_before(strategy, given):
    points, losses = np.random.default_rng(3).normal(size=(300, 16)), np.zeros(300)
    losses[given] = 1
    squared = ((points[:, None] - points[None]) ** 2).sum(axis=2)  # the table of all distances
    wanted = given or [int(np.argmin(((points - points.mean(axis=0)) ** 2).sum(axis=1)))]
    while len(wanted) < 10:
        wanted = [*wanted, int(np.argmax(squared[:, wanted].min(axis=1)))]
    chosen = choose_coreset(strategy, keep=10, losses_N=losses, features_N_D=points, seed=1)
    assert chosen.tolist() == sorted(wanted)


def test_equal_points_are_never_chosen_twice():
    chosen = choose_coreset("diversity", keep=4, losses_N=NOTHING, features_N_D=np.ones((5, 2)), seed=1)
    assert chosen.tolist() == [0, 1, 2, 3]


def test_random_is_seeded_and_without_repeats():
    chosen = [
        choose_coreset("random", keep=5, losses_N=np.zeros(20), features_N_D=NOTHING, seed=seed).tolist()
        for seed in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(set(chosen[0])) == 5


def test_at_least_one_row_is_kept():
    assert [num_kept(7, 0.2), num_kept(8, 0.2), num_kept(2, 0.1), num_kept(3, 1.0)] == [1, 2, 1, 3]


def is_english(one):
    return one.labels["language"] == "en"


@pytest.mark.parametrize(
    ("knobs", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_reward": 0.5}, [1, 2, 3]),
        ({"min_percentile": 50}, [1, 2, 3]),  # of 0.1, 0.6 and 1.0; the last has no reward
        ({"min_percentile": 90}, [2, 3]),
        ({"max_steps": 1}, [0, 2]),
        ({"function": f"{__name__}:is_english"}, [1, 3]),
        ({"min_reward": 0.9, "max_steps": 1}, [2]),
    ],
)
def test_further_demands_on_a_demonstration(knobs, kept):
    short, long = [ASKED, ANSWER], [ASKED, call(), result(), ANSWER]
    rewards = [0.1, 0.6, 1.0, None]
    rows = [
        replace(one, trajectory=replace(one.trajectory, reward=reward))
        for one, reward in zip(
            [row(*messages, language=language) for messages, language in ((short, "zh"), (long, "en")) * 2],
            rewards,
            strict=True,
        )
    ]
    is_kept = keeper(KeepParams(**knobs), rewards)
    assert [place for place, one in enumerate(rows) if is_kept(one)] == kept


def test_a_function_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"resample_data\.keep\.function is 'nowhere:f'"):
        keeper(KeepParams(function="nowhere:f"), [])


def test_lexical_diversity_is_of_the_agents_tokens():
    assert lexical_diversity(TokenRow([9, 9, 5, 6, 5, 5], [0, 0, 1, 1, 1, 1], [0] * 6)) == 0.5
    assert lexical_diversity(TokenRow([9], [0], [0])) == 0


def test_a_label_that_is_a_number_ranks_and_any_other_is_refused():
    told = replace(row(ASKED, ANSWER), labels={"loss": "0.25", "kind": "order", "odd": "nan"})
    assert number_of(told, "loss") == 0.25
    for label in ("kind", "odd", "missing"):
        with pytest.raises(DataError, match=f"rank_by is {label}"):
            number_of(told, label)
