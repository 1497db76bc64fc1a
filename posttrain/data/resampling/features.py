"""Where a demonstration lies among the others: what was asked and what was done, as a point in a
space in which neighbours are alike.

What was asked is the user's text as character n-grams, because Chinese has no spaces to split at;
digits become one letter and names drown in their number, so that phrasing is what counts. What was
done is the sequence of steps as n-grams of tool names and marks. TF-IDF, then a truncated SVD. The
cell is not a feature: whether cells lie apart is what the contamination rate measures.
"""

import itertools
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from posttrain.data.resampling.cells import opening_text, steps_of
from posttrain.data.schemas import TrajectoryRow

NUM_COMPONENTS = 32
MAX_NGRAMS = 4096


def features(rows: Sequence[TrajectoryRow], *, seed: int) -> NDArray[np.float64]:
    """Shape (N, D), D at most 32, rows of length 1 (so squared distance is 2 − 2 cos);
    deterministic in (rows, seed)."""
    texts = TfidfVectorizer(
        analyzer="char", ngram_range=(1, 3), min_df=min(2, len(rows)), max_features=MAX_NGRAMS, sublinear_tf=True
    )
    steps = TfidfVectorizer(analyzer=_step_ngrams, sublinear_tf=True)
    asked = texts.fit_transform([_plain(opening_text(row.trajectory.messages)) or "∅" for row in rows])
    done = steps.fit_transform([steps_of(row.trajectory.messages) or ("∅",) for row in rows])
    both = hstack([asked, done]).tocsr()
    num_components = min(NUM_COMPONENTS, both.shape[1] - 1, len(rows) - 1)
    if num_components < 1:
        return np.ones((len(rows), 1))
    reduced = TruncatedSVD(num_components, algorithm="randomized", n_iter=5, random_state=seed).fit_transform(both)
    points: NDArray[np.float64] = normalize(reduced)
    return points


def _plain(text: str) -> str:
    """Full-width forms folded, lower case, digits as 0, white space as one blank:
    `腾讯 ０７００` and `腾讯 9988` are alike."""
    return re.sub(r"\s+", " ", re.sub(r"\d", "0", unicodedata.normalize("NFKC", text).lower())).strip()


def _step_ngrams(steps: Sequence[str]) -> list[str]:
    """Single steps and pairs, the ends marked: ("a", "b") gives a, b, ^ a, a b, b $."""
    ends = ["^", *steps, "$"]
    return [*steps, *(f"{first} {second}" for first, second in itertools.pairwise(ends))]
