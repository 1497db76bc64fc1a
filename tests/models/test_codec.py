"""A training row is what a rollout of the same episode sees, and only what the agent wrote is
trained on."""

import dataclasses
import json
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from posttrain.models.codec import ChatCodec, TokenRow
from posttrain.models.loading import load_codec
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message
from tests.models.episodes import TOOLS, asked_back, call, conversation

GOLDEN = Path(__file__).parents[1] / "golden"
EPISODES = {"calls": conversation(), "asked_back": asked_back()}


@pytest.fixture(params=["scratch", "qwen"])
def codec(request: pytest.FixtureRequest) -> ChatCodec:
    if request.param == "scratch":
        return request.getfixturevalue("scratch_codec")
    return load_codec(request.getfixturevalue("qwen_folder"))


def draw(codec: ChatCodec, row: TokenRow) -> str:
    """The text with ^ under each character whose tokens are trained on; ¶ is a line end, and lines
    without ^ stand alone."""
    lines, text, marks, pending = [], "", "", []
    for token, is_trained in zip(row.input_ids, row.mask, strict=True):
        pending.append(token)
        if (decoded := codec.decode(pending)).endswith("\N{REPLACEMENT CHARACTER}"):
            continue  # a part of a character
        for character in decoded:
            shown = "¶" if character == "\n" else character
            text += shown
            marks += ("^" if is_trained else " ") * (2 if unicodedata.east_asian_width(shown) in "WF" else 1)
            if character == "\n" or len(marks) > 140:
                lines += [text, marks.rstrip()]
                text, marks = "", ""
        pending = []
    return "\n".join(line for line in [*lines, text, marks.rstrip()] if line) + "\n"


def masked(codec: ChatCodec, row: TokenRow, value: int) -> str:
    return codec.decode([token for token, mask in zip(row.input_ids, row.mask, strict=True) if mask == value])


def ids_of_a_rollout(codec: ChatCodec, messages: Sequence[Message]) -> list[int]:
    """The ids of an engine: the prompt once, then each message as written and the results
    between."""
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    ids = codec.encode_prompt(messages[: turns[0]], TOOLS)
    for turn, next_turn in zip(turns, [*turns[1:], None], strict=True):
        ids += codec.encode_assistant(messages[turn])
        if next_turn is not None:
            ids += codec.encode_results(messages[turn + 1 : next_turn])
    return ids


def _objects(message: Message) -> dict[str, Any]:
    calls = [{"name": found.name, "arguments": json.loads(found.arguments)} for found in message.tool_calls]
    return {"tool_calls": [{"function": one} for one in calls]} if calls else {}


@pytest.mark.parametrize("episode", EPISODES)
def test_the_masks_are_drawn(codec: ChatCodec, episode: str, request: pytest.FixtureRequest) -> None:
    """Set UPDATE_GOLDEN=1 to draw them anew, then read the difference."""
    path = GOLDEN / f"row_{'scratch' if 'scratch' in request.node.name else 'qwen'}_{episode}.txt"
    drawn = draw(codec, codec.encode_row(EPISODES[episode], TOOLS))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(drawn, encoding="utf-8")
    assert drawn == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("episode", EPISODES)
def test_a_row_is_what_a_rollout_of_the_same_episode_sees(codec: ChatCodec, episode: str) -> None:
    assert codec.encode_row(EPISODES[episode], TOOLS).input_ids == ids_of_a_rollout(codec, EPISODES[episode])


@pytest.mark.parametrize("episode", EPISODES)
def test_the_scratch_template_renders_the_same_ids_and_mask_in_one_piece(
    scratch_tokenizer: PreTrainedTokenizerFast, episode: str
) -> None:
    row = ChatCodec(scratch_tokenizer).encode_row(EPISODES[episode], TOOLS)
    whole = scratch_tokenizer.apply_chat_template(
        [message.to_openai() for message in EPISODES[episode]],
        tools=list(TOOLS),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert row.input_ids == whole["input_ids"]
    assert row.mask == whole["assistant_masks"]


def test_a_template_that_rewrites_nothing_gives_the_same_text_in_one_piece(qwen_folder: Path) -> None:
    codec = load_codec(qwen_folder)
    messages = [dataclasses.replace(message, reasoning_content=None) for message in conversation()]
    whole = codec.tokenizer.apply_chat_template(
        [message.to_openai() | _objects(message) for message in messages], tools=list(TOOLS), tokenize=False
    )
    assert codec.decode(codec.encode_row(messages, TOOLS).input_ids) == whole.removesuffix("\n")


def test_what_the_agent_did_not_write_itself_is_read_and_not_learnt(codec: ChatCodec) -> None:
    messages = conversation()
    row, all_learnt = codec.encode_rows([(messages, TOOLS, {2}), (messages, TOOLS)])
    assert row.input_ids == all_learnt.input_ids
    num_first = len(codec.encode_assistant(messages[2]))
    start = all_learnt.mask.index(1)
    assert not any(row.mask[: start + num_first])
    assert row.mask[start + num_first :] == all_learnt.mask[start + num_first :]


def test_tokens_are_counted_as_reasoning_call_or_text(codec: ChatCodec) -> None:
    row = codec.encode_row(conversation(), TOOLS)
    assert row.mask == [int(category in (1, 2, 3)) for category in row.category]
    texts = {
        kind: codec.decode([token for token, found in zip(row.input_ids, row.category, strict=True) if found == kind])
        for kind in range(5)
    }
    assert texts[1].replace("\n", "") == "<think>HK</think>"
    assert texts[2].count("<tool_call>") == texts[2].count("</tool_call>") == 3
    assert texts[3].startswith("ANSWER: 7.20 HKD")
    results = [message.content for message in conversation() if message.role == "tool"]
    assert results
    assert all(result in texts[4] for result in results)
    assert texts[0] == codec.decode(codec.encode_prompt(conversation()[:2], TOOLS))
    assert "ANSWER" not in texts[2]


def test_the_last_token_of_each_agent_message_is_the_stop_token(codec: ChatCodec) -> None:
    for message in (message for message in conversation() if message.role == "assistant"):
        ids = codec.encode_assistant(message)
        assert ids[-1] in codec.stop_ids
        assert not set(ids[:-1]) & set(codec.stop_ids)


@pytest.mark.parametrize("episode", EPISODES)
def test_a_written_message_is_parsed_back(codec: ChatCodec, episode: str) -> None:
    """Spacing of arguments aside, which a template with `tojson` changes."""
    for message in (message for message in EPISODES[episode] if message.role == "assistant"):
        parsed = codec.parse(codec.encode_assistant(message))
        compact = (dataclasses.replace(one, arguments=one.arguments.replace(": ", ":")) for one in parsed.tool_calls)
        assert dataclasses.replace(parsed, tool_calls=tuple(compact)) == message


def test_brackets_nested_too_deep_for_a_template_stay_as_they_were_written(codec: ChatCodec) -> None:
    deep = '{"a":' + "[" * 900 + "]" * 900 + "}"
    message = Message("assistant", "", None, (call("search_stock", deep),))
    assert codec.parse(codec.encode_assistant(message)).tool_calls[0].arguments == deep
    wide = json.dumps({"a": [[1]] * 200})
    parsed = codec.parse(codec.encode_assistant(Message("assistant", "", None, (call("search_stock", wide),))))
    assert parsed.tool_calls[0].arguments == wide


def test_what_stands_behind_a_stop_token_is_not_said(codec: ChatCodec) -> None:
    ids = codec.encode_assistant(Message("assistant", "done"))
    assert codec.parse([*ids, *ids]) == Message("assistant", "done")
    assert codec.parse(ids[:-1]) == Message("assistant", "done")


def test_a_conversation_that_ends_with_a_result_ends_its_row_before_it(codec: ChatCodec) -> None:
    assert codec.encode_row(conversation()[:4], TOOLS) == codec.encode_row(conversation()[:3], TOOLS)


def test_a_conversation_without_an_agent_has_nothing_to_train_on(codec: ChatCodec) -> None:
    row = codec.encode_row(conversation()[:2], TOOLS)
    assert row.input_ids == codec.encode_prompt(conversation()[:2], TOOLS)
    assert not any(row.mask)


def test_many_rows_are_the_rows_one_by_one(codec: ChatCodec) -> None:
    conversations = [conversation(number) for number in range(5)] + [asked_back()]
    assert codec.encode_rows((messages, TOOLS) for messages in conversations) == [
        codec.encode_row(messages, TOOLS) for messages in conversations
    ]


def test_the_scratch_prompt_names_each_tool_in_one_token(scratch_codec: ChatCodec) -> None:
    prompt = scratch_codec.encode_prompt([Message("system", "long " * 100), Message("user", "")], TOOLS)
    assert len(prompt) == 1 + len(TOOLS) + 1 + 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("", "has no chat template"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", "does not mark the end"),
        ("{% for message in messages %}{{ message.content }}<|end|>{% endfor %}", "writes no tool call"),
        ("{{ strftime_now('%d') }}", "today's date"),
        (
            "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] "
            "%}[CALL]{{ call.function.arguments }}"
            "{% endfor %}<|end|>{% endfor %}",
            "in a format that is not read back",
        ),
    ],
)
def test_a_template_that_cannot_carry_an_agent_is_refused(
    template: str, reason: str, scratch_tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=scratch_tokenizer.backend_tokenizer, eos_token="<|end|>")
    tokenizer.chat_template = template
    with pytest.raises(ConfigurationError, match=reason):
        ChatCodec(tokenizer)
