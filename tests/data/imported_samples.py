"""One small record of each format that can be imported, as its tools write them."""

import json
from typing import Any

Record = dict[str, Any]
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_BARE = {"name": "quote", "description": "Price of a share.", "parameters": _CODE}
QUOTE = {"type": "function", "function": _BARE}
_ARGUMENTS = {"code": "00700.HK"}
_FUNCTION = {"name": "quote", "arguments": json.dumps(_ARGUMENTS)}


def _message(role: str, content: Any, **others: Any) -> Record:
    return {"role": role, "content": content, **others}


def _turns(*turns: tuple[str, str]) -> list[Record]:
    """ShareGPT's."""
    return [{"from": author, "value": value} for author, value in turns]


def _tau2(role: str, content: Any, **others: Any) -> Record:
    return _message(role, content, **{} if role == "tool" else {"tool_calls": None}, **others)


_OPENAI = [
    _message("developer", "rules"),
    _message("user", [{"type": "text", "text": "Tencent"}, {"type": "text", "text": "?"}]),
    _message("assistant", None, tool_calls=[{"type": "function", "function": _FUNCTION, "id": "c1"}]),
    _message("tool", "380.20", tool_call_id="c1"),
    _message("assistant", "380.20"),
]
_OLDER = [
    _message("user", "Tencent?"),
    _message("assistant", None, function_call=_FUNCTION),
    _message("function", "380.20", name="quote"),
    _message("assistant", "Let me see.", weight=0),
    _message("user", "Well?"),
    _message("assistant", "380.20", weight=1),
]
_THINKS = [
    {"type": "thinking", "thinking": "HK", "signature": "x"},
    {"type": "text", "text": "One moment."},
    {"type": "tool_use", "id": "toolu_1", "name": "quote", "input": _ARGUMENTS},
]
_HEARS = [
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "380.20"}]},
    {"type": "text", "text": "And now?"},
]
_ANTHROPIC = [
    _message("user", "Tencent?"),
    _message("assistant", _THINKS),
    _message("user", _HEARS),
    _message("assistant", "380.20"),
]
_ASKED_BACK = [_message("user", "Tencent?"), _message("assistant", "Which market?"), _message("user", "HK")]
_HERMES = _turns(
    ("system", f"You call functions. <tools>{json.dumps([QUOTE])}</tools>"),
    ("human", "Tencent?"),
    (
        "gpt",
        "<think>\nHK\n</think>\n<tool_call>\n{'name': 'quote', 'arguments': {'code': '00700.HK'}}"
        '\n</tool_call>\n<tool_call>\n{"name": "quote", "arguments": {"code": "a"}}\n</tool_call>',
    ),
    (
        "tool",
        '<tool_response>\n{"name": "quote", "content": {"price": 380.2}}\n</tool_response>\n'
        "<tool_response>\nnone\n</tool_response>",
    ),
    ("gpt", "380.20"),
)
_SHAREGPT = _turns(
    ("human", "Tencent?"),
    ("function_call", json.dumps({"name": "quote", "arguments": _ARGUMENTS})),
    ("observation", "380.20"),
    ("gpt", "380.20"),
)
_XLAM_PARAMETERS = {
    "code": {"description": "Listing.", "type": "str"},
    "days": {"description": "Days.", "type": "List[int], optional", "default": []},
}
_XLAM_TOOLS = [{"name": "quote", "description": "Price.", "parameters": _XLAM_PARAMETERS}]
_AGENTGYM = [
    {"from": "human", "loss": None, "value": "You are web shopping."},
    {"from": "gpt", "loss": False, "value": "Ok."},
    {"from": "human", "loss": None, "value": "Find a kettle."},
    {"from": "gpt", "loss": True, "value": "Thought:\nSearch.\n\nAction:\nsearch[kettle]"},
]
_LOOK = {"id": "u1", "name": "look", "arguments": {}, "requestor": "user"}
_SIMULATION = {
    "id": "s1",
    "task_id": "3",
    "trial": 2,
    "seed": None,
    "termination_reason": "user_stop",
    "reward_info": {"reward": 1.0},
    "messages": [
        _tau2("assistant", "Hi! How can I help you?"),
        _tau2("user", "Tencent?"),
        _message("user", None, tool_calls=[_LOOK]),
        _tau2("tool", "my phone", id="u1", requestor="user", error=False),
        _message(
            "assistant",
            None,
            tool_calls=[{"id": "c1", "name": "quote", "arguments": _ARGUMENTS, "requestor": "assistant"}],
        ),
        _tau2("tool", "380.20", id="c1", requestor="assistant", error=False),
        _tau2("assistant", "380.20"),
        _tau2("user", "###STOP###"),
    ],
}
_TRANSFER = {"id": "c1", "type": "function", "function": {"name": "transfer_to_human_agents", "arguments": "{}"}}
_TAU_BENCH = [
    _message("system", "rules"),
    _message("user", "Tencent?"),
    _message("assistant", None, tool_calls=[_TRANSFER]),
    _message("tool", "ok", tool_call_id="c1"),
]
_BFCL_TURN = {
    "begin_of_turn_query": [_message("user", "Tencent?")],
    "step_0": [
        _message("assistant", [{"quote": '{"code": "00700.HK"}'}]),
        _message("handler_log", "ok", model_response_decoded=["quote(code='00700.HK')"]),
        _message("tool", "380.20"),
    ],
    "step_1": [_message("assistant", "380.20"), _message("handler_log", "Error decoding.", error="x")],
}

SAMPLES: dict[str, tuple[str, Record]] = {
    "openai": ("openai", {"messages": _OPENAI, "tools": [QUOTE], "reward": 1.0}),
    "openai, older": ("openai", {"messages": _OLDER, "functions": [_BARE]}),
    "anthropic": (
        "openai",
        {
            "system": "rules",
            "messages": _ANTHROPIC,
            "tools": [{"name": "quote", "description": "Price.", "input_schema": _CODE}],
        },
    ),
    "trl": (
        "trl",
        {
            "prompt": _ASKED_BACK,
            "chosen": [_message("assistant", "380.20")],
            "rejected": [_message("assistant", "no")],
            "tools": json.dumps([QUOTE]),
        },
    ),
    "hermes": ("sharegpt", {"id": "h1", "conversations": _HERMES}),
    "sharegpt": ("sharegpt", {"conversations": _SHAREGPT, "system": "rules", "tools": json.dumps([_BARE])}),
    "xlam": (
        "xlam",
        {
            "id": 0,
            "query": "Tencent?",
            "tools": json.dumps(_XLAM_TOOLS),
            "answers": json.dumps([{"name": "quote", "arguments": _ARGUMENTS}]),
        },
    ),
    "agentgym": ("agentgym", {"item_id": "webshop_0", "conversations": _AGENTGYM}),
    "tau2": (
        "tau2",
        {
            "info": {"environment_info": {"domain_name": "airline", "policy": "rules"}},
            "tasks": [],
            "simulations": [_SIMULATION],
        },
    ),
    "tau_bench": ("tau_bench", {"task_id": 0, "trial": 1, "reward": 0.0, "info": {}, "traj": _TAU_BENCH}),
    "bfcl": (
        "bfcl",
        {
            "id": "multi_turn_base_0",
            "result": [[[{"quote": '{"code": "00700.HK"}'}], "380.20"]],
            "inference_log": [[{"role": "state_info", "class_name": "Market", "content": {}}], _BFCL_TURN],
        },
    ),
}
