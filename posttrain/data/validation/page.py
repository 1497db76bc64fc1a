"""The result page: one file that opens offline and is the same to the byte for the same data, so it
has no time, no script and no address of others. Whatever the page is given is made visible before
it is escaped.

Great Expectations' own pages load scripts from other hosts and carry the time of the run; its
results are shown here instead.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa

from posttrain.data.files import taken
from posttrain.data.validation.verdict import Verdict, summary
from posttrain.runtime.control_chars import visible_on_page
from posttrain.types import Message

MAX_SAMPLES = 20
MAX_TRANSCRIPT_CHARS = 4000
_TEMPLATE = Path(__file__).with_name("page.html")


def render_page(verdict: Verdict, batches: Iterable[pa.Table], *, max_quarantine_frac: float) -> str:
    """The HTML text. `batches` are the rows that were judged (trajectory_id and messages are
    enough); of the bad ones at most MAX_SAMPLES are shown, the first of each reason before
    others."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible_on_page,
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    tables = [
        (name, [check for check in verdict.checked if check.rule.table == name])
        for name in ("trajectories", "turns", "calls")
    ]
    return template.render(
        summary=summary(verdict),
        is_refused=verdict.quarantined_frac > max_quarantine_frac,
        max_quarantine_frac=max_quarantine_frac,
        tables=tables,
        samples=_samples(verdict, batches),
    )


def _samples(verdict: Verdict, batches: Iterable[pa.Table]) -> list[dict[str, Any]]:
    first_of_reason: dict[str, int] = {}
    for position, reasons in verdict.reasons.items():
        for reason in reasons:
            first_of_reason.setdefault(reason.rule, position)
    positions = sorted(dict.fromkeys([*first_of_reason.values(), *verdict.reasons][:MAX_SAMPLES]))
    columns = (batch.select(["trajectory_id", "messages"]) for batch in batches)
    shown = (row for table in taken(columns, np.array(positions, np.int64)) for row in table.to_pylist())
    return [
        {
            "position": position,
            "trajectory_id": row["trajectory_id"],
            "reasons": verdict.reasons[position],
            "transcript": transcript(row["messages"] or ()),
        }
        for position, row in zip(positions, shown, strict=True)
    ]


def transcript(messages: Sequence[dict[str, Any]]) -> str:
    """The conversation as a person reads it, without the system message, cut at
    MAX_TRANSCRIPT_CHARS."""
    lines = []
    for message in map(Message.from_openai, messages):
        if message.role == "system":
            continue
        lines += [f"{message.role}, reasoning: {message.reasoning_content}"] if message.reasoning_content else []
        lines += [f"{message.role}: {message.content}"] if message.content else []
        lines += [f"{message.role}, call {call.id}: {call.name} {call.arguments}" for call in message.tool_calls]
    text = "\n".join(lines)
    return text if len(text) <= MAX_TRANSCRIPT_CHARS else f"{text[:MAX_TRANSCRIPT_CHARS]} … ({len(text):,} characters)"
