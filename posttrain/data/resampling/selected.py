"""A subset of a file's demonstrations, kept as positions and read in batches when needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from posttrain.data.files import ParquetBatches, rows_at
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, TrajectoryRow, messages_from_columns, rows_from_table
from posttrain.types import Message


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows of a file of TRAJECTORIES_SCHEMA at `positions_N`, ascending. Iteration gives their
    conversations. Reading raises DataError where the file is damaged."""

    path: Path
    positions_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions_N)

    def __iter__(self) -> Iterator[Sequence[Message]]:
        for table in rows_at(ParquetBatches(self.path, TRAJECTORIES_SCHEMA, ("messages",)), self.positions_N):
            yield from map(messages_from_columns, table["messages"].to_pylist())

    def tables(self) -> Iterator[pa.Table]:
        """The rows with all columns, in batches."""
        return rows_at(ParquetBatches(self.path, TRAJECTORIES_SCHEMA), self.positions_N)

    def at(self, places_M: NDArray[np.int64]) -> "Selected":
        """The subset at `places_M` (ascending) of this subset."""
        return Selected(self.path, self.positions_N[places_M])

    def rows(self) -> list[TrajectoryRow]:
        """All rows, in memory: for small subsets."""
        return [row for table in self.tables() for row in rows_from_table(table)]
