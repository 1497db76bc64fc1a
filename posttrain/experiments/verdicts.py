"""The verdict on methods of learning online: each against the baseline from the same SFT models,
over tasks and seeds, corrected for how many were tried.

Two runs are a pair where they began from the same model, byte for byte, and the same code made
them. What is on record and is no such pair, or ran with knobs that its method has no more, is left
out and said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.evals.significance import Verdict, corrected, mean_interval, paired_difference
from posttrain.experiments.arms import Method, Study
from posttrain.experiments.record import ArmRecord, Measure, with_these_knobs
from posttrain.runtime.exits import DataError

Interval = tuple[float, float, float]  # a mean, and what bounds it


@dataclass(frozen=True, slots=True)
class Measured:
    """A method by one measure. `difference` to the baseline is None of the baseline itself,
    and where there are no pairs."""

    success: Interval
    difference: Verdict | None


@dataclass(frozen=True, slots=True)
class Row:
    """A method with runs on record: those that count, by seed."""

    name: str
    method: Method
    runs: Mapping[int, ArmRecord]
    measured: Mapping[Measure, Measured]


@dataclass(frozen=True, slots=True)
class Table:
    """The baseline first, the others in the order of the study. `notes`: what was left out."""

    regime: str
    baseline: str
    rows: Sequence[Row]
    notes: Sequence[str]


def make_table(study: Study, regime: str, known: Mapping[str, ArmRecord], *, params: str) -> Table:
    """Of what is on record in a regime. `params` is the text of `params.yaml`. Raises DataError
    where the baseline has no run."""
    records = with_these_knobs(study, regime, known, params=params)
    by_method: dict[str, dict[int, ArmRecord]] = {}
    for one in sorted(records.values(), key=lambda one: one.seed):
        by_method.setdefault(one.method, {})[one.seed] = one
    base = by_method.get(study.baseline)
    if not base:
        raise DataError(
            f"no run of {study.baseline} with the knobs of today is on record in {regime}: all others are compared "
            "with it, run it first"
        )
    names = [study.baseline, *(name for name in study.methods if name in by_method and name != study.baseline)]
    others = sorted(known.keys() - records.keys())
    notes = [f"left out, because their knobs are others today: {', '.join(others)}"] if others else []
    counted: dict[str, dict[int, ArmRecord]] = {}
    for name in names:
        runs = by_method[name]
        counted[name] = {seed: one for seed, one in runs.items() if seed in base and _is_pair(one, base[seed])}
        if left_out := sorted(runs.keys() - counted[name].keys()):
            notes.append(
                f"{name}: of seed {', '.join(map(str, left_out))} left out, because {study.baseline} has no run there "
                "of the same code from the same model; run both again"
            )
    names = [name for name in names if counted[name]]
    by_measure = {measure: _measured(counted, names, measure) for measure in Measure}
    rows = [
        Row(name, study.methods[name], counted[name], {measure: found[name] for measure, found in by_measure.items()})
        for name in names
    ]
    return Table(regime, study.baseline, rows, notes)


def _is_pair(one: ArmRecord, base: ArmRecord) -> bool:
    return (one.sft, one.code, one.tasks) == (base.sft, base.code, base.tasks)


def _measured(
    counted: Mapping[str, Mapping[int, ArmRecord]], names: Sequence[str], measure: Measure
) -> dict[str, Measured]:
    """The first is the baseline; the differences are one family."""
    outcomes = {name: {seed: run.outcomes(measure) for seed, run in counted[name].items()} for name in names}
    base, others = outcomes[names[0]], names[1:]
    found = corrected(
        [paired_difference([base[seed] for seed in outcomes[name]], list(outcomes[name].values())) for name in others]
    )
    differences: list[Verdict | None] = [None, *found]
    return {
        name: Measured(mean_interval(list(outcomes[name].values())), one)
        for name, one in zip(names, differences, strict=True)
    }
