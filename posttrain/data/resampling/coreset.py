"""Coreset selection: chooses a share of the demonstrations by one of four strategies.

`loss_topk`: the highest loss of the base model. `diversity`: greedy k-centre (Gonzalez 1985), whose
radius is at most twice the best possible; within neighbourhoods where there are many rows.
`hybrid`: half by loss, then centres that cover what those left uncovered. `random`: the baseline.
"""

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from posttrain.data.resampling.neighbourhoods import neighbourhoods

EXACT_ROWS = 20_000
MIN_CELL_ROWS, CHOSEN_PER_CELL = 1000, 200
MAX_DISTANCES = 50_000_000  # from chosen rows to those of their neighbourhoods: seconds of work
NEAR_CELLS = 8
_BLOCK = 2**20  # distances in memory at once
Strategy = Literal["loss_topk", "diversity", "hybrid", "random"]


def num_kept(num_rows: int, keep_frac: float) -> int:
    """`keep_frac` of the rows, and at least one: 0.2 of 7 is 1, of 8 is 2."""
    return min(num_rows, max(1, round(num_rows * keep_frac)))


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
            chosen = _centres(features_N_D, np.zeros(0, np.int64), keep, seed)
        case "hybrid":
            chosen = _centres(features_N_D, _hardest(losses_N, keep // 2), keep, seed)
    return np.sort(chosen)


def _hardest(losses_N: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(-losses_N, kind="stable")
    return order[:count]


def _centres(features_N_D: NDArray[np.float64], given: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Farthest-first traversal: `given` (or the row nearest to the mean), then one by one the row
    farthest from all chosen ones.

    Up to `EXACT_ROWS` rows it is exact. More are split into neighbourhoods, of each of which about
    `CHOSEN_PER_CELL` rows are chosen, or as many as `MAX_DISTANCES` allows. A row is then compared
    with the chosen rows of its own neighbourhood and of those that have it among their `NEAR_CELLS`
    nearest. Its true distance is never larger than that, so the last choice bounds the radius, and
    the work grows with N and not with N².
    """
    size = max(MIN_CELL_ROWS, max(MAX_DISTANCES, CHOSEN_PER_CELL * len(features_N_D)) // max(1, count))
    if len(features_N_D) <= max(size, EXACT_ROWS):
        return _farthest_first(features_N_D, given, count)
    return _farthest_first_in(neighbourhoods(features_N_D, size=size, seed=seed), features_N_D, given, count)


def _farthest_first(features_N_D: NDArray[np.float64], given: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    cover = _Cover(features_N_D, np.arange(len(features_N_D)))
    chosen = list(given) or [cover.middle]
    for index in chosen:
        cover.add(features_N_D[index])
    for index in chosen:
        cover.leave_out(index)
    while len(chosen) < count:  # O(count · N · D): each choice updates all distances once
        index = cover.farthest()[1]
        chosen.append(index)
        cover.add(features_N_D[index])
        cover.leave_out(index)
    return np.array(chosen[:count], np.int64)


def _farthest_first_in(
    cells: Sequence[NDArray[np.int64]], features_N_D: NDArray[np.float64], given: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Farthest-first over neighbourhoods with a heap. A neighbourhood's distances are updated with
    the waiting chosen rows, all at once, only when it would give the next row: distances only
    shrink, so a stale offer is never too small."""
    covers = [_Cover(features_N_D[cell], cell) for cell in cells]
    means = np.stack([features_N_D[cell].mean(axis=0) for cell in cells])
    search = NearestNeighbors(n_neighbors=min(NEAR_CELLS, len(cells)), algorithm="brute").fit(means)
    near_N_K = search.kneighbors(features_N_D, return_distance=False)
    own_N = np.empty(len(features_N_D), np.int64)
    for number, cell in enumerate(cells):
        own_N[cell] = number
    waiting: list[list[int]] = [[] for _ in cells]

    def choose(index: int) -> None:
        covers[own_N[index]].leave_out(index)
        for number in {int(own_N[index]), *near_N_K[index].tolist()}:
            waiting[number].append(index)

    chosen = [int(index) for index in given]
    for index in chosen:
        choose(index)
    offers = [(*cover.farthest(), number) for number, cover in enumerate(covers)]
    heapq.heapify(offers)
    with threadpool_limits(1):  # the products are too small for threads
        while len(chosen) < count:
            _, index, number = offers[0]  # the farthest offer, possibly stale
            if waiting[number]:
                covers[number].add_all(features_N_D[waiting[number]])
                waiting[number] = []
            else:
                choose(index)
                chosen.append(index)
            heapq.heapreplace(offers, (*covers[number].farthest(), number))
    return np.array(chosen[:count], np.int64)


class _Cover:
    """Distances of some rows (`index_N`: their positions among all, ascending) to the nearest
    centre added so far. `middle` is the row nearest to their mean."""

    def __init__(self, features_N_D: NDArray[np.float64], index_N: NDArray[np.int64]) -> None:
        self._features_N_D, self._index_N = features_N_D, index_N
        self._squares_N = np.einsum("nd,nd->n", features_N_D, features_N_D)
        self._nearest_N = np.full(len(index_N), np.inf)
        self.middle = int(index_N[np.argmin(self._distances(features_N_D.mean(axis=0)))])

    def farthest(self) -> tuple[float, int]:
        """Negative distance and position of the row farthest from all centres, so that a min-heap
        gives the farthest of several covers; the middle one where there is no centre."""
        place = int(np.argmax(self._nearest_N))
        far = float(self._nearest_N[place])
        return -far, self.middle if far == np.inf else int(self._index_N[place])

    def leave_out(self, index: int) -> None:
        """Exclude a row from being the farthest."""
        self._nearest_N[np.searchsorted(self._index_N, index)] = -np.inf

    def add(self, centre_D: NDArray[np.float64]) -> None:
        np.minimum(self._nearest_N, self._distances(centre_D), out=self._nearest_N)

    def add_all(self, centres_M_D: NDArray[np.float64]) -> None:
        """Add many centres by one matrix product: many times as fast as one by one, but rounded
        otherwise, so that of equally far rows another one may be the farthest."""
        for start in range(0, len(centres_M_D), block := max(1, _BLOCK // len(self._index_N))):
            some_M_D = centres_M_D[start : start + block]
            found_M_N = -2 * some_M_D @ self._features_N_D.T + np.einsum("md,md->m", some_M_D, some_M_D)[:, None]
            np.minimum(self._nearest_N, self._squares_N + found_M_N.min(axis=0), out=self._nearest_N)

    def _distances(self, centre_D: NDArray[np.float64]) -> NDArray[np.float64]:
        """Squared distances to a centre, as |x|² − 2 x·c + |c|²: one product, no (N, D)
        temporary."""
        found_N: NDArray[np.float64] = self._squares_N - 2 * self._features_N_D @ centre_D + centre_D @ centre_D
        return found_N
