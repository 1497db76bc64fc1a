"""Splits many rows into small neighbourhoods, in each of which quadratic work is affordable."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

MAX_DISTANCES = 100_000_000  # seconds of exact search; beyond it only near rows are compared
SEARCH_ROWS, SEARCH_CELLS = 500, 16

_ROWS_PER_CENTRE, _MAX_CENTRES = 256, 1024
_MAX_TIMES_AS_LARGE = 4


def neighbourhoods(features_N_D: NDArray[np.float64], *, size: int, seed: int) -> list[NDArray[np.int64]]:
    """Partition the rows into neighbourhoods of about `size` and at most `4 * size` rows:
    positions, ascending in each, ordered by their first rows.

    Mini-batch k-means (Sculley 2010) on a sample; what is still too large is split again, and equal
    rows by their order. Deterministic in (features, size, seed), whatever the number of threads.
    """
    with threadpool_limits(1):  # sums of several threads are rounded in the order in which they end
        cells = list(_split(features_N_D, np.arange(len(features_N_D)), size, np.random.default_rng(seed)))
    return sorted(cells, key=lambda cell: int(cell[0]))


class NearestInCells(NearestNeighbors):  # type: ignore[misc]  # scikit-learn is untyped
    """scikit-learn's NearestNeighbors, approximate where points × rows exceed `MAX_DISTANCES`.

    A point is then compared with the rows of the `SEARCH_CELLS` neighbourhoods around its own, of
    about `SEARCH_ROWS` rows each, so that the work grows with points + rows and not with their
    product. A neighbour outside of them is missed, and a farther row is returned for it.
    """

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        rows_N_D, points_M_D = self._fit_X, self._fit_X if X is None else X
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        is_small = len(rows_N_D) * len(points_M_D) <= MAX_DISTANCES
        if X is None or is_small or len(rows_N_D) <= max(count, SEARCH_ROWS) * SEARCH_CELLS:
            return super().kneighbors(X, n_neighbors, return_distance)
        distances_M_K, found_M_K = _nearest_in_cells(rows_N_D, points_M_D, count)
        return (distances_M_K, found_M_K) if return_distance else found_M_K


def _nearest_in_cells(
    rows_N_D: NDArray[np.float64], points_M_D: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    cells = neighbourhoods(rows_N_D, size=max(count, SEARCH_ROWS), seed=0)
    means = np.stack([rows_N_D[cell].mean(axis=0) for cell in cells])
    search = NearestNeighbors(n_neighbors=min(SEARCH_CELLS, len(cells)), algorithm="brute").fit(means)
    around = search.kneighbors(means, return_distance=False)
    own_M = search.kneighbors(points_M_D, n_neighbors=1, return_distance=False)[:, 0]
    distances_M_K, found_M_K = np.empty((len(points_M_D), count)), np.empty((len(points_M_D), count), np.int64)
    order = np.argsort(own_M, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(own_M[order])) + 1):
        near = np.sort(np.concatenate([cells[number] for number in around[own_M[mine[0]]]]))
        inner = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(rows_N_D[near])
        distances_M_K[mine], found = inner.kneighbors(points_M_D[mine])
        found_M_K[mine] = near[found]
    return distances_M_K, found_M_K


def _split(
    features_N_D: NDArray[np.float64], rows_M: NDArray[np.int64], size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    if len(rows_M) <= _MAX_TIMES_AS_LARGE * size:
        yield rows_M
        return
    num_centres = min(len(rows_M) // size, _MAX_CENTRES)
    sample = np.sort(rng.permutation(len(rows_M))[: _ROWS_PER_CENTRE * num_centres])
    means = MiniBatchKMeans(
        num_centres,
        batch_size=4096,
        n_init=1,
        max_iter=20,
        random_state=int(rng.integers(2**31)),
        compute_labels=False,
        init="random",
    ).fit(features_N_D[rows_M[sample]])
    labels_M = means.predict(features_N_D[rows_M])
    order = np.argsort(labels_M, kind="stable")
    parts = [part for part in np.split(rows_M[order], np.flatnonzero(np.diff(labels_M[order])) + 1) if len(part)]
    if len(parts) == 1:
        yield from np.array_split(rows_M, -(-len(rows_M) // size))
        return
    for part in parts:
        yield from _split(features_N_D, part, size, rng)
