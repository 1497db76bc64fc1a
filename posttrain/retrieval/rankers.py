"""Rank tools for a question: by their words (BM25), by the vectors of an encoder, or by both.

Both are joined by reciprocal rank fusion (Cormack et al., SIGIR 2009): a tool's score is the sum of
1 / (60 + its rank) over the two, so that neither's scale counts.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import bm25s
import faiss
import numpy as np
from numpy.typing import NDArray

from posttrain.retrieval.catalogue import CatalogueTool, Question, words

FUSION_K = 60
_FUSED = 100  # of each ranking; a tool further down hardly moves the sum
_NEIGHBOURS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 80, 512  # of HNSW: recall@10 above .98 (benchmarks/tool_retrieval.py)

_MAX_KNOWN = 20_000  # texts whose vectors an encoder keeps: tens of megabytes

Vectors = NDArray[np.float32]  # of length 1
Places = NDArray[np.int64]  # (Q, k): indices of tools, the nearest first


class Ranker(Protocol):
    def rank(self, questions: Sequence[str], k: int) -> Places:
        """The `k` nearest tools of each question, or as many as there are."""
        ...


class WordRanker:
    """BM25 (k1 1.5, b 0.75) over the words of the tools' texts, and of example questions with the
    tools that they need."""

    def __init__(self, tools: Sequence[CatalogueTool], examples: Sequence[Question] = ()) -> None:
        asked: dict[str, list[str]] = defaultdict(list)
        for example in examples:
            for name in example.tools:
                asked[name] += words(example.text)
        self._num_tools = len(tools)
        self._index = bm25s.BM25(k1=1.5, b=0.75)
        self._index.index([words(tool.text) + asked[tool.name] for tool in tools], show_progress=False)

    def rank(self, questions: Sequence[str], k: int) -> Places:
        """Equal scores are in the tools' order."""
        scores_Q_T = [self._scores(words(question)) for question in questions]
        return np.array([np.argsort(-scores_T, kind="stable")[:k] for scores_T in scores_Q_T], dtype=np.int64)

    def _scores(self, asked: list[str]) -> NDArray[np.float32]:
        known = [word for word in asked if word in self._index.vocab_dict]
        return self._index.get_scores(known) if known else np.zeros(self._num_tools, dtype=np.float32)


class VectorRanker:
    """Cosine of unit vectors: exactly up to `exact_up_to` of them, in a graph (HNSW) above.

    The vectors are of the tools' texts, then of example questions: `owners` has for each of these
    the tools that it needs, which are found with it (Tool2Vec, arXiv 2409.02141)."""

    def __init__(
        self,
        encoder: "Encoder",
        vectors_E_D: Vectors,
        *,
        owners: Sequence[Sequence[int]] = (),
        exact_up_to: int,
    ) -> None:
        self._encoder, self._owners, self._num_tools = encoder, owners, len(vectors_E_D) - len(owners)
        self._index = vector_index(vectors_E_D, exact_up_to=exact_up_to)

    def rank(self, questions: Sequence[str], k: int) -> Places:
        """Equally near tools are in the order of the text or question that found them."""
        size = min(k, self._num_tools)
        _, places_Q_E = self._index.search(self._encoder.encode(questions), size + len(self._owners))
        return np.array([self._tools(places_E)[:size] for places_E in places_Q_E.tolist()], dtype=np.int64)

    def _tools(self, places: Sequence[int]) -> list[int]:
        found: dict[int, None] = {}
        for place in places:
            example = place - self._num_tools
            found |= dict.fromkeys([place] if example < 0 else self._owners[example])
        return list(found)


class FusedRanker:
    """Reciprocal rank fusion of rankers over the same tools."""

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        self._rankers = rankers

    def rank(self, questions: Sequence[str], k: int) -> Places:
        """Equal sums are in the order of the first ranker that knows the tool."""
        rankings = [ranker.rank(questions, max(_FUSED, k)) for ranker in self._rankers]
        return np.array([_fused(of_question)[:k] for of_question in zip(*rankings, strict=True)], dtype=np.int64)


class Encoder:
    """A sentence-transformers model: any folder with safetensors, or a name of its hub. Texts are
    cut at `max_tokens`."""

    def __init__(self, source: str | Path, *, max_tokens: int) -> None:
        # here, as it brings torch and transformers, which a ranking by words need not wait for
        from sentence_transformers import SentenceTransformer

        self.model: Any = SentenceTransformer(str(source), device="cpu", model_kwargs={"use_safetensors": True})
        self.model.max_seq_length = max_tokens
        self._known: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors, (N, D). A text is computed once: rankers are asked the same questions one
        after another."""
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            found = self.model.encode(new, normalize_embeddings=True, show_progress_bar=False)
            self._known |= dict(zip(new, np.asarray(found, dtype=np.float32), strict=True))
        vectors_N_D = np.array([self._known[text] for text in texts], dtype=np.float32)
        for text in list(self._known)[:-_MAX_KNOWN]:
            del self._known[text]
        return vectors_N_D

    def forget(self) -> None:
        """Call it where the model was changed."""
        self._known.clear()


def vector_index(vectors_T_D: Vectors, *, exact_up_to: int) -> Any:
    """A FAISS index by inner product."""
    num_tools, size = vectors_T_D.shape
    if num_tools <= exact_up_to:
        index: Any = faiss.IndexFlatIP(size)
    else:
        index = faiss.IndexHNSWFlat(size, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = _BUILD_WIDTH, _SEARCH_WIDTH
        faiss.omp_set_num_threads(1)  # with more the graph is another one each time
    index.add(vectors_T_D)
    return index


def _fused(rankings: Sequence[Places]) -> list[int]:
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking.tolist(), 1):
            scores[place] = scores.get(place, 0.0) + 1 / (FUSION_K + rank)
    return sorted(scores, key=lambda place: -scores[place])
