"""Coreset selection, and the feature vectors in which it and SMOTE measure distance. What is
selected of a file is kept as positions and read in batches when needed.

Four strategies choose a share of the demonstrations. `loss_topk`: the highest loss of the base
model, or another number (`rank_by`). `diversity`: greedy k-centre (Gonzalez 1985), whose radius is
at most twice the best possible. `hybrid`: half by loss, then centres that cover what those left
uncovered. `random`: the baseline.

A vector is the TF-IDF of the question and of the steps, then a truncated SVD. Questions are
character n-grams, because Chinese has no spaces to split at; digits become one letter, and names
are too many to weigh, so that phrasing counts. Steps are n-grams of tool names and tags. The cell
is no feature: whether cells lie apart is what the contamination rate measures.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from posttrain.data.files import ParquetBatches, rows_at
from posttrain.data.resampling.cells import opening_text, steps_of
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, TrajectoryRow, messages_from_columns, rows_from_table
from posttrain.models.codec import TokenRow
from posttrain.runtime.exits import DataError
from posttrain.types import Message, number

Strategy = Literal["loss_topk", "diversity", "hybrid", "random"]
NUM_COMPONENTS = 32
MAX_NGRAMS = 4096


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


def num_kept(num_rows: int, keep_frac: float) -> int:
    """`keep_frac` of the rows, and at least one: 0.2 of 7 is 1, of 8 is 2."""
    return min(num_rows, max(1, round(num_rows * keep_frac)))


def lexical_diversity(row: TokenRow) -> float:
    """The share of distinct tokens among those of the agent (type-token ratio); 0 without one."""
    own = list(itertools.compress(row.input_ids, row.mask))
    return len(set(own)) / len(own) if own else 0.0


def number_of(row: TrajectoryRow, label: str) -> float:
    """A label that is a number. Raises DataError where it is none."""
    try:
        return number(float(row.labels[label]), f"the label {label!r}")
    except (KeyError, ValueError) as error:
        raise DataError(
            f"resample_data.coreset.rank_by is {label}, and the demonstration {row.trajectory_id} has no number under "
            f"that label ({error}): name a label that all have, or loss, num_tokens or lexical_diversity"
        ) from None


def choose_coreset(
    strategy: Strategy, *, keep: int, losses_N: NDArray[np.float64], features_N_D: NDArray[np.float64], seed: int
) -> NDArray[np.int64]:
    """Positions of `keep` rows, ascending; ties go to the earlier row. An array that the strategy
    does not use may be empty."""
    match strategy:
        case "random":
            chosen = np.random.default_rng(seed).permutation(max(len(losses_N), len(features_N_D)))[:keep]
        case "loss_topk":
            chosen = _hardest(losses_N, keep)
        case "diversity":
            chosen = _farthest_first(features_N_D, np.zeros(0, np.int64), keep)
        case "hybrid":
            chosen = _farthest_first(features_N_D, _hardest(losses_N, keep // 2), keep)
    return np.sort(chosen)


def features(conversations: Iterable[Sequence[Message]], *, seed: int) -> NDArray[np.float64]:
    """Unit vectors, shape (N, D) with D at most 32, so squared distance is 2 − 2 cos; deterministic
    in (conversations, seed). Of a conversation only its question and its steps are held."""
    asked: list[str] = []
    done: list[tuple[str, ...]] = []
    for messages in conversations:
        asked.append(_plain(opening_text(messages)) or "∅")
        done.append(steps_of(messages) or ("∅",))
    num_rows = len(asked)
    texts = TfidfVectorizer(
        analyzer="char", ngram_range=(1, 3), min_df=min(2, num_rows), max_features=MAX_NGRAMS, sublinear_tf=True
    )
    steps = TfidfVectorizer(analyzer=_step_ngrams, sublinear_tf=True)
    both = hstack([texts.fit_transform(asked), steps.fit_transform(done)]).tocsr()
    num_components = min(NUM_COMPONENTS, both.shape[1] - 1, num_rows - 1)
    if num_components < 1:  # a single row, or a single n-gram: nothing tells rows apart
        return np.ones((num_rows, 1))
    svd = TruncatedSVD(num_components, algorithm="randomized", n_iter=5, random_state=seed)
    with threadpool_limits(1):  # BLAS rounds the factors by its number of threads, and the coreset follows
        points_N_D: NDArray[np.float64] = normalize(svd.fit_transform(both))
    return points_N_D


def _hardest(losses_N: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(-losses_N, kind="stable")
    return order[:count]


def _farthest_first(features_N_D: NDArray[np.float64], given: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Farthest-first traversal: `given` (or the row nearest to the mean), then one by one the row
    farthest from all chosen ones."""
    squares_N = np.einsum("nd,nd->n", features_N_D, features_N_D)

    def distances(centre_D: NDArray[np.float64]) -> NDArray[np.float64]:
        # Squared, as |x|² − 2 x·c + |c|²: one product, no (N, D) temporary.
        found_N: NDArray[np.float64] = squares_N - 2 * features_N_D @ centre_D + centre_D @ centre_D
        return found_N

    chosen = [int(index) for index in given] or [int(np.argmin(distances(features_N_D.mean(axis=0))))]
    nearest_N = np.full(len(features_N_D), np.inf)
    for index in chosen:
        np.minimum(nearest_N, distances(features_N_D[index]), out=nearest_N)
    nearest_N[chosen] = -np.inf  # a chosen row is never the farthest, even among equal rows
    # O(count · N · D), as each choice updates all distances: minutes for 80,000 of 100,000 rows.
    while len(chosen) < count:
        index = int(np.argmax(nearest_N))
        chosen.append(index)
        np.minimum(nearest_N, distances(features_N_D[index]), out=nearest_N)
        nearest_N[index] = -np.inf
    return np.array(chosen[:count], np.int64)


def _plain(text: str) -> str:
    """Text with full-width forms folded, in lower case, digits as 0, one blank for white space:
    `腾讯 ０７００` and `腾讯 9988` become equal."""
    return re.sub(r"\s+", " ", re.sub(r"\d", "0", unicodedata.normalize("NFKC", text).lower())).strip()


def _step_ngrams(steps: Sequence[str]) -> list[str]:
    """Unigrams and bigrams with marked ends: ("a", "b") gives a, b, ^ a, a b, b $."""
    ends = ["^", *steps, "$"]
    return [*steps, *(f"{first} {second}" for first, second in itertools.pairwise(ends))]
