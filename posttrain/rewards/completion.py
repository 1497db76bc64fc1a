"""Scores whether the task was done: the only score that decides success; it compares typed values
and the calls made, never words."""

from posttrain.rewards.agent_actions import asked_first, calls_made, final_answer, holds
from posttrain.types import Score, Task, Trajectory
from posttrain.worlds.answers import format_answer, same


def completion(trajectory: Trajectory, task: Task) -> Score:
    """1.0 where the last message states exactly the gold answer, the calls that hold it came back
    without error (none was made where none is right), and what was ambiguous was asked before the
    first call; else 0.0. `breakdown` has the three conditions as 0 or 1.

    A right price said without the call that holds it is a guess: 0.0.
    """
    stated = final_answer(trajectory)
    is_stated = stated is not None and same(stated, task.gold.answer)
    is_held = holds(calls_made(trajectory), task.gold)
    is_asked = task.gold.asks is None or asked_first(trajectory, task.gold.asks)
    breakdown = {"answer_stated": float(is_stated), "answer_held": float(is_held), "asked_first": float(is_asked)}
    return Score(
        float(is_stated and is_held and is_asked),
        breakdown,
        _feedback(task, is_stated=is_stated, is_held=is_held, is_asked=is_asked),
    )


def is_success(trajectory: Trajectory, task: Task) -> bool:
    """The rule that evaluation, rewards and preferences share."""
    return completion(trajectory, task).value == 1.0


def _feedback(task: Task, *, is_stated: bool, is_held: bool, is_asked: bool) -> str:
    gold = task.gold
    if not is_asked:
        return f"Ask for the {gold.asks} before the first call."
    if not is_held and not gold.calls:
        return "No tool is needed here; answer without a call."
    if not is_held:
        return f"The answer is in the result of {', '.join(call.name for call in gold.calls if call.holds_answer)}."
    return "" if is_stated else f"The right last line is `{format_answer(gold.answer)}`."
