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
    yield _of_counts("demonstrations", then["num_kept"], now["num_kept"], params.max_rows)
    for name in ("median", "p95"):
        lengths = then["tokens_estimate"][name], now["tokens_estimate"][name]
        yield _of_counts(f"{name} tokens", *lengths, params.max_length)
    dropped, drops = then["quarantined_frac"], now["quarantined_frac"]
    yield Change("quarantined", f"{dropped:.1%}", f"{drops:.1%}", abs(drops - dropped), params.max_share)
    if "labels" in then:  # an older summary has no shares
        for label in dict.fromkeys((*then["labels"], *now["labels"])):
            before, after = (one["labels"].get(label, {}) for one in (then, now))
            yield _of_shares(label, before, after, params.max_share)
        yield _of_shares("tool", then["tools"], now["tools"], params.max_share)


def _of_counts(name: str, then: int, now: int, limit: float) -> Change:
    return Change(name, f"{then:,}", f"{now:,}", abs(now / max(then, 1) - 1), limit)


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
