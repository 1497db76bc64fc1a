"""Feature vectors of demonstrations: TF-IDF of the question and of the steps, then a truncated SVD.

Questions are character n-grams, because Chinese has no spaces to split at; digits become one
letter, and names are too many to weigh, so that phrasing counts. Steps are n-grams of tool names
and tags. The cell is no feature: whether cells lie apart is what the contamination rate measures.
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
from posttrain.types import Message

NUM_COMPONENTS = 32
MAX_NGRAMS = 4096


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


def _plain(text: str) -> str:
    """Text with full-width forms folded, in lower case, digits as 0, one blank for white space:
    `腾讯 ０７００` and `腾讯 9988` become equal."""
    return re.sub(r"\s+", " ", re.sub(r"\d", "0", unicodedata.normalize("NFKC", text).lower())).strip()


def _step_ngrams(steps: Sequence[str]) -> list[str]:
    """Unigrams and bigrams with marked ends: ("a", "b") gives a, b, ^ a, a b, b $."""
    ends = ["^", *steps, "$"]
    return [*steps, *(f"{first} {second}" for first, second in itertools.pairwise(ends))]
