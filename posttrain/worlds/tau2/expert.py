"""Scripts of the expert: a task's reference calls and what must be said; or both with flaws."""

import random
from collections.abc import Sequence

from posttrain.worlds.scripts import Script, call, say
from posttrain.worlds.tau2.goals import Action, Goal
from posttrain.worlds.tau2.params import Tau2FlawRates

_DONE = "That is all taken care of."
_REFUSED = "I am sorry, our policy does not allow that."
_TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."


def gold_script(goal: Goal, *, is_reasoning: bool = False) -> Script:
    """The calls in order, a message each, then the last words, as often as the user goes on."""
    return script(goal.actions, last_words(goal), is_reasoning=is_reasoning)


def flawed_script(
    goal: Goal, rates: Tau2FlawRates, *, write_tools: frozenset[str], draw: random.Random, is_reasoning: bool
) -> Script:
    """The same with flaws: a call that writes is left out, one that reads is made twice."""
    actions = list(goal.actions)
    writes = [place for place, action in enumerate(actions) if action.name in write_tools]
    if writes and draw.random() < rates.dropped_write:
        del actions[draw.choice(writes)]
    reads = [place for place, action in enumerate(actions) if action.name not in write_tools]
    if reads and draw.random() < rates.repeated_read:
        place = draw.choice(reads)
        actions.insert(place, actions[place])
    return script(actions, last_words(goal), is_reasoning=is_reasoning)


def script(actions: Sequence[Action], words: str, *, is_reasoning: bool = False) -> Script:
    for action in actions:
        yield call(action.name, action.arguments, reasoning=f"Next: {action.name}." if is_reasoning else None)
    while True:
        yield say(words)


def last_words(goal: Goal) -> str:
    """The facts to communicate, and a transfer to a human where the reference hands over."""
    if any(action.name == "transfer_to_human_agents" for action in goal.actions):
        words = _TRANSFERRED
    else:
        words = _DONE if goal.actions else _REFUSED
    return " ".join((*goal.communicated, words)) if goal.communicated else words
