"""Verdicts on the overrides of an experiment: each against the baseline, over tasks and seeds,
corrected for how many were tried.

Arms that began from the same SFT model, byte for byte, are compared in pairs, so that what the
model adds to both is in none of the difference; others as two settings whose runs share nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.evals.significance import Verdict, corrected, difference, mean_interval, paired_difference
from posttrain.experiments.plan import Override, Plan
from posttrain.experiments.record import of_today
from posttrain.report.arms import Arm, PolicyResult
from posttrain.report.run_reader import Measure
from posttrain.runtime.exits import DataError

Interval = tuple[float, float, float]  # a mean, its lower and its upper bound


@dataclass(frozen=True, slots=True)
class Measured:
    """An override by one measure. `difference` to the baseline is None of the baseline itself and
    where tasks or code are others; `gain` is of the policy over the SFT model that it began from,
    None where one of the two was not evaluated."""

    success: Interval
    difference: Verdict | None
    gain: Verdict | None


@dataclass(frozen=True, slots=True)
class Row:
    """An override with its arms, by seed."""

    override: Override
    arms: Mapping[int, Arm]
    measured: Mapping[Measure, Measured]


@dataclass(frozen=True, slots=True)
class Table:
    """The baseline first, the others in the order of the plan. `notes`: what was left out."""

    rows: Sequence[Row]
    notes: Sequence[str]


def make_table(plan: Plan, known: Mapping[str, Arm], *, params: str) -> Table:
    """Table of the arms on record. `params` is the text of `params.yaml`. Raises DataError where
    the baseline has no arm with the knobs of today."""
    today = of_today(plan, known, params=params)
    by_override: dict[str, dict[int, Arm]] = {}
    for arm in sorted(today.values(), key=lambda arm: arm.seed):
        if plan.policy in arm.policies:
            by_override.setdefault(arm.override, {})[arm.seed] = arm
    if plan.baseline not in by_override:
        raise DataError(
            f"no run of {plan.baseline} with the knobs of today is on record: all others are compared with it, run it "
            "first"
        )
    names = [
        plan.baseline,
        *(one.name for one in plan.overrides if one.name in by_override and one.name != plan.baseline),
    ]
    notes = []
    if others := sorted(known.keys() - today.keys()):
        notes.append(f"left out, because their knobs are others today: {', '.join(others)}")
    pairs = {name: _comparable(by_override[name], by_override[plan.baseline]) for name in names[1:]}
    notes += [
        f"{name}: compared with {plan.baseline} on no seed, because tasks or code are others; run both again"
        for name, own in pairs.items()
        if not own
    ]
    differences = {
        measure: _differences(pairs, by_override[plan.baseline], plan.policy, measure) for measure in Measure
    }
    rows = [
        Row(
            plan.override(name),
            by_override[name],
            {
                measure: Measured(
                    mean_interval([arm.policies[plan.policy].outcomes(measure) for arm in by_override[name].values()]),
                    differences[measure].get(name),
                    _gain(list(by_override[name].values()), plan.policy, measure),
                )
                for measure in Measure
                if all(arm.policies[plan.policy].outcomes(measure) for arm in by_override[name].values())
            },
        )
        for name in names
    ]
    return Table(rows, notes)


def _comparable(arms: Mapping[int, Arm], base: Mapping[int, Arm]) -> dict[int, Arm]:
    """Those whose code and tasks are the baseline's."""

    def kinds(some: Mapping[int, Arm]) -> set[tuple[str, str]]:
        return {(arm.code, result.tasks) for arm in some.values() for result in arm.policies.values()}

    return {seed: arm for seed, arm in arms.items() if kinds({seed: arm}) <= kinds(base)}


def _differences(
    pairs: Mapping[str, Mapping[int, Arm]], base: Mapping[int, Arm], policy: str, measure: Measure
) -> dict[str, Verdict]:
    """To the baseline, as one family."""

    def outcomes(arms: Sequence[Arm]) -> list[Mapping[str, float]]:
        return [arm.policies[policy].outcomes(measure) for arm in arms]

    found = {}
    for name, arms in pairs.items():
        paired = [seed for seed, arm in arms.items() if seed in base and arm.sft == base[seed].sft]
        ours, theirs = outcomes(list(arms.values())), outcomes(list(base.values()))
        if not all([*ours, *theirs, ours]):
            continue
        if policy == "policy" and len(paired) == len(arms):
            found[name] = paired_difference(outcomes([base[seed] for seed in arms]), ours)
        else:
            found[name] = difference(theirs, ours)
    return dict(zip(found, corrected(list(found.values())), strict=True))


def _gain(arms: Sequence[Arm], policy: str, measure: Measure) -> Verdict | None:
    results: list[tuple[PolicyResult, PolicyResult]] = [
        (arm.policies["sft"], arm.policies["policy"]) for arm in arms if {"sft", "policy"} <= arm.policies.keys()
    ]
    before, after = ([one[side].outcomes(measure) for one in results] for side in (0, 1))
    if policy != "policy" or len(results) < len(arms) or not all([*before, *after]):
        return None
    return paired_difference(before, after)
