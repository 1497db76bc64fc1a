"""Tables of preferences: pairs of episodes of one task, and verdicts on single episodes, each with
who said it and when."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from posttrain.data.files import read_parquet, write_parquet
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, TrajectoryRow, rows_from_table, trajectories_table

IMPORTED = Path("data/imported_preferences")
_SAID = [pa.field(name, pa.string()) for name in ("source", "who", "when")]
PAIRS_SCHEMA = pa.schema(
    [
        *_SAID,
        pa.field("weight", pa.float64()),
        *(
            pa.field(f"{side}_{column.name}", column.type)
            for side in ("chosen", "rejected")
            for column in TRAJECTORIES_SCHEMA
        ),
    ]
)
VERDICTS_SCHEMA = pa.schema(
    [
        *_SAID,
        pa.field("is_desirable", pa.bool_()),
        pa.field("turn_marks", pa.list_(pa.float64())),
        *TRAJECTORIES_SCHEMA,
    ]
)


@dataclass(frozen=True, slots=True)
class Said:
    """`source`: the policy's samples, compared by their reward, an edit, or a file. `who` and
    `when` are texts as the file has them, empty where it says nothing."""

    source: Literal["sampled", "edit", "import"] = "sampled"
    who: str = ""
    when: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    chosen: TrajectoryRow
    rejected: TrajectoryRow
    said: Said = Said()
    weight: float = 1.0  # how often it is drawn, against the others


@dataclass(frozen=True, slots=True)
class Verdict:
    """A thumb up or down (`is_desirable`), a mark from 0 to 1 for each turn of the agent, None for
    one that has none, or both."""

    row: TrajectoryRow
    is_desirable: bool | None
    turn_marks: tuple[float | None, ...] = ()
    said: Said = Said()


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """The columns of a trajectory twice, `chosen_…` and `rejected_…`."""
    sides = [trajectories_table(pair.chosen for pair in pairs), trajectories_table(pair.rejected for pair in pairs)]
    weights = pa.array([pair.weight for pair in pairs], pa.float64())
    columns = [*_said_columns(pair.said for pair in pairs), weights, *sides[0].columns, *sides[1].columns]
    write_parquet(path, pa.Table.from_arrays(columns, schema=PAIRS_SCHEMA))


def read_pairs(path: Path) -> list[Pair]:
    """Raises DataError."""
    table, width = read_parquet(path, PAIRS_SCHEMA), len(TRAJECTORIES_SCHEMA)
    chosen, rejected = (_rows(table, len(_SAID) + 1 + start) for start in (0, width))
    return list(map(Pair, chosen, rejected, _all_said(table), table["weight"].to_pylist()))


def write_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    own = [
        pa.array([one.is_desirable for one in verdicts], pa.bool_()),
        pa.array([list(one.turn_marks) for one in verdicts], pa.list_(pa.float64())),
    ]
    rows = trajectories_table(one.row for one in verdicts)
    columns = [*_said_columns(one.said for one in verdicts), *own, *rows.columns]
    write_parquet(path, pa.Table.from_arrays(columns, schema=VERDICTS_SCHEMA))


def read_verdicts(path: Path) -> list[Verdict]:
    """Raises DataError."""
    table = read_parquet(path, VERDICTS_SCHEMA)
    rows = _rows(table, len(_SAID) + 2)
    told = (table["is_desirable"].to_pylist(), table["turn_marks"].to_pylist(), _all_said(table))
    return [Verdict(row, is_good, tuple(marks), said) for row, is_good, marks, said in zip(rows, *told, strict=True)]


def _said_columns(said: Iterable[Said]) -> list[pa.Array]:
    every = list(said)
    return [pa.array([getattr(one, column.name) for one in every], pa.string()) for column in _SAID]


def _all_said(table: pa.Table) -> list[Said]:
    told: list[Mapping[str, Any]] = table.select([column.name for column in _SAID]).to_pylist()
    return [Said(**one) for one in told]


def _rows(table: pa.Table, start: int) -> list[TrajectoryRow]:
    columns = table.columns[start : start + len(TRAJECTORIES_SCHEMA)]
    return rows_from_table(pa.Table.from_arrays(columns, schema=TRAJECTORIES_SCHEMA))
