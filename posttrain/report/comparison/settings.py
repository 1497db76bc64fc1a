"""Compares settings: runs that differ in their training seed and in nothing else are one setting,
because a run alone may be lucky."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.evals.significance import (
    MARGIN,
    Outcomes,
    Spread,
    Verdict,
    corrected,
    difference,
    mean_interval,
    spread_over,
)
from posttrain.report.comparison.runs import RunResults
from posttrain.report.knobs import knobs_that_differ, setting_of
from posttrain.report.run_reader import Measure
from posttrain.runtime.exits import DataError

_SEED_OF_NAME = re.compile(r"-seed\d+$")
_TRAINING = "train_policy"


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of a run, or mean over several, with the results that it has from a cache. Without
    `is_whole` some stages have left no record, and it took more."""

    hours: float
    gpu_hours: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs of the same knobs and code.

    `counted` are those with results, one of each seed: a second run of a seed says nothing new.
    `knobs` and `code` are what differs from the baseline: for a knob (there, here), of code the
    paths. `success` is the mean over runs with its interval, and so is `strict_success`, None where
    a run of another tool has none. `measure` is what all settings are compared by. `difference` to
    the baseline is None of the baseline itself, or where `problem` says why. `spent` is the mean
    over its runs, and `spent_by_run` of each, None without a record.
    """

    name: str
    runs: Sequence[RunResults]
    counted: Sequence[RunResults]
    knobs: Mapping[str, tuple[Any, Any]]
    code: Sequence[str]
    success: tuple[float, float, float] | None
    strict_success: tuple[float, float, float] | None
    measure: Measure
    difference: Verdict | None
    problem: str
    spent: Spent | None
    spent_by_run: Sequence[Spent | None]


def compare_settings(runs: Sequence[RunResults], *, margin: float = MARGIN) -> list[Setting]:
    """Compare settings with that of the first run, the baseline, which stands first; the others
    follow as they were named. A branch without results is a setting with a problem.

    Where no setting has a second run, the spread over the seeds that are committed beside the
    baseline stands for them. Where all runs are of one setting, they are compared with each other,
    and are tied."""
    groups: dict[tuple[Any, ...], list[RunResults]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    is_one = len(groups) == 1
    settings = [[run] for run in runs] if is_one else list(groups.values())
    baseline, counted = settings[0], [_counted(group) for group in settings]
    measure = Measure.STRICT if all(run.has_strict for group in counted for run in group) else Measure.PLAIN
    is_same = [is_one or _made_the_same(baseline, group) for group in settings]
    spread = spread_over(baseline[0].seed_rates.get(measure, ()))
    outcomes = [[run.outcomes(measure) for run in group] for group in counted]
    differences, problems = _differences(outcomes, is_same, spread, margin)
    return [
        Setting(
            name=_name(group),
            runs=group,
            counted=counted[index],
            knobs=knobs_that_differ(baseline[0].knobs, group[0].knobs),
            code=list(knobs_that_differ(baseline[0].code, group[0].code)),
            success=_success(counted[index], Measure.PLAIN),
            strict_success=_success(counted[index], Measure.STRICT),
            measure=measure,
            difference=differences.get(index),
            problem=problems.get(index, ""),
            spent=_spent(group),
            spent_by_run=[_spent([run]) for run in group],
        )
        for index, group in enumerate(settings)
    ]


def _differences(
    outcomes: Sequence[Sequence[Outcomes]], is_same: Sequence[bool], known: Spread | None, margin: float
) -> tuple[dict[int, Verdict], dict[int, str]]:
    """Verdicts and problems by the setting's place; corrected as one family."""
    found, problems = {}, {}
    for index, own in enumerate(outcomes[1:], 1):
        try:
            found[index] = difference(outcomes[0], own, spread=known, margin=margin, is_one_setting=is_same[index])
        except DataError as error:
            problems[index] = str(error)
    return dict(zip(found, corrected(list(found.values())), strict=True)), problems


def _success(counted: Sequence[RunResults], measure: Measure) -> tuple[float, float, float] | None:
    if measure is Measure.STRICT and not all(run.has_strict for run in counted):
        return None
    try:
        return mean_interval([run.outcomes(measure) for run in counted])
    except DataError:
        return None


def _spent(runs: Sequence[RunResults]) -> Spent | None:
    known = [run for run in runs if run.costs]
    if not known:
        return None
    costs = [cost for run in known for cost in run.costs.values()]
    return Spent(
        hours=sum(one.all_s for one in costs) / 3600 / len(known),
        gpu_hours=sum(one.gpu_hours for one in costs) / len(known),
        is_whole=all(run.costs.keys() == run.stages.keys() for run in known),
    )


def _counted(group: Sequence[RunResults]) -> list[RunResults]:
    by_seed: dict[Any, RunResults] = {}
    for run in group:
        if run.outcomes():
            by_seed.setdefault(repr(run.seed), run)
    return list(by_seed.values())


def _key(run: RunResults) -> tuple[Any, ...]:
    """Equal for runs of one setting. Without knobs or a lock nobody knows, and a run is alone."""
    if not run.knobs or not run.stages:
        return (run.commit, run.name)
    knobs = frozenset((name, repr(value)) for name, value in setting_of(run.knobs).items())
    return knobs, frozenset(run.code.items())


def _made_the_same(first: Sequence[RunResults], second: Sequence[RunResults]) -> bool:
    """True for one run each with the same model to the byte and the same outcomes."""
    models = [run.stages[_TRAINING].outs for run in (first[0], second[0]) if _TRAINING in run.stages]
    is_one_model = len(models) == 2 and models[0] == models[1]
    return len(first) == len(second) == 1 and is_one_model and first[0].outcomes() == second[0].outcomes()


def _name(group: Sequence[RunResults]) -> str:
    """`exp/faster` of exp/faster-seed1 and exp/faster-seed2."""
    names = list(dict.fromkeys(run.name for run in group))
    stems = {_SEED_OF_NAME.sub("", name) for name in names}
    if len(names) > 1 and len(stems) == 1:
        return stems.pop()
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
