"""Oversampling of rare cells: SMOTE (arXiv 1106.1813) puts a new point between a row and one of its
nearest neighbours of the same cell.

`regenerate.py` makes a demonstration from the rows nearest to a point. A point is contaminated
where most of its nearest rows belong to other cells; a high rate means that cells overlap in
feature space.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from imblearn.over_sampling import SMOTE, RandomOverSampler
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from posttrain.runtime.batch_workers import map_batches
from posttrain.runtime.exits import DataError

_BLOCK = 4096  # points whose neighbours are searched at once


@dataclass(frozen=True, slots=True)
class Point:
    """A row to add to `cell`, with the positions of the real rows of that cell to make it from,
    nearest first."""

    cell: str
    seeds: tuple[int, ...]
    is_contaminated: bool = False


def wanted_sizes(cells: Sequence[str], target_frac: float) -> dict[str, int]:
    """Target sizes: rare cells grow to that share of the largest, none shrinks. {a: 10, b: 2} at
    0.5 gives {a: 10, b: 5}."""
    sizes = Counter(cells)
    target = round(target_frac * max(sizes.values()))
    return {cell: max(size, target) for cell, size in sorted(sizes.items())}


def plan_points(
    method: Literal["smote", "duplicate"],
    features_N_D: NDArray[np.float64],
    cells: Sequence[str],
    *,
    target_frac: float,
    num_neighbors: int,
    seed: int,
) -> list[Point]:
    """The points to add, sorted by cell. With `duplicate` each is a real row drawn at random, and
    none is contaminated. SMOTE needs more rows than neighbours: a smaller cell uses as many as it
    has, and a row alone in its cell is duplicated."""
    sizes, wanted = Counter(cells), wanted_sizes(cells, target_frac)
    growing = {cell: size for cell, size in wanted.items() if size > sizes[cell]}
    if not growing:
        return []
    if method == "duplicate":
        return _drawn(cells, growing, seed)
    names = sorted(sizes)
    number_of = {cell: number for number, cell in enumerate(names)}
    numbers_N = np.fromiter((number_of[cell] for cell in cells), np.int32, len(cells))
    points: list[Point] = []
    by_neighbors: dict[int, dict[int, int]] = {}
    # one call of SMOTE takes one number of neighbours; a cell of n rows has n - 1 of its own
    for cell, size in growing.items():
        by_neighbors.setdefault(min(num_neighbors, sizes[cell] - 1), {})[number_of[cell]] = size
    for neighbors, group in sorted(by_neighbors.items()):
        if neighbors == 0:
            for number, size in group.items():
                points += [Point(names[number], (int(np.argmax(numbers_N == number)),))] * (size - 1)
            continue
        # x + u (x' - x), u uniform in [0, 1), x' one of the nearest of x in its cell (section 4.2)
        sampler = SMOTE(sampling_strategy=group, k_neighbors=neighbors, random_state=seed)
        resampled, numbers = sampler.fit_resample(features_N_D, numbers_N)
        new = slice(len(cells), None)
        points += _located(resampled[new], numbers[new], features_N_D, numbers_N, names, num_neighbors)
    return sorted(points, key=lambda point: point.cell)


def contamination(points: Sequence[Point]) -> float:
    """The share of contaminated points; 0 where there are no points."""
    return sum(point.is_contaminated for point in points) / len(points) if points else 0.0


def refuse_contaminated(points: Sequence[Point], *, max_contamination: float) -> None:
    """Raises DataError with the worst cells where the contamination is above the accepted rate."""
    rate = contamination(points)
    if rate <= max_contamination:
        return
    totals = Counter(point.cell for point in points)
    bad = Counter(point.cell for point in points if point.is_contaminated)
    worst = ", ".join(f"{cell} {count} of {totals[cell]}" for cell, count in bad.most_common(5))
    raise DataError(
        f"{bad.total()} of {len(points)} synthetic points ({rate:.1%}) lie among other cells, "
        "resample_data.oversample.max_contamination accepts "
        f"{max_contamination:.1%}; worst: {worst}. Rows made there would blur the cells they are meant to strengthen: "
        "lower target_frac or num_neighbors, set oversample.type to duplicate, or raise the limit"
    )


def _drawn(cells: Sequence[str], growing: Mapping[str, int], seed: int) -> list[Point]:
    sampler = RandomOverSampler(sampling_strategy=dict(growing), random_state=seed)
    sampler.fit_resample(np.arange(len(cells)).reshape(-1, 1), np.array(cells))
    return [Point(cells[index], (int(index),)) for index in sampler.sample_indices_[len(cells) :]]


def _located(
    points_M_D: NDArray[np.float64],
    numbers_M: NDArray[np.int32],
    features_N_D: NDArray[np.float64],
    numbers_N: NDArray[np.int32],
    names: Sequence[str],
    num_neighbors: int,
) -> list[Point]:
    """Points with their nearest rows of their own cell and whether most of their nearest rows of
    any cell belong to others. A cell is an index into `names`. For a cell with fewer rows than
    `num_neighbors` only as many neighbours are counted: more could not be its own."""
    near_M_K = _nearest(features_N_D, points_M_D, num_neighbors)
    located: list[Point | None] = [None] * len(numbers_M)
    for number in np.unique(numbers_M):
        mine, own = np.flatnonzero(numbers_M == number), np.flatnonzero(numbers_N == number)
        seeds = own[_nearest(features_N_D[own], points_M_D[mine], num_neighbors)]
        # (M, K) of bool: which of a point's nearest rows belong to another cell
        foreign = numbers_N[near_M_K[mine][:, : len(own)]] != number
        for index, seed_rows, share in zip(mine, seeds.tolist(), foreign.mean(axis=1), strict=True):
            located[index] = Point(names[number], tuple(seed_rows), bool(share > 0.5))
    return [point for point in located if point is not None]


def _nearest(rows_N_D: NDArray[np.float64], points_M_D: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Positions in `rows` of the `count` nearest of each point (all where there are fewer), nearest
    first; shape (M, K)."""
    blocks = (points_M_D[start : start + _BLOCK] for start in range(0, len(points_M_D), _BLOCK))
    return np.concatenate(list(map_batches(nearest_of_block, (rows_N_D, min(count, len(rows_N_D))), blocks)))


def nearest_of_block(given: tuple[NDArray[np.float64], int], points_M_D: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions in rows of shape (N, D) of the nearest of each point, shape (M, K): a block of
    `_nearest`, which its worker computes."""
    rows_N_D, count = given
    search = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(rows_N_D)
    found: NDArray[np.int64] = search.kneighbors(points_M_D, return_distance=False)
    return found
