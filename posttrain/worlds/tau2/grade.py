"""tau2's verdict on an episode: the product of what its task counts, each 0 or 1.

DB: the database at the end is the one that the reference calls lead to. COMMUNICATE: each text that
must be said stands in a message of the agent's. ACTION: each reference call was made. An episode
that neither side ended is worth 0 (evaluator/ of sierra-research/tau2-bench), and so is one with an
agent's message of neither words nor calls, which is an error for tau2's orchestrator: half of the
airline's tasks want nothing changed, and silence would pass them.
"""

from collections.abc import Sequence

from posttrain.types import Outcome, StopReason, Trajectory
from posttrain.worlds.made_calls import MadeCall, agent_messages, calls_made
from posttrain.worlds.tau2.goals import Action, Goal

SCORES = ("database", "communicated", "actions")
_ENDED = frozenset({StopReason.DONE, StopReason.WORLD_OVER, StopReason.STOP_TOOL})


def grade(trajectory: Trajectory, goal: Goal, *, is_database_right: bool, write_tools: frozenset[str]) -> Outcome:
    """`communicated` and `actions` are shares, 1.0 where nothing is to be said or called."""
    calls = calls_made(trajectory)
    messages = [message for _, message in agent_messages(trajectory)]
    said = [message.content.lower().replace(",", "") for message in messages]
    scores = {
        "database": float(is_database_right),
        "communicated": _share([any(fact.lower() in text for text in said) for fact in goal.communicated]),
        "actions": _share([any(_makes(call, action) for call in calls) for action in goal.actions]),
    }
    counted = {"DB": "database", "COMMUNICATE": "communicated", "ACTION": "actions"}
    missed = [counted[part] for part in goal.basis if scores[counted[part]] < 1]
    is_ended = trajectory.stop_reason in _ENDED
    if not all(message.content.strip() or message.tool_calls for message in messages):
        missed = ["words"]
    success = is_ended and not missed
    return Outcome(
        success=success,
        strict_success=success and is_strict(calls, goal, write_tools),
        scores=scores,
        failure="" if success or not is_ended else _FAILURES[missed[0]],
        feedback="" if success else _feedback(missed, is_ended=is_ended),
    )


def is_strict(calls: Sequence[MadeCall], goal: Goal, write_tools: frozenset[str]) -> bool:
    """Every call came back without an error, each that writes is one of the reference's, made once,
    and there was one at all where the reference has any: who looks nothing up can know nothing."""
    if goal.actions and not calls:
        return False
    left = [action for action in goal.actions if action.name in write_tools]
    for call in calls:
        if not call.is_executed:
            return False
        if call.name in write_tools:
            made = [action for action in left if (action.name, action.arguments) == (call.name, call.arguments)]
            if not made:
                return False
            left.remove(made[0])
    return True


_FAILURES = {
    "words": "empty_message",
    "database": "wrong_database",
    "communicated": "not_communicated",
    "actions": "missing_action",
}


def _makes(call: MadeCall, action: Action) -> bool:
    return call.arguments is not None and action.is_made_by(call.name, call.arguments)


def _share(checks: Sequence[bool]) -> float:
    return sum(checks) / len(checks) if checks else 1.0


def _feedback(missed: Sequence[str], *, is_ended: bool) -> str:
    if not is_ended:
        return "The conversation was cut off before either side ended it."
    words = {
        "words": "there was a message of neither words nor calls",
        "database": "the database is not as the request, by the policy, should leave it",
        "communicated": "a fact that was asked for was not said",
        "actions": "a call that was needed was not made",
    }
    return f"At the end {', and '.join(words[part] for part in missed)}."
