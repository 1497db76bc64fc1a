"""First pass over validated demonstrations: the cell of each, its visible mistakes, and whether it
is kept. A batch is judged by itself, so batches are shared out (`runtime/batch_workers.py`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from posttrain.data.params import ResampleDataParams
from posttrain.data.resampling.cells import cell_of
from posttrain.data.resampling.quality import Keeper, Mistake, mistakes
from posttrain.data.schemas import rows_from_table
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.rollout.memory import window_rows
from posttrain.rollout.params import AgentParams


@dataclass(frozen=True, slots=True)
class ScanRules:
    """`model`: the folder whose tokenizer counts tokens; `read_only` names the tools that change
    nothing."""

    model: Path
    params: ResampleDataParams
    agent: AgentParams
    read_only: frozenset[str]
    is_kept: Keeper


class ScannedRow(NamedTuple):
    """`is_good`: it passes the filters; of a dev row that is the quality filter alone."""

    cell: str
    mistakes: tuple[Mistake, ...]
    is_dev: bool
    is_good: bool


def scan_batch(rules: ScanRules, batch: pa.Table) -> list[ScannedRow]:
    """Judge the rows of a batch of TRAJECTORIES_SCHEMA."""
    return list(_scanned(rules, batch))


def _scanned(rules: ScanRules, batch: pa.Table) -> Iterator[ScannedRow]:
    params, agent, rows = rules.params, rules.agent, rows_from_table(batch)
    windows = [window_rows(row, agent.memory) for row in rows]
    tokens = iter(_codec(rules.model).encode_rows(one.conversation for of_row in windows for one in of_row))
    for row, of_row in zip(rows, windows, strict=True):
        found = mistakes(
            row.trajectory.messages,
            row.trajectory.stop_reason,
            num_tokens=max(len(next(tokens).input_ids) for _ in of_row),
            max_turns=agent.max_turns,
            max_context_tokens=agent.max_context_tokens,
            read_only=rules.read_only,
        )
        is_good, is_dev = not (params.quality_filter and found), row.split == "dev"
        if is_good and not is_dev:  # dev rows choose the checkpoint
            is_good = rules.is_kept(row) and (not params.success_filter or row.trajectory.is_success)
        yield ScannedRow(cell_of(row, params.cells), found, is_dev, is_good)


@cache
def _codec(model: Path) -> ChatCodec:
    return load_codec(model)
