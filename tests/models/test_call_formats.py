"""Each form of calls: what a template of its family writes is read as what was said, and any text
becomes a message."""

import importlib.util
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.exits import ConfigurationError
from posttrain.models.call_formats.choice import FORMS
from posttrain.models.chat_template import named_template
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.models.parsing import parse_assistant
from posttrain.types import Message, ToolCall
from tests.models.episodes import TOOLS, call, conversation, schema

BY_NAME = {form.name: form for form in FORMS}

# In the manner of Mistral's: ids of nine letters, one list of calls, results with the id of theirs.
MISTRAL_LIKE = """
{%- for message in messages %}
{%- if message.role == "user" %}{{- "[INST]" + message.content + "[/INST]" }}
{%- elif message.role == "tool" %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif message.role == "assistant" %}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- if message.tool_calls %}{{- "[TOOL_CALLS][" }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception("Tool call IDs have nine letters!") }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}{{- "]" }}{%- endif %}{{- "<|im_end|>" }}
{%- endif %}{%- endfor %}
"""  # noqa: E501
NAMED_LIKE = MISTRAL_LIKE.replace('{{- "[TOOL_CALLS][" }}', "").replace('{{- "]" }}', "").replace('{{- ", " }}', "")
NAMED_LIKE = NAMED_LIKE.replace(
    """{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}""",  # noqa: E501
    """{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}""",
)


def trl_template(family: str) -> str:
    (package,) = importlib.util.find_spec("trl").submodule_search_locations
    return (Path(package) / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8")


TEMPLATES = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "llama3_2": "llama3_json",
    "mistral": "mistral",
    "mistral_named": "mistral",
    "lfm2_2_5_v2": "pythonic",
}


@pytest.fixture(scope="module", params=TEMPLATES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def codec(family: str, qwen_folder: Path) -> ChatCodec:
    """The template of a family with tokens that are bytes."""
    tokenizer = load_codec(qwen_folder).tokenizer
    ours = {"mistral": MISTRAL_LIKE.strip(), "mistral_named": NAMED_LIKE.strip()}
    tokenizer.chat_template = ours.get(family) or trl_template(family).replace("<|eot_id|>", "<|im_end|>")
    return ChatCodec(tokenizer)


WRITTEN = {
    "qwen2_5": '<tool_call>\n{"name": "search_stock", "arguments": {"name": "Pine Crane"}}\n</tool_call><|im_end|>',
    "llama3_2": '{"name": "search_stock", "parameters": {"name": "Pine Crane"}}<|im_end|>',
    "mistral": (
        '[TOOL_CALLS][{"name": "search_stock", "arguments": {"name": "Pine Crane"}, "id": "call00000"}]<|im_end|>'
    ),
    "mistral_named": '[TOOL_CALLS]search_stock[ARGS]{"name": "Pine Crane"}<|im_end|>',
    "lfm2_2_5_v2": "<|tool_call_start|>[search_stock(name='Pine Crane')]<|tool_call_end|><|im_end|>",
}


def test_a_call_is_written_as_the_family_writes_it(codec: ChatCodec, family: str) -> None:
    message = Message("assistant", "", None, (call("search_stock", '{"name":"Pine Crane"}'),))
    written = codec.decode(codec.encode_assistant(message))
    assert written.endswith(WRITTEN.get(family, WRITTEN["qwen2_5"]))
    assert "<think>" not in written or family == "qwen3"


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
    assert trained.count("<|im_end|>") == sum(one.role == "assistant" for one in messages)


def test_results_follow_calls_that_the_template_itself_would_refuse(codec: ChatCodec) -> None:
    """A policy writes two calls whatever its template says, and is answered."""
    results = [Message("tool", f"result {number}", tool_call_id=f"call_{number}") for number in range(2)]
    given = codec.decode(codec.encode_results(results))
    assert given.index("result 0") < given.index("result 1")


def as_said(message: Message) -> tuple[object, ...]:
    """Arguments by their value where they are JSON: pythonic spells them otherwise."""
    calls = []
    for one in message.tool_calls:
        try:
            calls.append((one.name, json.loads(one.arguments)))
        except ValueError:
            calls.append((one.name, one.arguments))
    return message.content, message.reasoning_content, calls


WORDS = [
    "price",
    "松鹤银行",
    "it's",
    'say "so"',
    "a\nb",
    "naïve",
    "🙂",
    "\\n",
    "[x](y)",
    "{}",
    "1,5",
    "",
    " ",
    "é\u0301",
]


def a_value(rng: random.Random, depth: int) -> object:
    kinds = ["text", "int", "float", "bool", "null"] + ["list", "dict"] * (depth < 3)
    match rng.choice(kinds):
        case "text":
            return " ".join(rng.choices(WORDS, k=rng.randint(1, 3)))
        case "int":
            return rng.randint(-(10**12), 10**12)
        case "float":
            return rng.choice([0.5, -1e-7, 2.0, 1e22])
        case "bool":
            return rng.random() < 0.5
        case "null":
            return None
        case "list":
            return [a_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(["code", "名", "a b", "k'"]): a_value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def a_message(rng: random.Random, form: str) -> Message:
    count = rng.choice([0, 1, 1, 2, 3]) if form != "llama3_json" else rng.choice([0, 1])
    calls = tuple(
        ToolCall(
            f"call_{number}",
            rng.choice(["get_quote", "search_stock"]),
            json.dumps({key: a_value(rng, 0) for key in rng.sample(["code", "name", "days"], rng.randint(0, 3))}),
        )
        for number in range(count)
    )
    is_alone = form == "llama3_json" and calls
    content = "" if is_alone else rng.choice(["", "I look.", "价格是 7.20", 'It says "so"'])
    reasoning = None if is_alone else rng.choice([None, "HK first", "先查港股"])
    return Message("assistant", content, reasoning, calls)


def test_a_thousand_messages_come_back(codec: ChatCodec, family: str) -> None:
    """Llama's templates leave out what is said beside a call, so none there has both."""
    rng = random.Random(0)
    for _ in range(1000):
        message = a_message(rng, TEMPLATES[family])
        assert as_said(codec.parse(codec.encode_assistant(message))) == as_said(message)


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


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
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
    rng = random.Random(2)
    for _ in range(1000):
        message = a_message(rng, "hermes")
        assert as_said(codec.parse(codec.encode_assistant(message))) == as_said(message)


def test_a_template_of_ours_wants_its_tokens_and_a_name_that_is_one(scratch_tokenizer, qwen_folder: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"compact is written with <\|im_start\|>, <\|im_end\|>, which the token"
    ):
        named_template("compact", scratch_tokenizer)
    with pytest.raises(ConfigurationError, match="'compcat'; there are compact, bare"):
        named_template("compcat", load_codec(qwen_folder).tokenizer)
