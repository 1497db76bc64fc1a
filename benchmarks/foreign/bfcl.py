"""BFCL multi-turn: our world and grader against the checker of `bfcl-eval`.

Ours plays in a world, a call after the other, and is graded by it. The package is given the same
calls as it would have decoded them of a function-calling model, and executes them by itself.
"""

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.foreign.agreement import Agreement
from benchmarks.foreign.bfcl_plays import Play, gold_play, mutated_plays
from posttrain.types import Message, Outcome, StopReason, ToolCall, Trajectory
from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.entries import SETS, Call, Entry, entries
from posttrain.worlds.bfcl.world import BfclWorld
from posttrain.worlds.tools import Tool, ToolError, error_text


def measure(per_entry: int, all_entries: Sequence[Entry] | None = None) -> Agreement:
    """All entries, or these: the gold play of each, and so many mutated ones."""
    found = Agreement()
    for entry in all_entries or [entry for set_name in SETS for entry in entries(set_name)]:
        gold = gold_play(entry)
        found.add_gold(entry.entry_id, ours=our_outcome(entry, gold).success, theirs=their_verdict(entry, gold))
        for kind, play in mutated_plays(entry, per_entry, random.Random(f"mutated {entry.entry_id}")):
            ours, theirs = our_outcome(entry, play).success, their_verdict(entry, play)
            found.add_mutated(entry.entry_id, kind, ours=ours, theirs=theirs)
    return found


def our_outcome(entry: Entry, play: Play) -> Outcome:
    """The play in a world of its own."""
    world = BfclWorld(entry)
    tools = world.tools()
    messages = [Message("user", entry.turns[0])]
    for turn, steps in enumerate(play.turns):
        for step in steps:
            calls = tuple(
                ToolCall(f"call_{place}", call.name, json.dumps(call.arguments)) for place, call in enumerate(step)
            )
            messages.append(Message("assistant", tool_calls=calls))
            messages += [Message("tool", _result(tools, call), tool_call_id=call.id) for call in calls]
            if world.is_over():
                return _graded(world, entry, messages, StopReason.WORLD_OVER)
        if play.is_cut_off and turn == len(play.turns) - 1:
            return _graded(world, entry, messages, StopReason.TURN_LIMIT)
        messages.append(Message("assistant", "Done."))
        if (answer := world.user_reply(messages[-1])) is not None:
            messages.append(Message("user", answer))
    return _graded(world, entry, messages, StopReason.DONE)


def their_verdict(entry: Entry, play: Play) -> bool:
    """The package's verdict on the calls, by its own execution. As in its runner, the play ends
    with the step behind as many as one turn may have, and one that does not have every turn is
    none."""
    turns = _as_run(play.turns)
    if len(turns) != len(entry.turns):
        return False
    checker = package.module("eval_checker.multi_turn_eval.multi_turn_checker")
    decoded = [[[_decoded(call) for call in step] for step in steps] for steps in turns]
    gold = [list(texts) for texts in entry.gold_texts]
    raw = copy.deepcopy(dict(entry.raw))
    try:
        verdict = checker.multi_turn_checker(decoded, gold, raw, entry.set_name, "agent")
    finally:
        _forget_instances()
    return bool(verdict["valid"])


def _result(tools: Mapping[str, Tool], call: ToolCall) -> str:
    try:
        if call.name not in tools:
            raise ToolError(f"no tool {call.name!r} is offered")
        return tools[call.name].call(call.arguments)
    except ToolError as error:
        return error_text(error)


def _graded(world: BfclWorld, entry: Entry, messages: list[Message], stop: StopReason) -> Outcome:
    return world.grade(Trajectory(entry.entry_id, tuple(messages), stop))


def _as_run(turns: Sequence[Sequence[list[Call]]]) -> list[Sequence[list[Call]]]:
    """Turns up to the step at which `inference_multi_turn_FC` of the package's handlers quits."""
    limit = package.max_steps() + 1
    for turn, steps in enumerate(turns):
        if len(steps) >= limit:
            return [*turns[:turn], steps[:limit]]
    return list(turns)


def _decoded(call: Call) -> str:
    """Call in the form of `convert_to_function_call` of the package's handlers."""
    return f"{call.name}({','.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _forget_instances() -> None:
    """The package keeps each instance as a global, and what a long context adds it shares between
    all; every play finds both as in a fresh process."""
    made: dict[str, Any] = vars(package.module("eval_checker.multi_turn_eval.multi_turn_utils"))
    for name in [name for name in made if name.endswith("_instance")]:
        del made[name]
    shared = package.module("eval_checker.multi_turn_eval.func_source_code.long_context")
    for name in ("CREDIT_CARD_EXTENSION", "BOOKING_RECORD_EXTENSION"):
        extension = getattr(shared, name)
        extension |= copy.deepcopy(_PRISTINE.setdefault(name, copy.deepcopy(extension)))


_PRISTINE: dict[str, Any] = {}  # what the package shares, as it was
