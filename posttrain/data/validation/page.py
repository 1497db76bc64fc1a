"""Renders the validation report: one HTML file that opens offline.

Great Expectations' own pages load scripts from other hosts and carry the time of the run; this one
has no script, no address and no time, so equal data give equal bytes. Control characters of a
transcript are spelt out before they are escaped.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa

from posttrain.data.files import rows_at
from posttrain.data.validation.validate import Validation, summary
from posttrain.runtime.control_chars import visible_on_page
from posttrain.types import Message

MAX_SAMPLES = 20
MAX_TRANSCRIPT_CHARS = 4000
_TEMPLATE = Path(__file__).with_name("page.html")


def render_page(validation: Validation, batches: Iterable[pa.Table], *, max_quarantine_frac: float) -> str:
    """The HTML text. `batches` are the rows that were validated (trajectory_id and messages are
    enough); at most MAX_SAMPLES bad ones are shown, the first of each reason before others."""
    strict: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(autoescape=True, finalize=visible_on_page, **strict)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    names = ("trajectories", "turns", "calls")
    tables = [(name, [check for check in validation.checked if check.rule.table == name]) for name in names]
    return template.render(
        summary=summary(validation),
        is_refused=validation.quarantined_frac > max_quarantine_frac,
        max_quarantine_frac=max_quarantine_frac,
        tables=tables,
        expected=validation.suite.expected,
        samples=_samples(validation, batches),
    )


def _samples(validation: Validation, batches: Iterable[pa.Table]) -> list[dict[str, Any]]:
    first_of_reason: dict[str, int] = {}
    for position, reasons in validation.reasons.items():
        for reason in reasons:
            first_of_reason.setdefault(reason.rule, position)
    positions = sorted(dict.fromkeys([*first_of_reason.values(), *validation.reasons][:MAX_SAMPLES]))
    columns = (batch.select(["trajectory_id", "messages"]) for batch in batches)
    shown = (row for table in rows_at(columns, np.array(positions, np.int64)) for row in table.to_pylist())
    return [
        {
            "position": position,
            "trajectory_id": row["trajectory_id"],
            "reasons": validation.reasons[position],
            "transcript": transcript(row["messages"] or ()),
        }
        for position, row in zip(positions, shown, strict=True)
    ]


def transcript(messages: Sequence[dict[str, Any]]) -> str:
    """Readable lines without the system message, cut at MAX_TRANSCRIPT_CHARS."""
    lines = []
    for message in map(Message.from_openai, messages):
        if message.role == "system":
            continue
        lines += [f"{message.role}, reasoning: {message.reasoning_content}"] if message.reasoning_content else []
        lines += [f"{message.role}: {message.content}"] if message.content else []
        lines += [f"{message.role}, call {call.id}: {call.name} {call.arguments}" for call in message.tool_calls]
    text = "\n".join(lines)
    return text if len(text) <= MAX_TRANSCRIPT_CHARS else f"{text[:MAX_TRANSCRIPT_CHARS]} … ({len(text):,} characters)"
