"""Runs that differ in their training seed and in nothing else are one setting, and settings are
what is compared: a run alone may be lucky."""

import re
from collections.abc import Iterable, Mapping, Sequence
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
from posttrain.report.comparison.runs import Run
from posttrain.report.comparison.spending import Spent, spent
from posttrain.report.knobs import knobs_that_differ, setting_of
from posttrain.report.prices import Price
from posttrain.runtime.exits import DataError

_SEED_OF_NAME = re.compile(r"-seed\d+$")
_TRAINING = "train_policy"


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs of the same knobs and code. `counted` are those with results, one of each seed: a second
    run of a seed says nothing new. `knobs` and `code` are what differs from the baseline: for a
    knob (there, here), of code the paths. `success` is the mean over runs with its interval, and so
    is `strict_success`, None where not every run recorded it; `is_strict` where all of the settings
    did, and it is what they are compared by. `difference` to the baseline, None of the baseline
    itself, or where `problem` says why none can be had; `spent` on average by one of its runs, and
    `spent_by_run`, None where nobody knows."""

    name: str
    runs: Sequence[Run]
    counted: Sequence[Run]
    knobs: Mapping[str, tuple[Any, Any]]
    code: Sequence[str]
    success: tuple[float, float, float] | None
    strict_success: tuple[float, float, float] | None
    is_strict: bool
    difference: Verdict | None
    problem: str
    spent: Spent | None
    spent_by_run: Sequence[Spent | None]


def compare_settings(runs: Sequence[Run], *, margin: float = MARGIN, price: Price | None = None) -> list[Setting]:
    """The setting of the first run is the baseline, and stands first; the others follow as they
    were named. A branch without results is a setting with a problem.

    Where no setting has a second run, the spread over the seeds that are committed beside the
    baseline stands for them. Where all runs are of one setting, they are compared with each other,
    and are tied."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    is_one = len(groups) == 1
    settings = [[run] for run in runs] if is_one else list(groups.values())
    baseline, counted = settings[0], [_counted(group) for group in settings]
    is_strict = _have_strict(run for group in counted for run in group)
    is_same = [is_one or _made_the_same(baseline, group) for group in settings]
    spread = spread_over(baseline[0].strict_seed_rates if is_strict else baseline[0].seed_rates)
    outcomes = [[run.outcomes_by(is_strict=is_strict) for run in group] for group in counted]
    differences, problems = _differences(outcomes, is_same, spread, margin)
    return [
        Setting(
            name=_name(group),
            runs=group,
            counted=counted[index],
            knobs=knobs_that_differ(baseline[0].knobs, group[0].knobs),
            code=_code_that_differs(baseline[0], group[0]),
            success=_success(counted[index], is_strict=False),
            strict_success=_success(counted[index], is_strict=True) if _have_strict(counted[index]) else None,
            is_strict=is_strict,
            difference=differences.get(index),
            problem=problems.get(index, ""),
            spent=spent(group, price),
            spent_by_run=[spent([run], price) for run in group],
        )
        for index, group in enumerate(settings)
    ]


def _differences(
    outcomes: Sequence[Sequence[Outcomes]], is_same: Sequence[bool], known: Spread | None, margin: float
) -> tuple[dict[int, Verdict], dict[int, str]]:
    """By the place of the setting; corrected as one family."""
    found, problems = {}, {}
    for index, own in enumerate(outcomes[1:], 1):
        try:
            found[index] = difference(outcomes[0], own, spread=known, margin=margin, is_one_setting=is_same[index])
        except DataError as error:
            problems[index] = str(error)
    return dict(zip(found, corrected(list(found.values())), strict=True)), problems


def _have_strict(runs: Iterable[Run]) -> bool:
    """Whether all of them recorded strict success."""
    return all(run.strict_outcomes is not None for run in runs)


def _success(counted: Sequence[Run], *, is_strict: bool) -> tuple[float, float, float] | None:
    try:
        return mean_interval([run.outcomes_by(is_strict=is_strict) for run in counted])
    except DataError:
        return None


def _counted(group: Sequence[Run]) -> list[Run]:
    by_seed: dict[Any, Run] = {}
    for run in group:
        if run.outcomes:
            by_seed.setdefault(repr(run.seed), run)
    return list(by_seed.values())


def _key(run: Run) -> tuple[Any, ...]:
    """Equal for runs of one setting. Without knobs or a lock nobody knows, and a run is alone."""
    if not run.knobs or not run.stages:
        return (run.commit, run.name)
    knobs = frozenset((name, repr(value)) for name, value in setting_of(run.knobs).items())
    return knobs, frozenset(run.code.items())


def _made_the_same(first: Sequence[Run], second: Sequence[Run]) -> bool:
    """One run each that made the same model to the byte and played it alike."""
    models = [run.stages[_TRAINING].outs for run in (first[0], second[0]) if _TRAINING in run.stages]
    is_one_model = len(models) == 2 and models[0] == models[1]
    return len(first) == len(second) == 1 and is_one_model and first[0].outcomes == second[0].outcomes


def _code_that_differs(baseline: Run, run: Run) -> list[str]:
    before, after = baseline.code, run.code
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _name(group: Sequence[Run]) -> str:
    """`exp/faster` of exp/faster-seed1 and exp/faster-seed2."""
    names = list(dict.fromkeys(run.name for run in group))
    stems = {_SEED_OF_NAME.sub("", name) for name in names}
    if len(names) > 1 and len(stems) == 1:
        return stems.pop()
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
