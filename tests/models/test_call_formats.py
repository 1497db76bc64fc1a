"""Each form of calls: what a template of its family writes is read as what was said, and any text
becomes a message."""

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.models.call_formats.response_template import response_template_of
from posttrain.models.chat_template import named_template
from posttrain.models.codec import ChatCodec, parse_assistant
from posttrain.models.loading import load_codec
from posttrain.models.rendering import FORMATS
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message
from tests.models.episodes import TOOLS, call, conversation, schema
from tests.models.families import ENDS, TEMPLATES, TYPED_TOOLS, a_message, codec_of, trl_template

BY_NAME = {form.name: form for form in FORMATS}

by_response_templates = pytest.mark.parametrize(
    "family", [family for family, form in TEMPLATES.items() if form == "hf"], indirect=True
)


@pytest.fixture(scope="module", params=TEMPLATES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def codec(family: str, qwen_folder: Path) -> ChatCodec:
    return codec_of(family, qwen_folder)


XML = (
    "<tool_call>\n<function=search_stock>\n<parameter=name>\nPine Crane\n</parameter>\n</function>\n</tool_call>"
    "<|im_end|>"
)
WRITTEN = {
    "qwen2_5": '<tool_call>\n{"name": "search_stock", "arguments": {"name": "Pine Crane"}}\n</tool_call><|im_end|>',
    "llama3_2": '{"name": "search_stock", "parameters": {"name": "Pine Crane"}}<|im_end|>',
    "mistral": (
        '[TOOL_CALLS][{"name": "search_stock", "arguments": {"name": "Pine Crane"}, "id": "call00000"}]<|im_end|>'
    ),
    "mistral_named": '[TOOL_CALLS]search_stock[ARGS]{"name": "Pine Crane"}<|im_end|>',
    "lfm2_2_5_v2": "<|tool_call_start|>[search_stock(name='Pine Crane')]<|tool_call_end|><|im_end|>",
    "qwen3_5_think": XML,
    "qwen3_8": XML,
    "glm4moe": (
        "<tool_call>search_stock\n<arg_key>name</arg_key>\n<arg_value>Pine Crane</arg_value>\n</tool_call>"
        "<|observation|>"
    ),
    "gemma4_v5": '<|tool_call>call:search_stock{name:<|"|>Pine Crane<|"|>}<tool_call|><|tool_response>',
}


def test_a_call_is_written_as_the_family_writes_it(codec: ChatCodec, family: str) -> None:
    message = Message("assistant", "", None, (call("search_stock", '{"name":"Pine Crane"}'),))
    assert codec.call_format.name == TEMPLATES[family]
    written = codec.decode(codec.encode_assistant(message))
    assert written.endswith(WRITTEN.get(family, WRITTEN["qwen2_5"]))
    assert ("<think>" in written) == (family in ("qwen3", "glm4moe"))


def test_an_episode_is_carried(codec: ChatCodec, family: str) -> None:
    messages = list(conversation())
    if family == "llama3_2":  # its template refuses several calls, and thoughts beside one
        messages[2] = replace(messages[2], reasoning_content=None)
        messages[4] = replace(messages[4], tool_calls=messages[4].tool_calls[:1])
        del messages[6]
    row = codec.encode_row(messages, TOOLS)
    trained = codec.decode([token for token, is_own in zip(row.input_ids, row.mask, strict=True) if is_own])
    assert "search_stock" in trained
    assert '"price"' not in trained  # a result
    ends = ENDS.get(family, ("<|im_end|>",))
    assert sum(map(trained.count, ends)) == sum(one.role == "assistant" for one in messages)


@by_response_templates
def test_a_row_is_what_the_template_writes(codec: ChatCodec, family: str) -> None:
    """The case that nobody speaks behind the agent's turns, so that no template takes its thoughts
    out."""
    said = conversation()[1:]
    whole = codec.tokenizer.apply_chat_template(
        [as_given(message) for message in said], tools=list(TOOLS), tokenize=False
    )
    text = codec.decode(codec.encode_row(said, TOOLS).input_ids)
    end = ENDS[family][0] if family in ENDS else "<|im_end|>"
    assert text.removesuffix(end) == whole.rstrip().removesuffix(end)


def as_given(message: Message) -> dict[str, object]:
    content = message.to_openai()
    for one in content.get("tool_calls", ()):
        one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return content


@by_response_templates
def test_what_is_no_object_stays_the_text_that_it_is(codec: ChatCodec) -> None:
    calls = (call("get_quote", '{"code":"00007.HK"'), call("get_quote", "[1]", 1))
    message = Message("assistant", "", "HK", calls)
    assert codec.parse(codec.encode_assistant(message), TYPED_TOOLS) == message


def test_results_follow_calls_that_the_template_itself_would_refuse(codec: ChatCodec) -> None:
    """A policy writes two calls whatever its template says, and is answered."""
    results = [Message("tool", f"result {number}", tool_call_id=f"call_{number}") for number in range(2)]
    given = codec.decode(codec.encode_results(results))
    assert given.index("result 0") < given.index("result 1")


def test_results_are_written_in_the_order_of_their_calls(codec: ChatCodec, family: str) -> None:
    """In whichever order they came, in play and in a row."""
    calls = tuple(call("search_stock", f'{{"name":"{number}"}}', number) for number in range(2))
    results = [Message("tool", f"result {one.id}", tool_call_id=one.id) for one in calls]
    asked = Message("user", "Then?")
    in_order = codec.encode_results([*results, asked], calls)
    assert codec.encode_results([*reversed(results), asked], calls) == in_order
    if family != "llama3_2":  # its template refuses several calls
        said = [
            Message("user", "Both?"),
            Message("assistant", "", None, calls),
            *results,
            Message("assistant", "Done."),
        ]
        turned = [*said[:2], *reversed(results), said[-1]]
        assert codec.encode_row(turned, TOOLS) == codec.encode_row(said, TOOLS)


def as_said(message: Message) -> tuple[object, ...]:
    """Arguments by their value where they are JSON: pythonic spells them otherwise."""
    calls = []
    for one in message.tool_calls:
        try:
            calls.append((one.name, json.loads(one.arguments)))
        except ValueError:
            calls.append((one.name, one.arguments))
    return message.content, message.reasoning_content, calls


def test_messages_of_every_shape_come_back(codec: ChatCodec, family: str) -> None:
    """Llama's templates leave out what is said beside a call, so none there has both."""
    rng = random.Random(0)
    for _ in range(200):
        message = a_message(rng, TEMPLATES[family])
        assert as_said(codec.parse(codec.encode_assistant(message), TYPED_TOOLS)) == as_said(message)


@pytest.mark.parametrize(("form", "text", "expected"), [
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
    ("llama3_json", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("f", "{}"), ("g", "{}")]),
    ("llama3_json", '{"name": "f", "parameters": {"a": ', [("f", '{"a":')]),
    ("llama3_json", '{"price": 7}', []),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', [("f", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', [("f", '{"a": 1}'), ("g", "{}")]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": ', [("f", '{"a":')]),
    ("pythonic", "[f(a='b'), g(n=-1, b=True, c=null)]", [("f", '{"a":"b"}'), ("g", '{"n":-1,"b":true,"c":null}')]),
    ("pythonic", "<|tool_call_start|>[f(a='it''s)]", [("f", "a='it''s")]),
    ("pythonic", "[f('b')]", [("f", "'b'")]),
    ("pythonic", "[1, 2]", []),
    ("pythonic", "[f(a=open('x'))]", [("f", "a=open('x')")]),
])  # fmt: skip
def test_what_others_write_is_read(form: str, text: str, expected: list[tuple[str, str]]) -> None:
    message = parse_assistant(text, BY_NAME[form])
    assert [(one.name, one.arguments) for one in message.tool_calls] == expected
    assert bool(message.content) == (not expected)


@pytest.mark.parametrize(("text", "expected"), [
    ("<tool_call><function=f><parameter=code>7</parameter></function></tool_call>", [("f", '{"code":"7"}')]),
    (
        "<tool_call>\n<function=f>\n<parameter=code>\n600519\n</parameter>\n<parameter=名>\n7\n</parameter>\n</function>",
        [("f", '{"code":"600519","名":7}')],
    ),
    ("I look.\n<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", "{}")]),
    ("<tool_call>\n<function=f>\n<parameter=code>\n7\n", [("f", "<parameter=code>\n7")]),
    (
        "<tool_call>\n<function=f>\n<parameter=code>\n7\n</function>\n</tool_call>",
        [("f", "<parameter=code>\n7\n</function>")],
    ),
    ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', []),
])  # fmt: skip
def test_what_a_response_template_cannot_read_stays_text(
    qwen_folder: Path, text: str, expected: list[tuple[str, str]]
) -> None:
    tokenizer = load_codec(qwen_folder).tokenizer
    tokenizer.chat_template = trl_template("qwen3_5_think")
    codec = ChatCodec(tokenizer)
    tools = [{"type": "function", "function": {**TYPED_TOOLS[0]["function"], "name": "f"}}]
    message = codec.parse(codec.tokenizer(text, add_special_tokens=False)["input_ids"], tools)
    assert [(one.name, one.arguments) for one in message.tool_calls] == expected
    assert message.content == ("" if text[0] == "<" and expected else text.partition("\n")[0] if expected else text)


@by_response_templates
def test_any_text_is_a_message_to_a_response_template(codec: ChatCodec) -> None:
    rng = random.Random(1)
    pieces = [piece for text in WRITTEN.values() for piece in (text, text[:20], text[7:], text[-12:])]
    pieces += ["<think>", "</think>", "[" * 5000, "{" * 5000, "1" * 5000, "NaN", "\x01", "\u2028", " " * 3000]
    for _ in range(200):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 4)))
        message = parse_assistant(text, codec.call_format, tools=TYPED_TOOLS)
        json.dumps([message.content, *(one.arguments for one in message.tool_calls)]).encode()


def test_a_response_template_of_no_use_is_refused(qwen_folder: Path) -> None:
    tokenizer = load_codec(qwen_folder).tokenizer
    tokenizer.chat_template = trl_template("qwen3_5_think") + "\n"  # nobody knows this one
    with pytest.raises(ConfigurationError, match="a format that is not read back"):
        ChatCodec(tokenizer)
    tokenizer.response_template = {"start_anchor": "a", "fields": {"content": {}}}
    with pytest.raises(ConfigurationError, match=r"describes no calls that could be read: KeyError\('tool_calls'\)"):
        ChatCodec(tokenizer)
    tokenizer.response_template = response_template_of(SimpleNamespace(chat_template=trl_template("gemma4_v5")))
    with pytest.raises(ConfigurationError, match="a format that is not read back"):
        ChatCodec(tokenizer)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_any_text_is_a_message(form) -> None:
    """Cut off, doubled and shuffled pieces of what the forms write; nesting beyond Python's."""
    rng = random.Random(1)
    pieces = [piece for text in WRITTEN.values() for piece in (text, text[:20], text[7:], text[-12:])]
    pieces += ["<think>", "</think>", "[" * 5000, "{" * 5000, "f(" * 3000, "\ud800", '"\\ud800"', "1" * 5000, "NaN"]
    for _ in range(500):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 4)))
        message = parse_assistant(text, form)
        json.dumps([message.content, *(one.arguments for one in message.tool_calls)]).encode()
        assert all("\ud800" not in one.arguments for one in message.tool_calls)


def test_what_a_template_would_leave_out_is_refused(codec: ChatCodec, family: str) -> None:
    message = Message("assistant", "I look.", None, (call("search_stock", "{}"),))
    if family == "llama3_2":
        with pytest.raises(ConfigurationError, match=r"leaves out what an agent says beside a call \('I look\.'\)"):
            codec.encode_assistant(message)
    else:
        assert codec.parse(codec.encode_assistant(message)) == message


COMPACT = (
    "<|im_start|>system\nYou are an agent for stocks.\n\nTools, as "
    '<tool_call>{"name":…,"arguments":{…}}</tool_call>:\n'
    "search_stock(code)\nget_quote(code, day?)\norder(code, side: buy|sell)<|im_end|>\n"
    "<|im_start|>user\nPine Crane 松鹤银行的最新价？<|im_end|>\n<|im_start|>assistant\n"
)


def test_the_compact_template_names_tools_by_their_signatures(qwen_folder: Path) -> None:
    tokenizer = load_codec(qwen_folder).tokenizer
    tokenizer.chat_template = named_template("compact", tokenizer)
    codec = ChatCodec(tokenizer)
    tools = [schema("search_stock"), schema("get_quote"), schema("order")]
    tools[1]["function"]["parameters"]["properties"]["day"] = {"type": "string"}
    order = tools[2]["function"]["parameters"]
    order["properties"]["side"], order["required"] = {"enum": ["buy", "sell"]}, ["code", "side"]
    assert codec.decode(codec.encode_prompt(conversation()[:2], tools)) == COMPACT
    tokenizer.chat_template = named_template("bare", tokenizer)
    bare = ChatCodec(tokenizer).encode_prompt(conversation()[:2], tools)
    assert codec.decode(bare) == COMPACT.replace("You are an agent for stocks.\n\n", "")
    for message in (one for one in conversation() if one.role == "assistant"):
        assert codec.parse(codec.encode_assistant(message)) == message


def test_a_template_of_ours_wants_its_tokens_and_a_name_that_is_one(scratch_tokenizer, qwen_folder: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"compact is written with <\|im_start\|>, <\|im_end\|>, which the token"
    ):
        named_template("compact", scratch_tokenizer)
    with pytest.raises(ConfigurationError, match="'compcat'; there are compact, bare"):
        named_template("compcat", load_codec(qwen_folder).tokenizer)
