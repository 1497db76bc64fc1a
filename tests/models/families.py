"""Families of models by their chat templates, and messages as their agents could write them."""

import importlib.util
import json
import random
from pathlib import Path
from types import SimpleNamespace

from tokenizers import AddedToken

from posttrain.models.call_formats.response_template import response_template_of
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.types import Message, ToolCall
from tests.models.episodes import schema

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
    "qwen3_5_think": "hf",
    "qwen3_8": "hf",
    "glm4moe": "hf",
    "gemma4_v5": "hf",
}
# of families whose marks Qwen2.5's vocabulary has not
MARKS = {
    "glm4moe": ["<|user|>", "<|observation|>", "<|assistant|>", "<think>", "</think>"],
    "gemma4_v5": [
        *("<|turn>", "<turn|>", "<|channel>", "<channel|>", '<|"|>'),
        *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    ],
}
ENDS = {"glm4moe": ("<|user|>", "<|observation|>"), "gemma4_v5": ("<turn|>", "<|tool_response>")}


def codec_of(family: str, folder: Path) -> ChatCodec:
    """The template of a family with the tokens of `folder`, and its own marks."""
    tokenizer = load_codec(folder).tokenizer
    ours = {"mistral": MISTRAL_LIKE.strip(), "mistral_named": NAMED_LIKE.strip()}
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS.get(family, ())])
    written = ours.get(family) or trl_template(family)
    if TEMPLATES[family] == "hf":  # TRL knows it by its text
        tokenizer.response_template = response_template_of(SimpleNamespace(chat_template=written))
    tokenizer.chat_template = written.replace("<|eot_id|>", "<|im_end|>").replace("{{- bos_token -}}", "")
    return ChatCodec(tokenizer)


WORDS = ["price", "松鹤银行", "it's", 'say "so"', "a\nb", "naïve", "🙂"]
WORDS += ["\\n", "[x](y)", "{}", "1,5", "", " ", "é\u0301"]


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


# without quotes only a schema tells a text from a number, and white space around it is lost
TYPED = {
    "code": ("string", [word.strip() for word in WORDS]),
    "名": ("integer", [0, -7, 10**12]),
    "price": ("number", [0.5, -1e-7, 2.0, 1e22, 3]),
    "is_hk": ("boolean", [True, False]),
    "day": (["integer", "null"], [None, 5]),
    "days": ("array", [[], [1, "x", None], [["a"], {"k": "it's"}]]),
    "filter": ("object", [{}, {"a": {"b": [True, "价"]}, "c_1": 'say "so"'}]),
}
TYPED_TOOLS = [schema(name) for name in ("get_quote", "search_stock")]
for tool in TYPED_TOOLS:
    tool["function"]["parameters"] = {
        "type": "object",
        "properties": {key: {"type": kind} for key, (kind, _) in TYPED.items()},
    }


def arguments(rng: random.Random, form: str) -> dict[str, object]:
    if form == "hf":
        return {key: rng.choice(TYPED[key][1]) for key in rng.sample(list(TYPED), rng.randint(0, 4))}
    return {key: a_value(rng, 0) for key in rng.sample(["code", "name", "days"], rng.randint(0, 3))}


def a_message(rng: random.Random, form: str) -> Message:
    count = rng.choice([0, 1, 1, 2, 3]) if form != "llama3_json" else rng.choice([0, 1])
    calls = tuple(
        ToolCall(f"call_{number}", rng.choice(["get_quote", "search_stock"]), json.dumps(arguments(rng, form)))
        for number in range(count)
    )
    is_alone = form == "llama3_json" and calls
    content = "" if is_alone else rng.choice(["", "I look.", "价格是 7.20", 'It says "so"'])
    reasoning = None if is_alone else rng.choice([None, "HK first", "先查港股"])
    return Message("assistant", content, reasoning, calls)
