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


def _span(number: int, parent: int, *events: Record, **attributes: Any) -> Record:
    """OTLP's; `__` stands for a dot."""
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in named.items()}
    typed = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]
    ids = {"traceId": "5b8a", "spanId": str(number), "parentSpanId": str(parent), "startTimeUnixNano": f"{number}000"}
    return {**ids, "attributes": typed, "events": list(events)}


def _part(kind: str, **others: Any) -> Record:
    return {"type": kind, **others}


_ASKED = {"role": "user", "parts": [_part("text", content="Tencent?")]}
_CALLS = {"role": "assistant", "parts": [_part("tool_call", id="c1", name="quote", arguments=_ARGUMENTS)]}
_THINKS_FIRST = {**_CALLS, "parts": [_part("reasoning", content="HK"), *_CALLS["parts"]], "finish_reason": "tool_call"}
_ANSWERED = {"role": "tool", "parts": [_part("tool_call_response", id="c1", result="380.20")]}
_SAYS = {"role": "assistant", "parts": [_part("text", content="380.20")], "finish_reason": "stop"}
_CHAT = {
    "gen_ai__operation__name": "chat",
    "gen_ai__system_instructions": [_part("text", content="rules")],
    "gen_ai__tool__definitions": [{"type": "function", **_BARE}],
}
_PASSED = {"gen_ai.evaluation.name": "resolved", "gen_ai.evaluation.score.label": "pass"}
_EVALUATED = {
    "name": "gen_ai.evaluation.result",
    "attributes": [{"key": key, "value": {"stringValue": text}} for key, text in _PASSED.items()],
}
_SPANS = [
    _span(1, 0, _EVALUATED, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="broker"),
    _span(2, 1, **_CHAT, gen_ai__input__messages=[_ASKED], gen_ai__output__messages=[_THINKS_FIRST]),
    _span(
        3, 1, gen_ai__operation__name="execute_tool", gen_ai__tool__name="quote", gen_ai__tool__call__result="380.20"
    ),
    _span(4, 1, **_CHAT, gen_ai__input__messages=[_ASKED, _CALLS, _ANSWERED], gen_ai__output__messages=[_SAYS]),
]
_FLAT_MESSAGES = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "Tencent?",
    "llm.input_messages.1.message.role": "assistant",
    "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c1",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "quote",
    "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": json.dumps(_ARGUMENTS),
    "llm.input_messages.2.message.role": "tool",
    "llm.input_messages.2.message.content": "380.20",
    "llm.input_messages.2.message.tool_call_id": "c1",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "380.20",
    "llm.tools.0.tool.json_schema": json.dumps(QUOTE),
}
_ATIF_CALL = {"tool_call_id": "c1", "function_name": "quote", "arguments": _ARGUMENTS}
_ATIF_STEPS: list[Record] = [
    {"source": "system", "message": "rules"},
    {"source": "user", "message": "Hi"},
    {"source": "agent", "message": "Hello.", "is_copied_context": True},
    {"source": "user", "message": [{"type": "text", "text": "Tencent?"}]},
    {
        "source": "agent",
        "message": "",
        "reasoning_content": "HK",
        "tool_calls": [_ATIF_CALL],
        "observation": {"results": [{"source_call_id": "c1", "content": "380.20"}]},
        "metrics": {"prompt_token_ids": [1, 2], "completion_token_ids": [3], "logprobs": [-0.5]},
    },
    {
        "source": "agent",
        "message": "380.20",
        "metrics": {"prompt_token_ids": [1, 2, 3, 4], "completion_token_ids": [5, 6], "logprobs": [-1.0, -2.0]},
    },
]
_ATIF = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s",
    "agent": {"name": "broker", "version": "1", "tool_definitions": [QUOTE]},
    "steps": [{"step_id": number, **step} for number, step in enumerate(_ATIF_STEPS, 1)],
    "final_metrics": {"total_prompt_tokens": 6, "extra": {"reward": 0.5}},
}
_BASH = {"type": "function", "id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
_SUBMIT = {"type": "function", "id": "c2", "function": {"name": "submit", "arguments": "{}"}}
_SWE_HISTORY: list[Record] = [
    _message("system", "rules", agent="main", message_type="system_prompt"),
    _message("user", "fix it", agent="main", message_type="observation"),
    _message(
        "assistant", "I look.", agent="main", thought="I look.", action="ls", tool_calls=[_BASH], message_type="action"
    ),
    _message(
        "tool", [{"type": "text", "text": "a.py"}], agent="main", message_type="observation", tool_call_ids=["c1"]
    ),
    _message(
        "assistant",
        "Done.",
        agent="main",
        thought="Done.",
        action="submit",
        tool_calls=[_SUBMIT],
        message_type="action",
    ),
]
_SWE_STEP = {
    "action": "ls",
    "observation": "a.py",
    "response": "I look.",
    "thought": "I look.",
    "state": {},
    "query": [],
}
_SWE_AGENT = {
    "environment": "main",
    "trajectory": [_SWE_STEP],
    "history": _SWE_HISTORY,
    "info": {"exit_status": "submitted", "submission": "diff", "model_stats": {"api_calls": 2}},
    "replay_config": json.dumps({"problem_statement": {"id": "repo-1", "text": "fix it"}}),
}


def _event(number: int, source: str, **others: Any) -> Record:
    return {
        "id": number,
        "timestamp": "2025-01-01T00:00:00",
        "source": source,
        "message": "shown to a person",
        **others,
    }


def _called(call: Record, content: str) -> Record:
    response = {"id": f"r{call['id']}", "choices": [{"message": _message("assistant", content, tool_calls=[call])}]}
    names = {"function_name": call["function"]["name"], "tool_call_id": call["id"]}
    return {"tool_call_metadata": {**names, "model_response": response, "total_calls_in_response": 1}}


_FINISH = {"type": "function", "id": "c2", "function": {"name": "finish", "arguments": '{"message": "fixed"}'}}
_OPENHANDS = {
    "instance_id": "repo-1",
    "instruction": "fix it",
    "metadata": {"agent_class": "CodeActAgent"},
    "history": [
        _event(0, "agent", action="system", args={"content": "rules"}),
        _event(1, "user", action="message", args={"content": "fix it"}),
        _event(2, "environment", observation="agent_state_changed", content="", extras={"agent_state": "running"}),
        _event(3, "agent", action="run", args={"command": "ls", "thought": "I look."}, **_called(_BASH, "I look.")),
        _event(4, "agent", observation="run", cause=3, content="a.py", **_called(_BASH, "I look.")),
        _event(5, "agent", action="finish", args={"final_thought": "fixed"}, **_called(_FINISH, "")),
    ],
    "test_result": {"git_patch": "diff", "report": {"resolved": True}},
}

_REACT: list[Record] = [
    {"thought": "HK", "action": "quote", "action_input": _ARGUMENTS, "observation": "380.20"},
    {"thought": "", "action": "Final Answer", "action_input": "380.20"},
]

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
    "alpaca": ("alpaca", {"instruction": "Tencent?", "input": "In Hong Kong.", "output": "380.20"}),
    "react": ("react", {"question": "Tencent?", "steps": _REACT, "final_reward": 0.5}),
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
    "otel": ("otel", {"resourceSpans": [{"scopeSpans": [{"spans": _SPANS}]}]}),
    "otel, openinference": ("otel", {"name": "llm", "context": {"trace_id": "1"}, "attributes": _FLAT_MESSAGES}),
    "atif": ("atif", _ATIF),
    "swe_agent": ("swe_agent", _SWE_AGENT),
    "openhands": ("openhands", _OPENHANDS),
}
