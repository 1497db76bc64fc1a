"""Detects four mistakes. Each value is 1.0 where the mistake happened, 0.0 where not; the weights,
in params.yaml, are negative.

A penalty is added once per episode, not once per mistake: a long episode is not worse than its
worst habit.
"""

from posttrain.rewards.agent_actions import Decision, agent_messages, calls_made, decision, fits
from posttrain.types import Score, StopReason, Task, Trajectory

_OUT_OF_TIME = (
    StopReason.TURN_LIMIT,
    StopReason.TOKEN_LIMIT,
    StopReason.TIME_LIMIT,
)  # ENGINE_LOST is not the agent's doing


def wrong_tool(trajectory: Trajectory, task: Task) -> Score:
    """A readable call of a tool that no gold call names; any call, where none is needed."""
    needed = {gold.name for gold in task.gold.calls}
    return _mistake(
        [
            f"{call.name} is not needed."
            for call in calls_made(trajectory)
            if not call.is_malformed and call.name not in needed
        ]
    )


def redundant_call(trajectory: Trajectory, task: Task) -> Score:
    """A call whose result was known: made before with the same arguments (also where that failed:
    tools are deterministic), or another spelling of a gold call that already came back."""
    calls = [call for call in calls_made(trajectory) if not call.is_malformed]
    repeated: list[str] = []
    for position, call in enumerate(calls):
        earlier = calls[:position]
        same_gold = [
            gold
            for gold in task.gold.calls
            if fits(call, gold)
            and any(
                fits(before, gold) and before.is_executed and before.message_index < call.message_index
                for before in earlier
            )
        ]
        if same_gold or any(before.key == call.key for before in earlier):
            repeated.append(f"{call.name} was already called so.")
    return _mistake(repeated)


def format_error(trajectory: Trajectory, task: Task) -> Score:
    """A call that does not parse, or a message without call, question or answer line."""
    del task
    malformed = ["A call does not parse." for call in calls_made(trajectory) if call.is_malformed]
    unreadable = [
        "A message ends without an answer line."
        for _, message in agent_messages(trajectory)
        if decision(message) is Decision.NOTHING
    ]
    return _mistake(malformed + unreadable)


def timeout(trajectory: Trajectory, task: Task) -> Score:
    """The episode met its limit of turns, tokens or time."""
    del task
    return _mistake(
        [f"The episode ended as {trajectory.stop_reason}."] if trajectory.stop_reason in _OUT_OF_TIME else []
    )


def _mistake(mistakes: list[str]) -> Score:
    return Score(float(bool(mistakes)), {"count": float(len(mistakes))}, mistakes[0] if mistakes else "")
