"""Imports what people or judges preferred, from a file of records:

- a chosen and a rejected side: TRL's and OpenAI's shapes, sides beside the messages (LLaMA-Factory,
  ms-swift), and Anthropic's whole conversations as text;
- two answers `…_a` and `…_b` with a `winner` (Chatbot Arena);
- a list of answers with scores or ranks (UltraFeedback), or one answer with a score (HelpSteer),
  which is compared with the same person's other scores of the task;
- a thumb (`label`, `kto_tag`), the unpaired form that KTO is for;
- marks of turns: `labels` of `completions` (TRL's stepwise supervision), or a `label` or `rating`
  of messages.

Every answer becomes a conversation, which is read like any other. What the sides have in common is
the task, and is not trained on. A tie says nothing, and is counted.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from posttrain.data.files import first_line
from posttrain.data.importing import chats
from posttrain.data.importing.fields import SPELLINGS, Fields, from_json
from posttrain.data.importing.importer import reasons_of
from posttrain.data.importing.messages import role_of
from posttrain.data.importing.records import BadRecord, read_records
from posttrain.data.importing.rows import UNKNOWN_TOOLS, opening_id, row_of
from posttrain.data.importing.tools import infer_tools
from posttrain.data.preferences import Pair, Said, Verdict
from posttrain.data.schemas import TrajectoryRow, untrained_messages
from posttrain.runtime.exits import DataError
from posttrain.types import number

MAX_ANSWERS = 64  # of one record
_CHOSEN, _REJECTED = SPELLINGS["record"]["chosen"], SPELLINGS["record"]["rejected"]
_MESSAGES = SPELLINGS["record"]["messages"]
_ASKED = ("prompt", "instruction", "question", *_MESSAGES)
_SIDES = (("a", "b"), ("0", "1"))
_OF_SIDE = ("conversation", "response", "answer", "completion", "output", "messages")
_WINNERS = ("winner", "preference", "preferred", "choice", "better_response_id")
_TIES = ("tie", "tie (bothbad)", "both", "neither", "equal", "none")
_ANSWERS = ("responses", "completions", "candidates", "generations", "answers")
_ANSWER = ("response", "completion", "answer", "output", "text", "content", "messages")
_SCORES, _RANKS = ("score", "rating", "overall_score", "stars", "quality"), ("rank",)
_THUMBS = ("label", "kto_tag", "thumb", "thumbs_up", "is_desirable", "feedback")
_UP = dict.fromkeys(("true", "up", "thumbs_up", "like", "good", "desirable", "1"), True)
_UP |= dict.fromkeys(("false", "down", "thumbs_down", "dislike", "bad", "undesirable", "0", "-1"), False)
_WHO = ("who", "annotator", "annotator_id", "worker_id", "user_id", "judge")
_WHEN = ("when", "judged_at", "created_at", "timestamp", "tstamp")
# of a pair: how sure it is, or what each side got; which one is better says the pair itself
_BESIDE_PAIR = re.compile(
    r"(score|rating)s?_(chosen|rejected)|(chosen|rejected)_(score|rating|model)s?|margin|score|rating"
)
_TURN_OF_TEXT = re.compile(r"\n\n(Human|Assistant):")

_Conversation = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Scored:
    """An answer and its score, the higher the better, to be compared with others of the same
    `group`: one person's of one task, or one record's."""

    row: TrajectoryRow
    score: float
    group: str
    said: Said


@dataclass(slots=True)
class ImportedPreferences:
    """The preferences of files. `unread`: for each key that nobody read, how many records have
    it."""

    pairs: list[Pair] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    num_records: int = 0
    num_ties: int = 0
    unread: Counter[str] = field(default_factory=Counter)


def import_preferences(paths: Sequence[Path], *, stop_tools: Collection[str] = ()) -> ImportedPreferences:
    """Read files. A record that cannot be read is reported and left out; records count through all
    files. Calls of `stop_tools` end an episode. Raises DataError for a file that cannot be read, or
    that is empty."""
    found = ImportedPreferences()
    for path in paths:
        before = found.num_records
        for _, record in read_records(path):
            found.num_records += 1
            bad = record if isinstance(record, BadRecord) else _add(found, record, stop_tools)
            if bad is not None:
                found.bad.append(replace(bad, number=found.num_records))
        if found.num_records == before:
            raise DataError(f"{path} has no record, so nobody preferred anything: check the path")
    return _with_tools(found)


def refuse_too_many_bad(found: ImportedPreferences, *, max_quarantine_frac: float, source: Path) -> None:
    """Raises DataError where more records than the accepted share, or all, are bad."""
    if len(found.bad) == found.num_records or len(found.bad) > max_quarantine_frac * found.num_records:
        raise DataError(
            f"{source}: {len(found.bad)} of {found.num_records} records say nothing that is understood, and "
            f"validate_data.max_quarantine_frac accepts {max_quarantine_frac:.1%}: {reasons_of(found.bad)}. Mend or "
            "remove them"
        )


def files_of(path: Path) -> list[Path]:
    """The file, or those in the folder that are no page, no pointer of DVC's and not hidden. Raises
    DataError where there is none."""
    found = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    found = [one for one in found if one.suffix not in (".md", ".dvc") and not one.name.startswith(".")]
    if not found:
        raise DataError(f"{path} holds no file with preferences: check sample_preferences.source.path")
    return found


def _add(found: ImportedPreferences, record: Mapping[str, Any], stop_tools: Collection[str]) -> BadRecord | None:
    """Adds what the record says, or returns why it says nothing."""
    reading = _Reading(dict(record), stop_tools)
    try:
        read = reading.read(number_of_record=found.num_records)
    except Exception as error:  # one untrusted record may raise anything; the others are still read
        why = f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
        return BadRecord.of(0, why, record)
    found.num_ties += not read
    found.unread.update(reading.unread)
    for one in read:
        match one:
            case Pair():
                found.pairs.append(one)
            case Scored():
                found.scored.append(one)
            case Verdict():
                found.verdicts.append(one)
    return None


class _Reading:
    """Reads one record; what it understands of `rest` it takes out, and the rest is read with each
    conversation as `row_of` reads it."""

    def __init__(self, rest: dict[str, Any], stop_tools: Collection[str]) -> None:
        self.unread: set[str] = set()
        self._rest, self._stop_tools = rest, stop_tools

    def read(self, *, number_of_record: int) -> list[Pair | Scored | Verdict]:
        """What the record says; nothing for a tie. Raises ValueError, KeyError, TypeError and the
        like with what is wrong with it."""
        said = Said("import", self._word(_WHO), self._word(_WHEN))
        if (sides := self._sides()) is not None:
            if not sides:
                return []
            chosen, rejected = self._rows(sides)
            return [Pair(chosen, rejected, said)]
        if (graded := self._answers()) is not None:
            answers, scores = zip(*graded, strict=True)
            rows = self._rows(answers)
            group = f"record {number_of_record}"
            return [Scored(row, score, group, said) for row, score in zip(rows, scores, strict=True)]
        thumb, score = self._take(_THUMBS), self._take(_SCORES)
        marks = self._marks()
        (row,) = self._rows([self._take(("completion", "response", "answer", "output"))])
        if marks and len(marks) != (num_turns := sum(one.role == "assistant" for one in row.trajectory.messages)):
            raise ValueError(f"it has {len(marks)} marks for {num_turns} turns of the agent")
        found: list[Pair | Scored | Verdict] = []
        if score is not None:
            opening = opening_id(row.trajectory.messages, untrained_messages(row.trajectory))
            found.append(Scored(row, number(score, "its score"), f"{said.who} {opening}", said))
        if thumb is not None or marks:
            found.append(Verdict(row, None if thumb is None else _is_up(thumb), marks, said))
        if not found:
            raise ValueError(
                "it does not say what was preferred: it has neither a chosen and a rejected side, nor two answers and "
                "a winner, nor answers with scores, nor a label, nor marks of turns"
            )
        return found

    def _sides(self) -> list[Any] | None:
        """The better answer and the worse; empty for a tie; None where the record is none such."""
        if any(key in self._rest for key in _CHOSEN) and any(key in self._rest for key in _REJECTED):
            for key in [key for key in self._rest if _BESIDE_PAIR.fullmatch(key)]:
                self._rest.pop(key)
            return [self._take(_CHOSEN), self._take(_REJECTED)]
        if any(key in self._rest for key in _REJECTED):
            return [self._last_answer(), self._take(_REJECTED)]
        for first, second in _SIDES:
            for name in _OF_SIDE:
                keys = f"{name}_{first}", f"{name}_{second}"
                if all(key in self._rest for key in keys):
                    both = [self._rest.pop(key) for key in keys]
                    winner = self._take(_WINNERS)
                    if str(winner).lower() in _TIES:
                        return []
                    if (side := str(winner).lower().rpartition("_")[2]) not in (first, second):
                        raise ValueError(
                            f"its winner is {str(winner)[:80]!r}, neither of {first} and {second} nor a tie"
                        )
                    return both if side == first else both[::-1]
        return None

    def _last_answer(self) -> Any:
        """The chosen side where the messages hold it (ms-swift): what follows the last question."""
        key = next((key for key in _MESSAGES if key in self._rest), "messages")
        messages = _messages(self._rest[key], "user")
        place = max((index for index, one in enumerate(messages) if role_of(one) in ("user", "system")), default=-1)
        self._rest[key] = messages[: place + 1]
        return messages[place + 1 :]

    def _answers(self) -> list[tuple[Any, float]] | None:
        """The answers of a list, each with its score; of a rank, 1 is the best."""
        name = next((key for key in _ANSWERS if isinstance(self._rest.get(key), list)), None)
        if name is None or isinstance(self._rest.get("labels"), list):
            return None
        answers = self._rest.pop(name)
        if not 2 <= len(answers) <= MAX_ANSWERS:
            raise ValueError(f"it has {len(answers)} answers: 2 to {MAX_ANSWERS} can be compared")
        for names, sign in ((_SCORES, 1.0), (_RANKS, -1.0)):
            beside = self._take([f"{one}s" for one in names])
            inside = [
                next((one[key] for key in names if key in one), None) for one in answers if isinstance(one, Mapping)
            ]
            scores = beside if isinstance(beside, list) else inside
            if len(scores) == len(answers) and None not in scores:
                return [(one, sign * number(score, "a score")) for one, score in zip(answers, scores, strict=True)]
        raise ValueError(f"its {name} have no score each, and no rank")

    def _marks(self) -> tuple[float | None, ...]:
        """Marks of the agent's turns, None of one that has none; empty where no turn has one."""
        steps, labels = self._rest.get("completions"), self._rest.get("labels")
        if isinstance(steps, list) and isinstance(labels, list):
            self._take(("completions",)), self._take(("labels",))
            self._rest["completion"] = [{"role": "assistant", "content": step} for step in steps]
            return tuple(_mark({"label": one}) for one in labels)
        key = next((key for key in _MESSAGES if key in self._rest), "")
        told = _messages(self._rest.get(key), "user")
        if len(told) < 2:
            return ()
        messages = [dict(one) for one in told]
        own = [one for one in messages if role_of(one) == "assistant"]
        marks = tuple(_mark(one) for one in own)
        self._rest[key] = messages
        return marks if any(one is not None for one in marks) else ()

    def _rows(self, answers: Sequence[Any]) -> list[TrajectoryRow]:
        """A row for each answer to what was asked. Raises ValueError where two of them are
        equal, or of different tasks."""
        asked = self._rest.pop("input") if isinstance(self._rest.get("input"), Mapping) else None
        if asked is not None:  # OpenAI's preferences
            before = _messages(asked.get("messages"), "user")
            self._rest |= {"tools": asked["tools"]} if asked.get("tools") else {}
        else:
            before = _messages(self._take(_ASKED), "user")
        own = [_messages(_answer(one), "assistant") for one in answers]
        if len(own) > 1:
            end = next((len(one) for one in own if one and before[-len(one) :] == one), 0)
            before = before[: len(before) - end]  # the messages already hold one of the answers
            conversations = _with_common_beginning([_whole(before, one) for one in own])
        else:
            conversations = [_whole(_untrained(before), own[0]) if own[0] else before]
        rows = [self._row(one) for one in conversations]
        if len({row.trajectory.task_id for row in rows}) > 1:
            raise ValueError("its answers are to different questions")
        return rows

    def _row(self, conversation: _Conversation) -> TrajectoryRow:
        fields = Fields({**self._rest, "messages": conversation}, "record", self.unread)
        row = row_of(chats.read_chat(fields), fields, stop_tools=self._stop_tools)
        if self._rest.get("task_id") is not None:
            return row
        # by the first question alone: conversations that share it stand on one side of the split
        return replace(row, trajectory=replace(row.trajectory, task_id=opening_id(row.trajectory.messages, ())))

    def _take(self, keys: Sequence[str]) -> Any:
        """The value of the first of these keys that is there, taken out."""
        return next((self._rest.pop(key) for key in keys if key in self._rest), None)

    def _word(self, keys: Sequence[str]) -> str:
        value = self._take(keys)
        return "" if value is None else " ".join(str(value).split())[:512]


def _answer(content: Any) -> Any:
    """An answer that may be an object with its text in it."""
    if isinstance(content, Mapping) and "role" not in content and "from" not in content:
        return next((content[key] for key in _ANSWER if key in content), None)
    return content


def _messages(content: Any, role: str) -> _Conversation:
    """A list of messages, its JSON text, one message, or a text: of `role`, or a whole conversation
    as Anthropic writes it."""
    if isinstance(content, str):
        if _TURN_OF_TEXT.match(content):
            _, *parts = _TURN_OF_TEXT.split(content)
            roles = {"Human": "user", "Assistant": "assistant"}
            turns = zip(parts[::2], parts[1::2], strict=True)
            return [{"role": roles[who], "content": text.strip()} for who, text in turns if text.strip()]
        if not content.lstrip().startswith("[{"):
            return [{"role": role, "content": content}] if content else []
        content = from_json(content, "a side")
    if content is None:
        return []
    if isinstance(content, Mapping):
        return [content]
    if not isinstance(content, list) or not all(isinstance(one, Mapping) for one in content):
        raise ValueError(f"the {role}'s side is neither text nor a list of messages")
    return content


def _whole(before: _Conversation, answer: _Conversation) -> _Conversation:
    """What was asked and the answer, which may hold the question."""
    return answer if answer and role_of(answer[0]) in ("system", "user") else [*before, *answer]


def _with_common_beginning(conversations: Sequence[_Conversation]) -> list[_Conversation]:
    """No message is trained on that all begin with. Raises ValueError where one has no answer of
    its own."""
    columns = list(takewhile(lambda column: all(one == column[0] for one in column), zip(*conversations, strict=False)))
    if any(
        not any(role_of(one) == "assistant" for one in conversation[len(columns) :]) for conversation in conversations
    ):
        raise ValueError("one of its answers is empty, or the beginning of another")
    return [_untrained(conversation[: len(columns)]) + conversation[len(columns) :] for conversation in conversations]


def _untrained(messages: _Conversation) -> _Conversation:
    return [{**one, "weight": 0} if role_of(one) == "assistant" else one for one in messages]


def _is_up(value: Any) -> bool:
    if (key := str(value).strip().lower()) not in _UP:
        raise ValueError(f"its label is {str(value)[:80]!r}, neither for nor against")
    return _UP[key]


def _mark(message: dict[str, Any]) -> float | None:
    """The mark of a message, which is taken out: `label` or `mark` true or false or from 0 to 1,
    `rating` from 1 to 5."""
    for key, low, high in (("label", 0, 1), ("mark", 0, 1), ("rating", 1, 5)):
        if (value := message.pop(key, None)) is not None:
            value = float(value) if isinstance(value, bool) else number(value, f"a {key}", low=low, high=high)
            return (value - low) / (high - low)
    return None


def _with_tools(found: ImportedPreferences) -> ImportedPreferences:
    """Give the rows without recorded tools those that were called in any record."""
    rows = [row for pair in found.pairs for row in (pair.chosen, pair.rejected)]
    rows += [one.row for one in found.verdicts] + [one.row for one in found.scored]
    inferred = infer_tools([row.trajectory.messages for row in rows if row.tools is UNKNOWN_TOOLS])

    def known(row: TrajectoryRow) -> TrajectoryRow:
        return replace(row, tools=inferred) if row.tools is UNKNOWN_TOOLS else row

    found.pairs = [Pair(known(one.chosen), known(one.rejected), one.said) for one in found.pairs]
    found.verdicts = [replace(one, row=known(one.row)) for one in found.verdicts]
    found.scored = [replace(one, row=known(one.row)) for one in found.scored]
    return found
