"""Compares the demonstrations with those of a committed version, by the two summaries of
`validate_data`: how many there are, how long, of which labels, with which tools."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from posttrain.data.params import DriftParams


class Change(NamedTuple):
    """A figure then and now, as text; `size` is judged against `limit`."""

    figure: str
    then: str
    now: str
    size: float
    limit: float

    @property
    def is_drift(self) -> bool:
        return self.size > self.limit


def drift(then: Mapping[str, Any], now: Mapping[str, Any], params: DriftParams) -> list[Change]:
    """A change for each figure that both summaries have. Sizes of counts and lengths are relative,
    those of shares the total variation distance: 0.1 where a tenth of the rows is of another
    value."""
    return list(_changes(then, now, params))


def _changes(then: Mapping[str, Any], now: Mapping[str, Any], params: DriftParams) -> Iterator[Change]:
    counts = [("demonstrations", then["num_kept"], now["num_kept"], params.max_rows)]
    lengths = [(f"{name} tokens", then["tokens_estimate"], now["tokens_estimate"]) for name in ("median", "p95")]
    counts += [
        (name, before[name.split()[0]], after[name.split()[0]], params.max_length) for name, before, after in lengths
    ]
    for name, before, after, limit in counts:
        yield Change(name, f"{before:,}", f"{after:,}", abs(after / max(before, 1) - 1), limit)
    before, after = then["quarantined_frac"], now["quarantined_frac"]
    yield Change("quarantined", f"{before:.1%}", f"{after:.1%}", abs(after - before), params.max_share)
    shares = {name: (then["labels"].get(name, {}), one) for name, one in now.get("labels", {}).items()}
    if "labels" in then:
        for name, (before, after) in shares.items() | {("tool", (then["tools"], now["tools"]))}:
            yield _of_shares(name, before, after, params.max_share)


def _of_shares(name: str, then: Mapping[str, float], now: Mapping[str, float], limit: float) -> Change:
    values = dict.fromkeys((*then, *now))
    moves = {value: now.get(value, 0.0) - then.get(value, 0.0) for value in values}
    most = max(moves, key=lambda value: abs(moves[value]), default="")
    before, after = (f"{most} {one.get(most, 0.0):.1%}" for one in (then, now))
    return Change(f"share of {name}", before, after, sum(map(abs, moves.values())) / 2, limit)


def drift_table(changes: Sequence[Change]) -> str:
    rows = [("", "then", "now", "change", "limit", "")]
    rows += [(c.figure, c.then, c.now, f"{c.size:.3f}", f"{c.limit:g}", "DRIFT" * c.is_drift) for c in changes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
