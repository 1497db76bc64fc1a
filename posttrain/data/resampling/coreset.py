"""The part of the demonstrations that teaches most, by one of four ideas.

`loss_topk`: those that the prepared model finds hardest. `diversity`: those that leave no
demonstration far from a chosen one (greedy k-centre, Gonzalez 1985: at most twice the best possible
radius). `hybrid`: half by loss, then centres that cover what those left uncovered. `random`: the
baseline.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Strategy = Literal["loss_topk", "diversity", "hybrid", "random"]


def num_kept(num_rows: int, keep_frac: float) -> int:
    """At least one where there is one: 0.2 of 7 is 1, of 8 is 2."""
    return min(num_rows, max(1, round(num_rows * keep_frac)))


def choose_coreset(
    strategy: Strategy, *, keep: int, losses_N: NDArray[np.float64], features_N_D: NDArray[np.float64], seed: int
) -> NDArray[np.int64]:
    """The positions of `keep` rows, ascending. Ties go to the earlier row. An array that the
    strategy does not read may be empty."""
    match strategy:
        case "random":
            chosen = np.random.default_rng(seed).permutation(max(len(losses_N), len(features_N_D)))[:keep]
        case "loss_topk":
            chosen = _hardest(losses_N, keep)
        case "diversity":
            chosen = _centres(features_N_D, np.zeros(0, np.int64), keep)
        case "hybrid":
            chosen = _centres(features_N_D, _hardest(losses_N, keep // 2), keep)
    return np.sort(chosen)


def _hardest(losses_N: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(-losses_N, kind="stable")
    return order[:count]


def _centres(features_N_D: NDArray[np.float64], given: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`given` and then, one by one, the row farthest from all chosen ones; without `given` the
    first is the row nearest to the mean."""
    squares_N = np.einsum("nd,nd->n", features_N_D, features_N_D)

    def distances(centre: NDArray[np.float64]) -> NDArray[np.float64]:
        from_centre: NDArray[np.float64] = squares_N - 2 * features_N_D @ centre + centre @ centre
        return from_centre

    chosen = list(given) or [int(np.argmin(distances(features_N_D.mean(axis=0))))]
    nearest_N = np.full(len(features_N_D), np.inf)
    for index in chosen:
        nearest_N = np.minimum(nearest_N, distances(features_N_D[index]))
    nearest_N[chosen] = -np.inf
    while len(chosen) < count:
        index = int(np.argmax(nearest_N))
        chosen.append(index)
        nearest_N = np.minimum(nearest_N, distances(features_N_D[index]))
        nearest_N[index] = -np.inf
    return np.array(chosen[:count], np.int64)
