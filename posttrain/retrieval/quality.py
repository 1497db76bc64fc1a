"""Quality of a ranking against the tools that questions need, by name: recall@1, 5 and 10, the mean
reciprocal rank (MRR) and nDCG@10.

A few tools are needed by many questions: the mean over questions is theirs. So each figure is also
given macro, the mean over tools of the mean over their questions, and by source.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from posttrain.retrieval.catalogue import CatalogueTool, Question
from posttrain.retrieval.rankers import Ranker

DEPTH = 10
RANKED = 50  # of each question; a reciprocal rank beyond counts as 0
_AT = (1, 5, 10)


def compare(
    rankers: Mapping[str, Ranker], tools: Sequence[CatalogueTool], questions: Sequence[Question]
) -> dict[str, Any]:
    """The quality of each ranker on the questions, and `by_source` on those of each source."""
    compared: dict[str, Any] = {}
    for name, ranker in rankers.items() if questions else ():
        places_Q_K = ranker.rank([question.text for question in questions], RANKED)
        ranked = [[tools[place].name for place in places_K] for places_K in places_Q_K.tolist()]
        compared[name] = rounded(quality(ranked, questions)) | {
            "by_source": {source: rounded(one) for source, one in quality_by_source(ranked, questions).items()}
        }
    return compared


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in metrics.items()}


def quality(ranked: Sequence[Sequence[str]], questions: Sequence[Question]) -> dict[str, float]:
    """The metrics of one ranking, names with the nearest first, for each question; macro ones begin
    with `macro_`. Empty without questions."""
    if not questions:
        return {}
    found = [metrics_of(names, question.tools) for names, question in zip(ranked, questions, strict=True)]
    by_tool: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for metrics, question in zip(found, questions, strict=True):
        for name in question.tools:
            by_tool[name].append(metrics)
    macro = {f"macro_{key}": fmean(_mean(of_tool, key) for of_tool in by_tool.values()) for key in found[0]}
    micro = {key: _mean(found, key) for key in found[0]}
    return {"num_questions": len(questions), "num_tools": len(by_tool), **micro, **macro}


def quality_by_source(ranked: Sequence[Sequence[str]], questions: Sequence[Question]) -> dict[str, dict[str, float]]:
    """The same for each source of questions."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        places[question.source].append(place)
    return {
        source: quality([ranked[place] for place in of_source], [questions[place] for place in of_source])
        for source, of_source in sorted(places.items())
    }


def metrics_of(ranked: Sequence[str], needed: Sequence[str]) -> dict[str, float]:
    """Metrics of one question. Needed are a and b, ranked c, a, b: recall@1 is 0, recall@5 1, the
    reciprocal rank 1/2, nDCG (1/log2 3 + 1/log2 4) / (1/log2 2 + 1/log2 3) = 0.69."""
    ranks = [rank for rank, name in enumerate(ranked, 1) if name in needed]
    gains = sum(1 / math.log2(rank + 1) for rank in ranks if rank <= DEPTH)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(needed), DEPTH) + 1))
    recall = {f"recall_at_{k}": sum(rank <= k for rank in ranks) / len(needed) for k in _AT}
    return {**recall, "mrr": 1 / ranks[0] if ranks else 0.0, f"ndcg_at_{DEPTH}": gains / best}


def _mean(metrics: Sequence[Mapping[str, float]], key: str) -> float:
    return fmean(one[key] for one in metrics)
