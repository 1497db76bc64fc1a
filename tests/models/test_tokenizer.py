"""A value has the same tokens wherever it stands, or it cannot be copied."""

from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from posttrain.models.loading import save_model
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message
from tests.models.episodes import SCRATCH_PARAMS, TOOLS, asked_back, conversation

NAMES = [tool["function"]["name"] for tool in TOOLS]


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """The text of each token; � where a token is a part of a character."""
    return [tokenizer.decode([token]) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def train(conversations: Sequence[Sequence[Message]], vocab_size: int = 500) -> PreTrainedTokenizerFast:
    return train_tokenizer(conversations, tool_names=NAMES, vocab_size=vocab_size, max_length=256)


def test_a_result_of_brackets_without_an_end_names_nobody() -> None:
    told = Message("tool", "[" * 5000 + "]" * 5000, tool_call_id="call_0")
    assert len(train([[*conversation()[:3], told, Message("assistant", "done")]])) > 256


def test_every_digit_and_every_han_character_is_one_token(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    assert pieces(scratch_tokenizer, "松鹤银行600519") == ["松", "鹤", "银", "行", "6", "0", "0", "5", "1", "9"]


def test_tool_names_and_markers_are_one_token_each(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    text = '<|tools|>get_hk_quoteget_quote<|user|><think></think><tool_call>{"name":"search_stock'
    expected = '<|tools|> get_hk_quote get_quote <|user|> <think> </think> <tool_call> {"name":" search_stock'
    assert pieces(scratch_tokenizer, text) == expected.split()


def test_a_code_and_a_name_have_the_same_tokens_in_a_question_a_call_and_a_result(
    scratch_tokenizer: PreTrainedTokenizerFast,
) -> None:
    for value in ("00700.HK", "Quartz Umbrella", "松鹤", "1500.00"):
        alone = pieces(scratch_tokenizer, value)
        for text in (
            f"price of {value} now",
            f'","arguments":{{"code":"{value}"}}}}',
            f'{{"code":"{value}","name":"x"}}',
            f"({value})",
            f"-{value}",
        ):
            found = pieces(scratch_tokenizer, text)
            assert any(found[start : start + len(alone)] == alone for start in range(len(found))), text


def test_spaces_and_the_marks_of_codes_are_split_off(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    assert pieces(scratch_tokenizer, "HK (-7.HK) ") == ["HK", " ", "(", "-", "7", ".", "HK", ")", " "]


TEXTS = ["龘靐 unseen", "naïve café ✓", "\t\r\n\0", "\U0001f469\u200d\U0001f469\u200d\U0001f467"]
TEXTS += ["sh600519  two  spaces", '"},{"x":[["', "０１２", "\u202eabc"]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_way_there_and_back(scratch_tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = scratch_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert scratch_tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_an_unseen_han_character_is_its_three_bytes(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(scratch_tokenizer("龘", add_special_tokens=False)["input_ids"]) == 3


def test_a_word_of_one_name_does_not_become_a_token_and_a_word_of_many_names_does() -> None:
    """Five different names share `Pine`; `Zephyr` is one company's, however often it is spoken
    of."""
    spoken = [conversation(number, "Zephyr Pine") for number in range(40)]
    others = [conversation(number, f"Pine {letters}") for number, letters in enumerate(("Xa", "Xb", "Xc", "Xd"))]
    tokenizer = train([*spoken, *others])
    assert pieces(tokenizer, "Pine")[0] == "Pine"
    assert len(pieces(tokenizer, "Zephyr")) == 6


def test_names_in_lists_and_in_arguments_count_as_names() -> None:
    """A search answers with a list, and five companies found are five names."""
    found = [
        (Message("user", "Get it"), Message("tool", f'[{{"code":"1","name":"Birch {letters}"}}]'))
        for letters in ("Xa", "Xb", "Xc", "Xd", "Xe")
    ]
    assert pieces(train(found * 10), "Birch") == ["Birch"]
    assert len(pieces(train(found[:4] * 10), "Birch")) == 5


def test_equal_conversations_give_equal_bytes(tmp_path) -> None:
    for name in ("one", "two"):
        tokenizer = train([conversation(number) for number in range(40)])
        model = scratch_model(SCRATCH_PARAMS, tokenizer=tokenizer, max_context_tokens=256, seed=3)
        save_model(model, tokenizer, tmp_path / name)
    for file in sorted(path.name for path in (tmp_path / "one").iterdir()):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_a_vocabulary_without_room_for_the_characters_is_refused_with_the_size_it_needs() -> None:
    many = [Message("user", "".join(chr(0x4E00 + index) for index in range(300)))]
    with pytest.raises(
        ConfigurationError,
        match=r"vocab_size is 500, but the conversations need 569: 256 bytes, 13 markers and tool names, 300",
    ):
        train([many])


def test_the_system_text_leaves_no_token() -> None:
    """A model from scratch never reads it."""
    tokenizer = train([[Message("system", "Obsequious"), *asked_back()[1:]]] * 40)
    assert len(pieces(tokenizer, "Obsequious")) > 3
