"""Clusters of near twins, and the split of a catalogue into tools to train on and tools held out.

Two tools that say the same (cosine above 0.95) are one to any retriever: in different halves they
would leak, and as negatives of each other they teach what is false.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import faiss
import numpy as np

from posttrain.retrieval.catalogue import Catalogue, Question
from posttrain.retrieval.rankers import Vectors

TWINS_ABOVE = 0.95
_NEIGHBOURS = 32  # looked at for each tool; a cluster of more is joined through its members


@dataclass(frozen=True, slots=True)
class Split:
    """`held_out` are names of tools. A question that needs tools of both halves is in neither
    list."""

    held_out: frozenset[str]
    train: tuple[Question, ...]
    test: tuple[Question, ...]


def twin_clusters(vectors_T_D: Vectors) -> list[int]:
    """The cluster of each tool, as the index of its first member; `vectors_T_D` are of length 1.
    Chains join: a near b and b near c make one cluster."""
    index = faiss.IndexFlatIP(vectors_T_D.shape[1])
    index.add(vectors_T_D)
    cosines, neighbours = index.search(vectors_T_D, min(_NEIGHBOURS, len(vectors_T_D)))
    first = list(range(len(vectors_T_D)))

    def root(place: int) -> int:
        while first[place] != place:
            place = first[place]
        return place

    for place, (of_place, near) in enumerate(zip(cosines, neighbours, strict=True)):
        for other in near[of_place > TWINS_ABOVE].tolist():
            low, high = sorted((root(place), root(other)))
            first[high] = low
    return [root(place) for place in range(len(first))]


def split_catalogue(
    catalogue: Catalogue, clusters: Sequence[int], *, holdout_frac: float, kept: Collection[str] = (), seed: int
) -> Split:
    """Hold out about `holdout_frac` of the tools, whole clusters of twins, drawn by `seed`; none
    with a tool of `kept`."""
    members: dict[int, list[str]] = defaultdict(list)
    for tool, cluster in zip(catalogue.tools, clusters, strict=True):
        members[cluster].append(tool.name)
    order = np.random.default_rng(seed).permutation(sorted(members))
    held_out: set[str] = set()
    for cluster in order.tolist():
        if len(held_out) >= holdout_frac * len(catalogue.tools):
            break
        if not set(kept) & set(members[cluster]):
            held_out.update(members[cluster])
    train = tuple(one for one in catalogue.questions if not held_out & set(one.tools))
    test = tuple(one for one in catalogue.questions if held_out.issuperset(one.tools))
    return Split(frozenset(held_out), train, test)
