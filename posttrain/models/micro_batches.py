"""Cuts the rows of a step into micro-batches, the parts that go through a model at once: at most so
many rows, and at most so many tokens, padding included, which is what memory and time grow with.

A step's loss is a mean over the step, so it is the same however it is cut. Every process has as
many parts, of as many rows each: FSDP exchanges shards in every pass, and TRL gathers metrics of
rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Limits of a micro-batch: rows, and tokens of its longest row times its rows. None: no limit.
    A row that is longer than the limit goes alone."""

    rows: int | None = None
    tokens: int | None = None

    @property
    def in_pairs(self) -> "AtOnce":
        """The same for pairs, which are two rows each, at least one pair."""
        return AtOnce(
            None if self.rows is None else max(self.rows // 2, 1), None if self.tokens is None else self.tokens // 2
        )

    def num_rows(self, width: int, usual: int) -> int:
        """Rows of `width` tokens that go through at once where `usual` would without limits."""
        within_rows = usual if self.rows is None else min(self.rows, usual)
        return within_rows if self.tokens is None else max(min(self.tokens // width, within_rows), 1)


NO_LIMIT = AtOnce()
OVERHEAD = 1 / 16  # of the limit in tokens: what a pass costs besides its tokens


def cut_by_length(lengths: Sequence[int], at_once: AtOnce) -> list[list[int]]:
    """The fewest parts within the limits: places of rows by rising length. Lengths 2, 9, 3, 4 of at
    most 8 tokens: [0, 2], [3], [1], as two rows of 3 are 6 tokens and three of 4 are 12."""
    parts: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        num_rows = len(parts[-1]) + 1 if parts else 1
        is_over = at_once.rows is not None and num_rows > at_once.rows
        is_over |= at_once.tokens is not None and num_rows * lengths[place] > at_once.tokens
        if is_over or not parts:
            parts.append([])
        parts[-1].append(place)
    return parts


def cut_alike(lengths_of: Sequence[Sequence[int]], at_once: AtOnce) -> list[list[list[int]]]:
    """Parts of each process's rows, the longest first, for a lack of memory to show there. The rows
    that have the same place by length go together in all processes; one with fewer rows has fewer
    short ones, and maybe none in its last parts."""
    orders = [sorted(range(len(lengths)), key=lambda place: lengths[place]) for lengths in lengths_of]
    size = max(map(len, orders))
    widths = [0] * size
    for lengths, order in zip(lengths_of, orders, strict=True):
        for place, row in enumerate(order, size - len(order)):
            widths[place] = max(widths[place], lengths[row])
    parts = _cut_cheaply(widths, at_once)[::-1]
    return [
        [[order[place - size + len(order)] for place in part if place >= size - len(order)] for part in parts]
        for order in orders
    ]


def _cut_cheaply(widths: Sequence[int], at_once: AtOnce) -> list[range]:
    """Places of rows of rising width in parts within the limits, so that padded tokens and
    OVERHEAD of the limit for each part are the least in sum: the fewest parts would be full of
    padding, as rows of all lengths stand in one."""
    rows, tokens = at_once.rows or len(widths), at_once.tokens or 0
    costs, starts = [0.0], [0]  # of the first rows, and where their last part begins
    for end, width in enumerate(widths, 1):
        most = min(rows, tokens // max(width, 1), end)
        options = [
            (costs[start] + (end - start) * width + OVERHEAD * tokens, start)
            for start in range(end - max(most, 1), end)
        ]
        cost, start = min(options)
        costs.append(cost)
        starts.append(start)
    parts: list[range] = []
    end = len(widths)
    while end:
        parts.append(range(starts[end], end))
        end = starts[end]
    return parts[::-1]


def dealt(num_rows: int, num_processes: int) -> list[list[int]]:
    """Places of rows sorted by length that each process gets, to and fro, so that all have as many
    tokens but for one row: of 5 rows the first of two processes has 0, 3 and 4."""
    turns = [range(start, min(start + num_processes, num_rows)) for start in range(0, num_rows, num_processes)]
    shares: list[list[int]] = [[] for _ in range(num_processes)]
    for number, turn in enumerate(turns):
        for process, place in enumerate(turn):
            shares[process if number % 2 == 0 else num_processes - 1 - process].append(place)
    return shares
