"""The demonstrations of a file that are still in: known by their positions, and read again a batch
at a time whenever they are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.files import ParquetBatches, reading_rows, rows_at
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, TrajectoryRow, messages_from_columns, rows_from_table
from posttrain.types import Message


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of a file of TRAJECTORIES_SCHEMA at `positions_N`, which ascend. Going through it
    gives their conversations, in batches. Reading raises DataError where the file is damaged."""

    path: Path
    positions_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions_N)

    def __iter__(self) -> Iterator[Sequence[Sequence[Message]]]:
        for table in rows_at(ParquetBatches(self.path, TRAJECTORIES_SCHEMA, ("messages",)), self.positions_N):
            with reading_rows(self.path):
                yield [messages_from_columns(messages) for messages in table["messages"].to_pylist()]

    def tables(self) -> Iterator[pa.Table]:
        """All columns, in batches."""
        return rows_at(ParquetBatches(self.path, TRAJECTORIES_SCHEMA), self.positions_N)

    def at(self, places_M: NDArray[np.int64]) -> "Selected":
        """Those at some places among these, which ascend."""
        return Selected(self.path, self.positions_N[places_M])

    def rows(self) -> list[TrajectoryRow]:
        """All, in memory: for a part of them."""
        return [row for table in self.tables() for row in _rows(self.path, table)]


def _rows(path: Path, table: pa.Table) -> list[TrajectoryRow]:
    with reading_rows(path):
        return rows_from_table(table)
