"""Whatever a record holds, it becomes a row that says what the record says, or goes aside with a
reason: no traceback, no hang, nothing replaced."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.data.importing.importer import format_of, import_trajectories, quarantined
from posttrain.data.importing.records import BadRecord
from posttrain.data.schemas import TASKS_SCHEMA, TrajectoryRow, rows_from_table, trajectories_table
from posttrain.data.validation.validate import validate
from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from tests.data.hostile import hostile_records, line
from tests.data.imported_samples import SAMPLES

OPENAI = SAMPLES["openai"][1]
HOSTILE = [
    *hostile_records(60, seed=1),
    *({**OPENAI, name: value} for name in ("seed", "reward", "split") for value in (float("nan"), "7", [7], -7.5)),
    *({**OPENAI, "labels": {"kind": value}} for value in ("x" * 10_000, "\x1b[2J", {"a": 1})),
]


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON value; JSON texts within are looked into."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)


def said_otherwise(row: TrajectoryRow, record: dict[str, Any]) -> list[str]:
    """Everything that the row says and the record does not: words of a message, a seed, a split, a
    reward."""
    texts = list(texts_in(record))
    everything = json.dumps(texts, ensure_ascii=False) + "".join(texts)
    played = row.trajectory
    said = " ".join(f"{one.content} {one.reasoning_content or ''}" for one in played.messages)
    found = [word for word in re.findall(r"[^\W_]{3,}", said) if word not in everything]
    found += [f"seed {played.seed}"] if record.get("seed") is not None and record["seed"] != played.seed else []
    found += [f"split {row.split}"] if record.get("split") is not None and record["split"] != row.split else []
    given = record.get("reward")
    found += [f"reward {played.reward}"] if given is not None and given != played.reward else []
    return found


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_record_becomes_what_it_says_or_goes_aside(number, tmp_path):
    path = tmp_path / "ours.jsonl"
    path.write_bytes(b"\n".join(map(line, (OPENAI, HOSTILE[number], OPENAI))))
    start = time.monotonic()
    for file_format in (None, "openai"):
        imported = import_trajectories(path, file_format)
        assert len(imported.rows) + len(imported.bad) >= 3
        for bad in imported.bad:
            assert isinstance(bad, BadRecord)
            assert 0 < len(bad.reason) < 1000
        json.dumps(list(quarantined(imported.bad)), ensure_ascii=False, allow_nan=False).encode()
        if not imported.bad:
            assert said_otherwise(imported.rows[1], HOSTILE[number]) == []
        assert rows_from_table(trajectories_table(imported.rows)) == imported.rows
    assert time.monotonic() - start < 5


def test_whatever_passes_the_rules_ends_a_message_once_for_each_of_the_agents(tmp_path):
    """In the tokens that a model from scratch learns: nobody's words end or begin a turn."""
    rows = []
    for name in ("openai", "sharegpt", "tau_bench"):
        path = tmp_path / f"{name}.jsonl"
        records = [one for one in hostile_records(1500, seed=4) if (found := format_of(one)) and found.name == name]
        path.write_bytes(b"\n".join(map(line, records)))
        rows += import_trajectories(path, name).rows
    verdict = validate([trajectories_table(rows)], [TASKS_SCHEMA.empty_table()], max_tokens=5000, source=tmp_path)
    broken = [{reason.rule for reason in verdict.reasons.get(place, ())} for place in range(len(rows))]
    kept = [row for row, rules in zip(rows, broken, strict=True) if not rules - {"unique_id", "no_duplicate"}]
    tools = {tool["function"]["name"] for row in kept for tool in row.tools}
    talks = [row.trajectory.messages for row in kept]
    codec = ChatCodec(train_tokenizer(talks, tool_names=tools, vocab_size=2000, max_length=512))
    encoded = codec.encode_rows(row.conversation for row in kept)
    assert len(kept) > 50
    for messages, row in zip(talks, encoded, strict=True):
        num_ends = sum(token in codec.stop_ids for token in row.input_ids)
        assert num_ends == sum(message.role == "assistant" for message in messages)
