"""Conversations and parameters that the tests of this folder share."""

import json
from typing import Any

from torch import Tensor

from posttrain.models.params import FullAdapter, ScratchModel
from posttrain.models.token_logprobs import agent_logprobs
from posttrain.types import Message, ToolCall
from tests.tiny import KNOBS

SCRATCH_PARAMS = ScratchModel(
    type="scratch", **KNOBS, adapter=FullAdapter(type="full"), gradient_checkpointing=False, dtype="float32"
)


def schema(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


TOOLS = tuple(schema(name) for name in ("search_stock", "get_quote", "get_hk_quote"))


def call(name: str, arguments: str, number: int = 0) -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments)


def conversation(number: int = 7, name: str = "Pine Crane") -> tuple[Message, ...]:
    """Reasoning, a search, two calls at once, a plain answer."""
    code = f"{number:05d}.HK"
    return (
        Message("system", "You are an agent for stocks."),
        Message("user", f"{name} 松鹤银行的最新价？"),
        Message("assistant", "", "HK", (call("search_stock", json.dumps({"name": name}, separators=(",", ":"))),)),
        Message("tool", f'{{"code":"{code}","name":"{name}"}}', tool_call_id="call_0"),
        Message(
            "assistant",
            "",
            None,
            (call("get_hk_quote", f'{{"code":"{code}"}}'), call("get_quote", '{"code":"600519.SH"}', 1)),
        ),
        Message("tool", f'{{"price":{number}.20,"currency":"HKD"}}', tool_call_id="call_0"),
        Message("tool", '{"price":1500.00,"currency":"CNY"}', tool_call_id="call_1"),
        Message("assistant", f"ANSWER: {number}.20 HKD"),
    )


def asked_back() -> tuple[Message, ...]:
    """The user answers, and a call that does not parse is answered with an error."""
    return (
        Message("system", "You are an agent for stocks."),
        Message("user", "鹤松科技 price"),
        Message("assistant", "ASK: market"),
        Message("user", "HK"),
        Message("assistant", "", None, (call("get_hk_quote", '{"code":"00007.HK"'),)),
        Message("tool", '{"error":"arguments are not valid JSON"}', tool_call_id="call_0"),
        Message("assistant", "ANSWER: none"),
    )


def logprobs(model: Any, rows: Tensor) -> Tensor:
    """Log-probabilities of every token but the first of each row."""
    return agent_logprobs(model, rows, rows)
