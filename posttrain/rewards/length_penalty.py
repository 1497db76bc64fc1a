"""Scores how far the agent wrote too much. Weigh it below zero; it is flat where the length is
reasonable, so that it never pays to say less than is needed."""

from posttrain.rewards.agent_actions import agent_messages, steps_needed
from posttrain.types import Message, Score, Task, Trajectory

FREE_TOKENS_PER_STEP = 64  # a call with one sentence of reasoning; twice as many is too long altogether
BYTES_PER_TOKEN = 4  # of text whose tokens are not known (a text-only policy)


def length_penalty(trajectory: Trajectory, task: Task) -> Score:
    """0.0 up to `free` = 64 tokens per needed step, then rising linearly to 1.0 at twice that:
    DAPO's overlong term (arXiv 2503.14476, eq. 13).

    One call and an answer (2 steps, 128 free): 160 tokens cost (160 - 128) / 128 = 0.25.
    """
    free = FREE_TOKENS_PER_STEP * steps_needed(task.gold)
    written = (
        sum(trajectory.mask)
        if trajectory.mask
        else sum(_num_bytes(message) for _, message in agent_messages(trajectory)) / BYTES_PER_TOKEN
    )
    value = min(max(written - free, 0) / free, 1.0)
    return Score(
        value,
        {"tokens_free": float(free), "tokens_written": float(written)},
        f"{written:.0f} tokens where {free} do." if value else "",
    )


def _num_bytes(message: Message) -> int:
    calls = [call.name + call.arguments for call in message.tool_calls]
    return len("".join([message.content, message.reasoning_content or "", *calls]).encode())
