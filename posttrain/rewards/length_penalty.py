"""The score `length_penalty`: how far the agent wrote too much. Its weight is to be negative; it is
flat up to a reasonable length, so that it never pays to write less than is needed."""

from posttrain.types import Message, Score, Task, Trajectory
from posttrain.worlds.made_calls import agent_messages

FREE_TOKENS_PER_MESSAGE = 64  # a call with one sentence of reasoning; twice as many is too long altogether
BYTES_PER_TOKEN = 4  # of text whose tokens are not known (a text-only policy)


def length_penalty(trajectory: Trajectory, task: Task) -> Score:
    """0.0 up to `free` = 64 tokens for each message that was written, then rising linearly to 1.0
    at twice that: DAPO's overlong term (arXiv 2503.14476, eq. 13).

    A message with a call and an answer (128 free): 160 tokens cost (160 - 128) / 128 = 0.25.
    """
    del task  # the same measure for every task
    free = FREE_TOKENS_PER_MESSAGE * max(len(agent_messages(trajectory)), 1)
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
