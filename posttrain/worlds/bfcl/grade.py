"""The outcome of an episode, by the rule of the package's multi-turn checker.

After every turn in which the gold has calls: the agent made one too, each attribute of each
instance equals what the gold calls leave, and what the gold calls of this turn answer is among what
the agent's calls have answered so far, in any order. In a turn without gold calls nothing is asked:
what is called there is executed, and shows only in the state of the next turn that is checked (the
package has a check for such turns, `multi_turn_irrelevance_checker`, and its runner never calls
it). A strict success made no call beside the gold's; it may repeat a gold call that only reads.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.types import Message, Outcome, Trajectory
from posttrain.worlds.bfcl.entries import Call, Entry, bound, read_gold
from posttrain.worlds.bfcl.instances import Instances, make_instances
from posttrain.worlds.bfcl.schemas import is_read_only
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.tools import json_object

SCORES = ("state_match", "response_match", "restraint")


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """`differing` are attributes (`TradingBot.orders`), `missing` the answers of gold calls."""

    is_checked: bool
    is_called: bool
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        return not self.is_checked or (self.is_called and not self.differing and not self.missing)


def grade(entry: Entry, made: Sequence[Sequence[Call]], trajectory: Trajectory, *, is_forced: bool) -> Outcome:
    """`made` are the calls that reached the classes, for each turn that came up. `is_forced`: the
    episode was ended for too many messages in one turn."""
    written = _written(trajectory)
    num_written = sum(len(message.tool_calls) for _, message in written)
    # what the package would have read as a call, of whatever function
    called = {
        turn for turn, message in written for call in message.tool_calls if json_object(call.arguments) is not None
    }
    verdicts = turn_verdicts(entry, made, called)
    is_success = len(verdicts) == len(entry.turns) and all(verdict.is_passed for verdict in verdicts)
    is_all_executed = num_written == sum(map(len, made))
    failure, feedback = ("", "") if is_success else _failure(entry, verdicts, is_forced=is_forced)
    return Outcome(
        success=is_success,
        strict_success=is_success and is_all_executed and _is_gold_only(entry, made),
        scores=_scores(entry, verdicts),
        turn_scores=tuple(_turn_score(verdicts, turn) for turn, _ in written),
        failure=failure,
        feedback=feedback,
    )


def _written(trajectory: Trajectory) -> list[tuple[int, Message]]:
    """The agent's messages, each with the index of the user's turn that it belongs to."""
    said = [index for index, message in enumerate(trajectory.messages) if message.role == "user"]
    return [(max(0, bisect(said, index) - 1), message) for index, message in agent_messages(trajectory)]


def _is_gold_only(entry: Entry, made: Sequence[Sequence[Call]]) -> bool:
    open_calls: list[Mapping[str, Any]] = []
    done: list[Mapping[str, Any]] = []
    for calls, wanted in zip(made, entry.gold, strict=False):
        open_calls += [bound(call) for call in wanted]
        for call in calls:
            given = bound(call)
            if given in open_calls:
                open_calls.remove(given)
                done.append(given)
            elif given not in done or not is_read_only(call.name):
                return False
    return True


def _turn_score(verdicts: Sequence[TurnVerdict], turn: int) -> float:
    if turn >= len(verdicts):
        return 0.0
    verdict = verdicts[turn]
    return float(verdict.is_passed if verdict.is_checked else not verdict.is_called)


def _scores(entry: Entry, verdicts: Sequence[TurnVerdict]) -> dict[str, float]:
    """Shares of the turns with gold calls whose state is right and whose answers came, and of those
    without any in which nothing was called; a turn that was not reached counts as wrong."""
    num_checked = sum(map(bool, entry.gold_texts))
    num_empty = len(entry.turns) - num_checked
    checked = [verdict for verdict in verdicts if verdict.is_checked]
    restrained = sum(not verdict.is_checked and not verdict.is_called for verdict in verdicts)
    return {
        "state_match": sum(not verdict.differing for verdict in checked) / num_checked,
        "response_match": sum(not verdict.missing for verdict in checked) / num_checked,
        "restraint": restrained / num_empty if num_empty else 1.0,
    }


def _failure(entry: Entry, verdicts: Sequence[TurnVerdict], *, is_forced: bool) -> tuple[str, str]:
    """Class and feedback of the first turn that failed; of several reasons in one turn the
    checker's first. As in the package, an episode that never came to its last turn is that,
    whatever went wrong before."""
    if len(verdicts) < len(entry.turns):
        reached = f"Only {len(verdicts)} of the user's {len(entry.turns)} turns were reached."
        return "too_many_steps" if is_forced else "turns_left", reached
    turn, verdict = next((turn, verdict) for turn, verdict in enumerate(verdicts) if not verdict.is_passed)
    if not verdict.is_called:
        return "no_call", f"Turn {turn + 1} asked for calls and none was made."
    if not verdict.differing:
        missing = "; ".join(verdict.missing)[:300]
        return "response_mismatch", f"After turn {turn + 1} no call had answered: {missing}"
    differing = ", ".join(verdict.differing)
    if turn and not verdicts[turn - 1].is_checked and verdicts[turn - 1].is_called:
        where = "after calls in a turn that had no use for any"
        return "empty_turn_violated", f"After turn {turn + 1} the state was not the wanted one {where}: {differing}."
    return "state_mismatch", f"After turn {turn + 1} the state was not the wanted one: {differing}."


def turn_verdicts(entry: Entry, made: Sequence[Sequence[Call]], called: Collection[int] = ()) -> list[TurnVerdict]:
    """A verdict for each turn that was reached; `called` are the turns with a call of any name."""
    agent, gold = make_instances(entry, 2)
    answers: Counter[str] = Counter()
    verdicts = []
    for turn, (calls, gold_texts) in enumerate(zip(made, entry.gold_texts, strict=False)):
        answers.update(agent.answer(call) for call in calls)
        wanted = Counter(gold.answer(read_gold(text)) for text in gold_texts)
        verdicts.append(
            TurnVerdict(
                is_checked=bool(gold_texts),
                is_called=bool(calls) or turn in called,
                differing=_differing(agent, gold),
                missing=tuple((wanted - answers).elements()),
            )
        )
    return verdicts


def _differing(agent: Instances, gold: Instances) -> tuple[str, ...]:
    return tuple(
        f"{class_name}.{name}"
        for class_name in gold.by_class
        for name, wanted in gold.state(class_name).items()
        if not _is_equal(agent.state(class_name)[name], wanted)
    )


def _is_equal(value: object, wanted: object) -> bool:
    try:
        return bool(value == wanted)
    except RecursionError:  # a folder that was copied into itself; the package's checker breaks off there
        return False
