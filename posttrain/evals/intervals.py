"""Estimates how sure a mean is, by a bootstrap over tasks: the tasks are the sample, an agent's
episodes of one task are not independent of each other."""

from collections.abc import Sequence

import numpy as np

_CELLS_AT_ONCE = 4_000_000  # indices drawn in one go, 32 MB


def bootstrap_interval(
    values_N: Sequence[float], *, level: float, num_bootstrap: int, seed: int
) -> tuple[float, float]:
    """The percentile interval (Efron 1979) of the mean of N tasks' values, at `level` (0.95: from
    the 2.5th to the 97.5th percentile).

    The same arguments give the same interval. Where all values are equal it has no width, which
    says that tasks like these show no difference, not that none could: of 480 successes in 480 the
    next may fail. Raises ValueError where there is no task.
    """
    if not len(values_N):
        raise ValueError("an interval needs one task or more")
    values = np.asarray(values_N, dtype=np.float64)
    rng = np.random.default_rng(seed)
    rows_at_once = max(1, _CELLS_AT_ONCE // len(values))
    means = [
        values[rng.integers(0, len(values), size=(min(rows_at_once, num_bootstrap - start), len(values)))].mean(axis=1)
        for start in range(0, num_bootstrap, rows_at_once)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
