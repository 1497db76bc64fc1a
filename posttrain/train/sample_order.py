"""Order of the training rows: a function of the seed, so that a resumed run finds its place by
counting. Kinds are drawn by their weights, however many rows there are; within a kind every row
is used once before any is used twice."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def weighted_order(kinds: Sequence[str], weights: Mapping[str, float], *, count: int, seed: int) -> IntArray:
    """Indices of `count` rows. Kinds without a row give their share to the others in proportion.
    The shares hold over the whole run, not in every batch: of 10 draws at weights .35 and .65, 3
    or 4 are of the first kind (largest remainder)."""
    # another length is another order, not a prefix of the longer one
    rng = np.random.default_rng([seed, count])
    rows = {kind: np.flatnonzero([other == kind for other in kinds]) for kind in sorted(weights)}
    present = [kind for kind in rows if len(rows[kind]) and weights[kind] > 0]
    if not present:
        raise ValueError(f"no row has a weight: kinds are {sorted(set(kinds))}, the weights {dict(weights)}")
    shares = largest_remainder([weights[kind] for kind in present], count)
    drawn = [repeated_passes(rows[kind], share, rng) for kind, share in zip(present, shares, strict=True)]
    # kinds are mixed over the whole run, rows within a kind keep the order of their passes
    slots = rng.permutation(np.repeat(np.arange(len(present)), shares))
    order = np.empty(count, dtype=np.int64)
    for kind, indices in enumerate(drawn):
        order[slots == kind] = indices
    return order


def repeated_passes(rows: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """`count` of the rows: shuffled passes over all of them, the last one cut."""
    passes = [rng.permutation(rows) for _ in range(-(-count // len(rows)))]
    return np.concatenate(passes)[:count] if passes else np.empty(0, dtype=np.int64)


def passes_by_length(lengths: Sequence[int], max_steps: int, batch_size: int, *, seed: int) -> IntArray:
    """Rows of all steps in shuffled passes, (max_steps * batch_size,), a step's longest first."""
    rng = np.random.default_rng(seed)
    order = repeated_passes(np.arange(len(lengths)), max_steps * batch_size, rng)
    return sort_within_batches(order, lengths, batch_size=batch_size)


def drawn_by_length(
    lengths: Sequence[int], weights: Sequence[float], max_steps: int, batch_size: int, *, seed: int
) -> IntArray:
    """`passes_by_length`, where a row of twice the weight is drawn twice as often."""
    if len(set(weights)) <= 1:
        return passes_by_length(lengths, max_steps, batch_size, seed=seed)
    kinds = [repr(weight) for weight in weights]
    shares = {kind: float(kind) * kinds.count(kind) for kind in set(kinds)}
    order = weighted_order(kinds, shares, count=max_steps * batch_size, seed=seed)
    return sort_within_batches(order, lengths, batch_size=batch_size)


def largest_remainder(weights: Sequence[float], count: int) -> list[int]:
    """Share `count` out in integers in proportion to `weights`: 10 at 1, 1, 1 are 4, 3, 3."""
    exact = np.asarray(weights, dtype=np.float64) / np.sum(weights) * count
    whole = np.floor(exact).astype(int)
    # of equal remainders the first kind gets the row
    first = np.argsort(-(exact - whole), kind="stable")[: count - whole.sum()]
    whole[first] += 1
    return [int(share) for share in whole]


def sort_within_batches(order: IntArray, lengths: Sequence[int], *, batch_size: int) -> IntArray:
    """The same batches, rows by falling length: cut into parts, a batch then pads little."""
    # longest first: a lack of memory shows at the first part, not the last
    lengths_N = np.asarray(lengths)[order]
    batches = [np.arange(start, min(start + batch_size, len(order))) for start in range(0, len(order), batch_size)]
    return np.concatenate([order[places[np.argsort(-lengths_N[places], kind="stable")]] for places in batches])
