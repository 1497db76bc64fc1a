"""Memory of an agent whose episode outgrows its context: older turns are left out of what it reads.

A window is what the agent reads from one cut to the next: the opening messages, the turns kept from
before, and those that it then writes. With `notes` the opening also lists what it has written by
the tool `remember` so far. Cuts depend on the number of turns alone, so a demonstration is cut
where an episode of the agent's would be. Each window is a training row of its own, in which the
turns kept from before are context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from posttrain.data.schemas import TrajectoryRow
from posttrain.rollout.params import Memory, NoMemory, NotesMemory
from posttrain.types import Message, Turn
from posttrain.worlds.tools import json_object

REMEMBER, NOTE = "remember", "note"  # the tool, and its argument


@dataclass(frozen=True, slots=True)
class Window:
    """Numbers of turns: the first that is read, and the first that is written in this window."""

    shown: int
    new: int


def windows_of(num_turns: int, memory: Memory) -> list[Window]:
    """The windows of the turns 0 … `num_turns`, the last of which is still to be written. With at
    most 4 turns and 1 kept: turns 0 … 3, then 3 … 6 of which 3 is kept, …"""
    found = [Window(0, 0)]
    if isinstance(memory, NoMemory):
        return found
    while num_turns - found[-1].shown >= memory.max_turns:
        new = found[-1].shown + memory.max_turns
        found.append(Window(new - memory.keep_turns, new))
    return found


def shown_in(messages: Sequence[Message], turns: Sequence[int], window: Window, memory: Memory) -> list[Message]:
    """The messages that the agent reads in a window; `turns` are the indices of its own. The notes,
    and the user's message that the first kept turn answers, stand at the end of the opening: many
    chat templates refuse two messages of the user after each other, and some a system message."""
    if not window.new:
        return list(messages)
    begin = turns[window.shown]
    opening = list(messages[: turns[0]])
    notes = _notes(messages, turns[: window.new]) if isinstance(memory, NotesMemory) else []
    said = [opening[-1].content, *(["Notes:", *(f"- {note}" for note in notes)] if notes else []), "…"]
    if (before := messages[begin - 1]).role == "user" and begin > turns[0]:
        said.append(before.content)
    opening[-1] = replace(opening[-1], content="\n".join(said))
    return [*opening, *messages[begin:]]


def window_rows(row: TrajectoryRow, memory: Memory) -> list[TrajectoryRow]:
    """A row for each window of a recorded episode without tokens, those of its workers behind the
    agent's. The turns that it keeps from before are of no turn of its own, so they are not trained
    on."""
    return [*_own_rows(row, memory), *worker_rows(row, memory)]


def worker_rows(row: TrajectoryRow, memory: Memory) -> list[TrajectoryRow]:
    """Those of its workers alone, which have tools of their own."""
    return [
        own
        for one in row.trajectory.delegated
        if any(message.role == "assistant" for message in one.messages)
        for told in [replace(row.trajectory, messages=one.messages, turns=one.turns, delegated=())]
        for own in _own_rows(replace(row, trajectory=told, tools=one.tools), memory)
    ]


def _own_rows(row: TrajectoryRow, memory: Memory) -> list[TrajectoryRow]:
    messages = row.trajectory.messages
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    windows = windows_of(max(len(turns) - 1, 0), memory)
    if len(windows) == 1:
        return [row]
    recorded = {turn.message_index: turn for turn in row.trajectory.turns}
    rows = []
    for window, end in pairwise([*windows, Window(0, len(turns))]):
        until = turns[end.new] if end.new < len(turns) else len(messages)
        shown = shown_in(messages[:until], turns[: end.new], window, memory)
        own = [turns[number] for number in range(window.new, end.new) if not recorded or turns[number] in recorded]
        shift = len(shown) - until
        moved = [replace(recorded.get(index, Turn(0, 0, 0, index)), message_index=index + shift) for index in own]
        rows.append(replace(row, trajectory=replace(row.trajectory, messages=tuple(shown), turns=tuple(moved))))
    return [one for one in rows if one.trajectory.turns]


def _notes(messages: Sequence[Message], turns: Sequence[int]) -> list[str]:
    calls = [call for index in turns for call in messages[index].tool_calls if call.name == REMEMBER]
    return [str(given[NOTE]) for call in calls if (given := json_object(call.arguments)) and NOTE in given]
