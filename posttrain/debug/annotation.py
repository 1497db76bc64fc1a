"""The annotation page: shows two episodes or one, and writes down what a person says of them.

Every judgement is in the file before the page shows the next item. One in ten items is shown to
every annotator, by which their agreement is measured; each of the others to whoever comes first.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.data.annotations import ANNOTATIONS, Item, annotation, read_annotations, write_annotations
from posttrain.debug.server import run_command
from posttrain.debug.session import parse_message
from posttrain.evals.agreement import krippendorffs_alpha
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import StageError
from posttrain.runtime.limits import cut
from posttrain.types import Message

TEMPLATE = Path(__file__).with_name("annotate.html")
ONE_IN = 10  # items are shown to everybody
_MAX_SHOWN = 20_000  # characters of one text
_Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f]+$")]


class AnnotationPage:
    """Hands out `items` in their order, and keeps what is said in `file`."""

    def __init__(self, items: Sequence[Item], *, file: Path = ANNOTATIONS) -> None:
        self._items = {one.item_id: one for one in items}
        self._file, self._rows = file, read_annotations(file)
        self._open: dict[str, str] = {}  # item by who looks at it
        self._lock = threading.Lock()

    def run(self, name: str, given: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Run a command; the status of its answer, and the answer."""
        commands: dict[str, Callable[..., dict[str, Any]]] = {"next": self._next, "say": self._say, "back": self._back}
        if name not in commands:
            return 404, {"error": f"{name}: there is no such command"}
        with self._lock:
            told = run_command(commands[name], given)
        return 400 if "error" in told else 200, told

    def _next(self, who: _Name) -> dict[str, Any]:
        said = {row["item"] for row in self._rows if row["who"] == who}
        taken = {row["item"] for row in self._rows} | {item for other, item in self._open.items() if other != who}
        free = (one for one in self._items if one not in said and (one not in taken or _is_for_all(one)))
        item = next(free, None)
        if item is None:
            self._open.pop(who, None)
            return {"item": None, **self._figures(who)}
        self._open[who] = item
        return {"item": item, "episodes": self._shown(self._items[item]), **self._figures(who)}

    def _say(
        self,
        who: _Name,
        item: str,
        winner: Literal["a", "b", "tie"] | None = None,
        rating: Annotated[int, Field(ge=1, le=5)] | None = None,
        marks: dict[int, Annotated[float, Field(ge=0, le=1)]] = {},  # noqa: B006  # pydantic copies it
        corrections: dict[int, Annotated[str, Field(min_length=1, max_length=_MAX_SHOWN)]] = {},  # noqa: B006
        comment: Annotated[str, Field(max_length=10_000)] = "",
    ) -> dict[str, Any]:
        if (found := self._items.get(item)) is None:
            raise StageError(f"there is no item {item}")
        is_pair = len(found.episodes) == 2
        if (winner is None) is is_pair or (rating is None and not marks and not corrections) is not is_pair:
            raise StageError("of two episodes say which is better; mark one from 1 to 5, mark its turns or correct one")
        when = datetime.now(UTC).isoformat(timespec="seconds")
        told: dict[str, Any] = {"winner": winner, "rating": rating, "comment": comment.strip()}
        told["corrections"] = {place: _corrected(text) for place, text in corrections.items()}
        told["marks"] = dict.fromkeys(corrections, 0.0) | marks  # what is corrected was bad
        row = annotation(found, who=who, when=when, **told)
        rows = [one for one in self._rows if (one["item"], one["who"]) != (item, who)] + [row]
        write_annotations(rows, self._file)
        self._rows = rows
        return self._next(who)

    def _back(self, who: _Name) -> dict[str, Any]:
        """The item that this annotator judged last, to be judged again."""
        last = next((row["item"] for row in reversed(self._rows) if row["who"] == who), None)
        if last not in self._items:
            raise StageError("you have judged none of these items")
        self._open[who] = last
        return {"item": last, "episodes": self._shown(self._items[last]), **self._figures(who)}

    def _figures(self, who: str) -> dict[str, Any]:
        own = [row for row in self._rows if row["item"] in self._items]
        units: dict[str, dict[str, Any]] = {}
        for row in own:
            said = row["winner"] if row["winner"] is not None else row["rating"]
            if said is not None:
                units.setdefault(row["item"], {})[row["who"]] = said
        is_rated = all(isinstance(said, int) for unit in units.values() for said in unit.values())
        return {
            "num_items": len(self._items),
            "num_own": sum(row["who"] == who for row in own),
            "by": dict(Counter(row["who"] for row in own)),
            "num_shared": sum(len(unit) > 1 for unit in units.values()),
            "alpha": krippendorffs_alpha(list(units.values()), level="interval" if units and is_rated else "nominal"),
        }

    def _shown(self, item: Item) -> list[list[dict[str, Any]]]:
        return [
            [_message(place, message) for place, message in enumerate(row.trajectory.messages)] for row in item.episodes
        ]


def _is_for_all(item: str) -> bool:
    return int(item, 16) % ONE_IN == 0


def _corrected(text: str) -> Message:
    """Words, or a message of OpenAI's chat format, as JSON."""
    return parse_message(text) if text.lstrip().startswith("{") else Message("assistant", text)


def _draft(message: Message) -> str:
    """The text of which `_corrected` makes the message."""
    is_said = not message.tool_calls and not message.reasoning_content and not message.content.startswith("{")
    return message.content if is_said else json.dumps(message.to_openai(), ensure_ascii=False)


def _message(place: int, message: Message) -> dict[str, Any]:
    def shown(text: str) -> str:
        return escape_control_chars(cut(text, _MAX_SHOWN))

    calls = [[shown(call.name), shown(call.arguments)] for call in message.tool_calls]
    said = {"text": shown(message.content), "reasoning": shown(message.reasoning_content or "")}
    return {"place": place, "role": message.role, "calls": calls, "draft": _draft(message), **said}
