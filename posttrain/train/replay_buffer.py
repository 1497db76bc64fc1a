"""Replay buffer: a bounded sample of the episodes that all runs so far have learnt from.

One run leaves it in `data/experience/`; as `data/earlier_run/episodes.parquet` it is an input of
the next.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from posttrain.data.files import read_parquet, reading_rows, write_parquet
from posttrain.data.schemas import TRAJECTORY_COLUMNS, trajectory_columns, trajectory_from_columns
from posttrain.runtime.exits import DataError
from posttrain.train.policy_params import ReplayBufferParams
from posttrain.types import ScoredEpisode

EXPERIENCE = Path("data/experience/episodes.parquet")
SCHEMA = pa.schema([("tokenizer", pa.string()), ("bonus", pa.float64()), *TRAJECTORY_COLUMNS])


def merged(
    earlier: Sequence[ScoredEpisode], own: Sequence[ScoredEpisode], params: ReplayBufferParams
) -> list[ScoredEpisode]:
    """The buffer after a run, ordered by task and seed.

    Weighted sampling without replacement (Efraimidis and Spirakis 2006): an episode of weight w has
    the key ln(u) / w, with u in (0, 1) drawn from its task and seed, and the largest keys stay. As
    u is the same in every run, a buffer of a buffer is one of all episodes. Weights: 1, or 1 / k
    for each of k episodes of a task."""
    found = list({(one.trajectory.task_id, one.trajectory.seed): one for one in (*earlier, *own)}.items())
    of_task = Counter(task_id for (task_id, _), _ in found)

    def key(place: tuple[str, int]) -> float:
        digest = hashlib.sha256(f"{place[0]}\0{place[1]}".encode()).digest()
        drawn = (int.from_bytes(digest[:7]) + 0.5) / 2**56
        return math.log(drawn) * (of_task[place[0]] if params.keep == "rare" else 1)

    kept = sorted(found, key=lambda one: key(one[0]), reverse=True)[: params.size]
    return [episode for _, episode in sorted(kept, key=lambda one: one[0])]


def write_buffer(path: Path, episodes: Sequence[ScoredEpisode], *, tokenizer: str) -> None:
    """`tokenizer`: a digest of the one that the episodes' tokens are of."""
    rows = [{"tokenizer": tokenizer, "bonus": one.bonus, **trajectory_columns(one.trajectory)} for one in episodes]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, pa.Table.from_pylist(rows, schema=SCHEMA))


def read_buffer(path: Path, *, tokenizer: str) -> list[ScoredEpisode]:
    """None without a file. Raises DataError where it is damaged, or of another tokenizer."""
    if not path.exists():
        return []
    rows = read_parquet(path, SCHEMA).to_pylist()
    if any(row["tokenizer"] != tokenizer for row in rows):
        raise DataError(
            f"{path} has episodes in the tokens of another model: take the model of the run that left them, or set "
            "train_policy.replay_buffer to null"
        )
    with reading_rows(path):
        return [ScoredEpisode(trajectory_from_columns(row), bonus=row["bonus"]) for row in rows]
