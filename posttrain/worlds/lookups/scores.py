"""The scores of an episode in a lookup world, one function each.

`completion` and `is_strict` decide success: they compare typed values and the calls made, never
words. `wrong_tool`, `redundant_call` and `format_error` are penalties: 1.0 where the mistake
happened, however often, so that a long episode is not worse than its worst habit. The feedback of a
score is one sentence on what would have been better.
"""

from collections.abc import Mapping, Sequence

from posttrain.types import Score
from posttrain.worlds.lookups.gold import format_answer, same
from posttrain.worlds.lookups.matching import Decision, Reading, fits, holds, match_calls
from posttrain.worlds.made_calls import repeated_reads
from posttrain.worlds.tools import Tool


def completion(episode: Reading) -> Score:
    """1.0 where the last message states exactly the gold answer, the calls that hold it came back
    without error (none was made where none is right), and what was ambiguous was asked first; else
    0.0. A right price said without the call that holds it is a guess: 0.0."""
    gold = episode.gold
    if not episode.is_asked:
        return Score(0.0, feedback=f"Ask for the {gold.asks} before the first call.")
    if not holds(episode.calls, gold):
        sources = ", ".join(call.name for call in gold.calls if call.holds_answer)
        missing = f"The answer is in the result of {sources}."
        return Score(0.0, feedback=missing if gold.calls else "No tool is needed here; answer without a call.")
    return accuracy(episode)


def is_strict(episode: Reading) -> bool:
    """True where each call is some gold call: who calls every tool has not chosen one."""
    return all(any(fits(call, wanted) for wanted in episode.gold.calls) for call in episode.calls)


def accuracy(episode: Reading) -> Score:
    """1.0 where the last message states the gold answer, whatever was called, else 0.0."""
    gold = episode.gold.answer
    if episode.answer is not None and same(episode.answer, gold):
        return Score(1.0)
    return Score(0.0, feedback=f"The right last line is `{format_answer(gold)}`.")


def tool_accuracy(episode: Reading) -> Score:
    """F1 = 2PR / (P + R) = 2 matched / (made + needed); P is the share of made calls that are gold
    calls, R the share of gold calls that were made.

    Two needed; made are one of them, twice, and a wrong one: P = 1/3 (a gold call counts once), R =
    1/2, F1 = 0.4. Where no call is needed, 1.0 for an agent that spoke and made none, else 0.0.
    """
    calls, gold = episode.calls, episode.gold
    if not gold.calls:
        is_right = bool(episode.messages) and not calls
        return Score(float(is_right), feedback="No tool is needed here." if calls else "")
    matched = [index for index in match_calls(calls, gold) if index is not None]
    missed = [wanted.name for index, wanted in enumerate(gold.calls) if index not in matched]
    value = 2 * len(matched) / (len(calls) + len(gold.calls))
    return Score(value, feedback=f"Not called as needed: {', '.join(missed)}." if missed else "")


def efficiency(episode: Reading) -> Score:
    """Success weighted by path length, SPL (arXiv 1807.06757, section 5): success * needed /
    max(taken, needed), in steps; each call is a step, so are a question and the answer. A quick
    failure is not efficient, or giving up would pay.

    Two calls and the answer are needed (3), one call was repeated (4 taken): 0.75 on success.
    """
    needed = len(episode.gold.calls) + (episode.gold.asks is not None) + 1
    taken = sum(max(len(message.tool_calls), 1) for _, message in episode.messages)
    value = needed / max(taken, needed) if completion(episode).value else 0.0
    return Score(value, feedback=f"{taken} steps where {needed} do." if taken > needed else "")


def timing(episode: Reading) -> Score:
    """Share of the agent's messages whose decision was due: ask while the question is open, call
    while the answer is not held, then answer; 0.0 where the agent wrote nothing. Whether the call
    was the right one is for `tool_accuracy`.

    One call is needed; made are a needless question, the call, and the answer: 2/3. Answering at
    once: 0/1.
    """
    gold, is_question_open = episode.gold, episode.gold.asks is not None
    untimely: list[tuple[Decision, Decision]] = []  # made, due
    for (index, _), made in zip(episode.messages, episode.decisions, strict=True):
        is_held = not gold.calls or holds([call for call in episode.calls if call.message_index < index], gold)
        due = Decision.ASK if is_question_open else Decision.ANSWER if is_held else Decision.CALL
        if made is not due:
            untimely.append((made, due))
        # one question closes it, and so does a call: from then on a question comes too late
        is_question_open = is_question_open and made not in (Decision.ASK, Decision.CALL)
    num_messages = len(episode.messages)
    value = (num_messages - len(untimely)) / num_messages if num_messages else 0.0
    return Score(
        value, feedback=f"Where the agent chose {untimely[0][0]}, {untimely[0][1]} was due." if untimely else ""
    )


def step(episode: Reading) -> Score:
    """Process score: the mean credit of the agent's messages, which `breakdown` has by their index
    in the conversation. A message with calls earns the share of them that make a gold call for the
    first time and come back without error; a question 1.0 where it was due and is the first; the
    last message 1.0 where it states the answer; anything else 0.0.

    A wrong call, the right one, the answer: (0 + 1 + 1) / 3.
    """
    messages = dict(episode.messages)
    credits_ = dict.fromkeys(messages, 0.0)
    for call, gold_index in zip(episode.calls, match_calls(episode.calls, episode.gold), strict=True):
        num_calls = len(messages[call.message_index].tool_calls)
        credits_[call.message_index] += (gold_index is not None and call.is_executed) / num_calls
    if episode.gold.asks is not None and episode.is_asked:
        credits_[list(messages)[episode.decisions.index(Decision.ASK)]] = 1.0
    if accuracy(episode).value:
        credits_[list(messages)[-1]] = 1.0
    idle = [index for index, credit in credits_.items() if credit == 0]
    value = sum(credits_.values()) / len(credits_) if credits_ else 0.0
    breakdown = {str(index): credit for index, credit in credits_.items()}
    return Score(value, breakdown, f"Message {idle[0]} brought nothing." if idle else "")


def format(episode: Reading) -> Score:  # noqa: A001 (the score's name in params.yaml)
    """Share of the agent's messages that can be read whole (calls as JSON objects with a name,
    other messages with an answer or question line at the end); 0.0 where there is none."""
    malformed = {call.message_index for call in episode.calls if call.is_malformed}
    unreadable = [
        index
        for (index, _), made in zip(episode.messages, episode.decisions, strict=True)
        if index in malformed or made is Decision.NOTHING
    ]
    num_messages = len(episode.messages)
    value = (num_messages - len(unreadable)) / num_messages if num_messages else 0.0
    if not unreadable:
        return Score(value)
    if unreadable[0] in malformed:
        return Score(value, feedback="Write a call's arguments as one JSON object.")
    return Score(value, feedback="End a message without a call with a line `ANSWER: <value>` or `ASK: <what>`.")


def wrong_tool(episode: Reading) -> Score:
    """A readable call of a tool that no gold call names; any call, where none is needed."""
    needed = {wanted.name for wanted in episode.gold.calls}
    calls = [call for call in episode.calls if not call.is_malformed and call.name not in needed]
    return _penalty([f"{call.name} is not needed." for call in calls])


def redundant_call(episode: Reading, tools: Mapping[str, Tool]) -> Score:
    """A call whose result was known: a read that was made before (`repeated_reads`), or another
    spelling of a gold call that came back in an earlier message."""
    calls = [call for call in episode.calls if not call.is_malformed]
    respelt = [
        call
        for position, call in enumerate(calls)
        for wanted in episode.gold.calls
        if fits(call, wanted)
        and any(
            fits(before, wanted) and before.is_executed and before.message_index < call.message_index
            for before in calls[:position]
        )
    ]
    return _penalty([f"{call.name} was already called so." for call in [*repeated_reads(calls, tools), *respelt]])


def format_error(episode: Reading) -> Score:
    """A call that does not parse, or a message without call, question or answer line."""
    mistakes = ["A call does not parse."] * any(call.is_malformed for call in episode.calls)
    mistakes += ["A message ends without an answer line."] * (Decision.NOTHING in episode.decisions)
    return _penalty(mistakes)


def _penalty(mistakes: Sequence[str]) -> Score:
    return Score(float(bool(mistakes)), feedback=mistakes[0] if mistakes else "")
