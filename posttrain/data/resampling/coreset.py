"""Coreset selection: chooses a share of the demonstrations by one of four strategies.

`loss_topk`: the highest loss of the base model. `diversity`: greedy k-centre (Gonzalez 1985), whose
radius is at most twice the best possible. `hybrid`: half by loss, then centres that cover what
those left uncovered. `random`: the baseline.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
            chosen = _farthest_first(features_N_D, np.zeros(0, np.int64), keep)
        case "hybrid":
            chosen = _farthest_first(features_N_D, _hardest(losses_N, keep // 2), keep)
    return np.sort(chosen)


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
