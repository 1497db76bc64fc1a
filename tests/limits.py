"""An agent's limits for tests: the three that matter to most of them, the others wide."""

from dataclasses import replace

from posttrain.rollout.params import AgentParams
from posttrain.types import Message, Task


def limits_of(max_turns: int, max_new_tokens: int, max_context_tokens: int, **others: float) -> AgentParams:
    wide = {
        "max_seconds": 60.0,
        "tool_timeout_s": 10.0,
        "tool_retries": 0,
        "max_result_chars": 10_000,
        "max_aborted_frac": 0.0,
    }
    return AgentParams(
        max_turns=max_turns, max_new_tokens=max_new_tokens, max_context_tokens=max_context_tokens, **wide | others
    )


def endless(task: Task) -> Task:
    """The same with a question that no small model's context has room for."""
    return replace(task, messages=(*task.messages, Message("user", "and so on " * 10_000)))
