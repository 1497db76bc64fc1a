"""Feature vectors of demonstrations: TF-IDF of the question and of the steps, then a truncated SVD.

Questions are character n-grams, because Chinese has no spaces to split at; digits become one
letter, and names are too many to weigh, so that phrasing counts. Steps are n-grams of tool names
and tags. The cell is no feature: whether cells lie apart is what the contamination rate measures.
The space is fitted on at most `FIT_ROWS` demonstrations; n-grams of the others alone are ignored.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from posttrain.data.resampling.cells import opening_text, steps_of
from posttrain.data.schemas import TrajectoryRow
from posttrain.types import Message

NUM_COMPONENTS = 32
MAX_NGRAMS = 4096
FIT_ROWS = 20_000


def features(rows: Sequence[TrajectoryRow], *, seed: int) -> NDArray[np.float64]:
    """Unit vectors, shape (N, D) with D at most 32, so squared distance is 2 − 2 cos; deterministic
    in (rows, seed)."""
    return features_in_batches([[row.trajectory.messages for row in rows]], len(rows), seed=seed)


def features_in_batches(
    batches: Iterable[Sequence[Sequence[Message]]], num_rows: int, *, seed: int
) -> NDArray[np.float64]:
    """`features` of `num_rows` conversations, the same whatever the batches' sizes. More than
    `FIT_ROWS` are read twice: to fit the space on a seeded sample, and to transform each."""
    if num_rows <= FIT_ROWS:
        return Space([messages for batch in batches for messages in batch], seed=seed).fitted_points
    sampled = np.sort(np.random.default_rng(seed).choice(num_rows, FIT_ROWS, replace=False))
    space = Space(_at(batches, sampled), seed=seed)
    points_N_D: NDArray[np.float64] = np.empty((num_rows, space.fitted_points.shape[1]))
    done = 0
    for batch in batches:
        points_N_D[done : done + len(batch)] = space.points(batch)
        done += len(batch)
    return points_N_D


class Space:
    """A feature space fitted on some conversations, whose points are `fitted_points`; deterministic
    in (conversations, seed)."""

    def __init__(self, conversations: Sequence[Sequence[Message]], *, seed: int) -> None:
        num_rows = len(conversations)
        self._texts = TfidfVectorizer(
            analyzer="char", ngram_range=(1, 3), min_df=min(2, num_rows), max_features=MAX_NGRAMS, sublinear_tf=True
        )
        self._steps = TfidfVectorizer(analyzer=_step_ngrams, sublinear_tf=True)
        both = hstack(
            [self._texts.fit_transform(_asked(conversations)), self._steps.fit_transform(_done(conversations))]
        ).tocsr()
        num_components = min(NUM_COMPONENTS, both.shape[1] - 1, num_rows - 1)
        self._svd: TruncatedSVD | None = None
        self.fitted_points: NDArray[np.float64] = np.ones((num_rows, 1))
        if num_components >= 1:
            self._svd = TruncatedSVD(num_components, algorithm="randomized", n_iter=5, random_state=seed)
            with threadpool_limits(1):  # BLAS rounds the factors by its number of threads, and a coreset follows
                self.fitted_points = normalize(self._svd.fit_transform(both))

    def points(self, conversations: Sequence[Sequence[Message]]) -> NDArray[np.float64]:
        """Unit vectors, shape (N, D); for the fitted conversations equal to `fitted_points` up to
        rounding."""
        if self._svd is None or not conversations:
            return np.ones((len(conversations), self.fitted_points.shape[1]))
        asked, done = self._texts.transform(_asked(conversations)), self._steps.transform(_done(conversations))
        with threadpool_limits(1):
            points: NDArray[np.float64] = normalize(self._svd.transform(hstack([asked, done]).tocsr()))
        return points


def _at(batches: Iterable[Sequence[Sequence[Message]]], positions: NDArray[np.int64]) -> list[Sequence[Message]]:
    found: list[Sequence[Message]] = []
    start = 0
    for batch in batches:
        first, last = np.searchsorted(positions, [start, start + len(batch)])
        found += [batch[position - start] for position in positions[first:last].tolist()]
        start += len(batch)
    return found


def _asked(conversations: Sequence[Sequence[Message]]) -> list[str]:
    return [_plain(opening_text(messages)) or "∅" for messages in conversations]


def _done(conversations: Sequence[Sequence[Message]]) -> list[tuple[str, ...]]:
    return [steps_of(messages) or ("∅",) for messages in conversations]


def _plain(text: str) -> str:
    """Text with full-width forms folded, in lower case, digits as 0, one blank for white space:
    `腾讯 ０７００` and `腾讯 9988` become equal."""
    return re.sub(r"\s+", " ", re.sub(r"\d", "0", unicodedata.normalize("NFKC", text).lower())).strip()


def _step_ngrams(steps: Sequence[str]) -> list[str]:
    """Unigrams and bigrams with marked ends: ("a", "b") gives a, b, ^ a, a b, b $."""
    ends = ["^", *steps, "$"]
    return [*steps, *(f"{first} {second}" for first, second in itertools.pairwise(ends))]
