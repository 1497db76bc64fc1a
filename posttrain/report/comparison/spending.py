"""What runs took: hours, GPU hours, and money."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.report.comparison.runs import Run
from posttrain.report.prices import Price


@dataclass(frozen=True, slots=True)
class Spent:
    """Of a run, or on average of several: what it took to make all of its results, also those that
    it has from a cache. `money` is None without a price; of what is not `is_whole` some stages have
    left no record, and it took more."""

    hours: float
    gpu_hours: float
    money: float | None
    is_whole: bool


def spent(runs: Sequence[Run], price: Price | None) -> Spent | None:
    """None where no run has a record."""
    known = [run for run in runs if run.costs]
    if not known:
        return None
    costs = [cost for run in known for cost in run.costs.values()]
    return Spent(
        hours=sum(one.all_s for one in costs) / 3600 / len(known),
        gpu_hours=sum(one.gpu_hours for one in costs) / len(known),
        money=price.of(costs) / len(known) if price else None,
        is_whole=all(run.costs.keys() == run.stages.keys() for run in known),
    )
