import re

import pytest
from transformers import PreTrainedTokenizerFast

from posttrain.models.params import PrepareModelParams
from posttrain.models.scratch import scratch_model
from posttrain.models.warmup import copy_rows, warm_up
from posttrain.types import Message, ToolCall
from tests.models.episodes import SCRATCH_PARAMS, conversation

CONVERSATIONS = [conversation(number) for number in range(40)]


def texts_and_trained(tokenizer: PreTrainedTokenizerFast, count: int) -> list[tuple[str, str]]:
    rows = copy_rows(CONVERSATIONS, tokenizer, count=count, seed=1)
    return [
        (tokenizer.decode(ids), tokenizer.decode([label for label in labels if label != -100])) for ids, labels in rows
    ]


def test_half_of_the_rows_repeat_a_scrambled_result(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """Field by field, each behind a brace and on a line of its own as the demonstrations quote
    it."""
    num_repetitions = 0
    for text, trained in texts_and_trained(scratch_tokenizer, 90):
        found = re.fullmatch(r"<\|tool\|>(\{.*\})<\|assistant\|>((?:\{.*\}\n?)+)<\|end\|>", text)
        if found:
            shown, again = [dict(re.findall(r'"(\w+)":"?([^",}]+)', part)) for part in found.groups()]
            assert shown == again
            assert [dict(re.findall(r'"(\w+)":"?([^",}]+)', line)) for line in found[2].split("\n")] == [
                {key: again[key]} for key in again
            ]
            assert trained == "".join(again.values()) + found[2][-1 if found[2][-2] != '"' else -2 :] + "<|end|>"
            num_repetitions += 1
    assert 30 <= num_repetitions <= 60


def test_of_a_long_result_four_fields_are_asked_for(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """More and more others stand there as well: the real results have ten and more fields, among
    which the value has to be found."""
    result = '{"open":1.5,"high":2.5,"low":0.5,"close":1.0,"code":"000001.SZ","volume":7}'
    num_shown, in_order = [], []
    for ids, _ in copy_rows([[Message("tool", result)]], scratch_tokenizer, count=20, seed=1):
        before, after = (re.findall(r'"(\w+)":', part) for part in scratch_tokenizer.decode(ids).split("<|assistant|>"))
        assert before == [key for key in ("open", "high", "low", "close", "code", "volume") if key in before]
        assert len(after) == 4
        num_shown.append(len(before))
        in_order.append(after == [key for key in before if key in after])
    assert num_shown == sorted(num_shown)
    assert (num_shown[0], num_shown[-1]) == (4, 6)
    assert set(in_order) == {True, False}


def test_some_repeat_a_list_of_values(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """In order, every character is trained; in another order, not the first of a value, which
    nobody could know."""
    orders = set()
    for text, trained in texts_and_trained(scratch_tokenizer, 90):
        found = re.fullmatch(r"<\|user\|>(.*)<\|assistant\|>((?:\{[^{}]*\})+)<\|end\|>", text)
        if found:
            again = re.findall(r'"(?:name|code)":"([^"]*)"', found[2])
            listed = re.split(", |、| or |和", found[1])
            assert sorted(again) == sorted(listed)
            is_in_order = trained == "".join(again)
            assert is_in_order or trained == "".join(re.sub("^(?:[A-Z][a-z]+|.)", "", value) for value in again)
            assert again == listed or not is_in_order
            orders.add(is_in_order)
    assert orders == {True, False}


def test_some_call_with_what_a_message_says(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    sources = set()
    for text, trained in texts_and_trained(scratch_tokenizer, 90):
        if "<tool_call>" in text:
            source, message, calls = re.fullmatch(r"<\|(user|tool)\|>(.*)<\|assistant\|>(.*)<\|end\|>", text).groups()  # type: ignore[union-attr]
            sources.add(source)
            (value,) = re.findall(r'"(?:name|code)":"([^"]*)"\}\}</tool_call>', calls)
            assert value in message
            assert trained == value
    assert sources == {"user", "tool"}


def test_a_name_with_two_spellings_is_two_calls_in_their_order(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """A code that no message has said is no copy."""
    searches = [
        ToolCall(str(number), "search_stock", f'{{"name":"{name}"}}')
        for number, name in enumerate(["PlumShip", "JadeBell", "Gold"])
    ]
    messages = (
        Message("user", "PlumShip(JadeBell)?"),
        Message("tool", '{"found":"ShipPlumBellJade"}'),
        *(Message("assistant", tool_calls=(search,)) for search in searches),
    )
    texts = [scratch_tokenizer.decode(ids) for ids, _ in copy_rows([messages], scratch_tokenizer, count=24, seed=1)]
    found = [
        re.fullmatch(r"<\|user\|>(\w+)\((\w+)\)\?<\|assistant\|>(.*)<\|end\|>", text)
        for text in texts
        if "<tool_call>" in text
    ]
    assert found
    for match in found:
        assert match is not None
        assert re.findall(r'"arguments":\{"name":"(\w+)"', match[3]) == [match[1], match[2]]


def test_values_are_drawn_anew_and_keys_and_shapes_are_kept(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """Forty codes `000xx.HK` would teach that codes begin with three zeros."""
    codes = [
        code for text, _ in texts_and_trained(scratch_tokenizer, 60) for code in re.findall(r'"code":"([^"]*)"', text)
    ]
    assert all(re.fullmatch(r"\d{5}\.HK|\d{6}\.SH", code) for code in codes)
    assert len({code[:3] for code in codes}) > 5


def test_equal_seeds_give_equal_rows(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    one, same, other = (copy_rows(CONVERSATIONS, scratch_tokenizer, count=5, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize("content", ["sunny", "[1,2]", '{"bars":[{"open":1}]}', "{", ""])
def test_conversations_without_flat_results_warm_up_on_plain_ones(
    content: str, scratch_tokenizer: PreTrainedTokenizerFast
) -> None:
    ((ids, _),) = copy_rows([[Message("tool", content)]], scratch_tokenizer, count=1, seed=1)
    assert re.match(
        r'<\|tool\|>\{"code":00000|<\|tool\|>\{"code":\d{5},"value":\d\.\d\d\}', scratch_tokenizer.decode(ids)
    )


def test_warming_up_lowers_the_loss_and_ends_in_evaluation_mode(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    params = PrepareModelParams(warmup_steps=30, warmup_batch_size=8, lr=1.0e-2)
    model = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=256, seed=1)
    losses: list[float] = []
    rows = copy_rows(CONVERSATIONS, scratch_tokenizer, count=240, seed=1)
    warm_up(model, scratch_tokenizer, rows, params, on_step=lambda step, loss: losses.append(loss))
    assert len(losses) == 30
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]
    assert not model.training


def test_prices_that_begin_alike_still_do(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    """Else going on behind the last digits copied would always be right, as it is not in a
    quote."""
    result = [Message("tool", '{"open":92.68,"close":92.86,"change":-0.75}')]
    for ids, _ in copy_rows([result], scratch_tokenizer, count=20, seed=1):
        values = dict(re.findall(r'"(\w+)":(-?[\d.]+)', scratch_tokenizer.decode(ids).partition("<|assistant|>")[0]))
        assert values["open"][:3] == values["close"][:3]
        assert values["open"][3:] == values["close"][3:][::-1]
        assert values["change"].startswith("-")
