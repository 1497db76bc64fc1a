"""Verdicts on the overrides of an experiment: each against the baseline, over tasks and seeds,
corrected for how many were tried; and their Markdown page, with how the trainings went.

Arms that began from the same SFT model, byte for byte, are compared in pairs, so that what the
model adds to both is in none of the difference; others as two settings whose runs share nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from posttrain.evals.significance import Verdict, corrected, difference, mean_interval, paired_difference
from posttrain.experiments.plan import Override, Plan
from posttrain.experiments.record import ALL_BAD, ALL_GOOD, SIGNAL, TRAINED_SIGNAL, of_today
from posttrain.report.arms import Arm, PolicyResult, Training
from posttrain.report.run_reader import CostRate, Measure
from posttrain.report.table import UNKNOWN, markdown_lines, percent, percent_range, points
from posttrain.runtime.exits import DataError

Interval = tuple[float, float, float]  # a mean, its lower and its upper bound


_COUNTS = ("steps", "generated_tokens", "rollouts", "groups")
_SHARES, _NUMBERS = (SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD), ("kl", "entropy")
_DEV = ("dev_strict_success", "dev_success")
_TRAINING = (
    *("override", "steps", "tokens", "rollouts", "groups", "signal", "of trained", "all bad", "all good"),
    *("KL", "entropy", "strict on dev", "on dev", "seconds"),
)
_LEGEND = (
    "Mean over seeds. Signal: share of the agent's tokens with an advantage, of all rollouts and of the groups that "
    "were trained on; all bad, all good: share of groups in which nothing, or everything, succeeded; these, KL and "
    "entropy of all steps → of the last 20. Dev: before → after."
)


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


def table_markdown(table: Table, plan: Plan) -> str:
    """Ends with a line for each override, and what was left out."""
    arms = [arm for row in table.rows for arm in row.arms.values()]
    measures = [title for one in Measure for title in (one.value, f"less {plan.baseline}'s", "p", "verdict", "gain")]
    notes = [f"- `{row.override.name}`: {row.override.about}" for row in table.rows if row.override.about]
    trained = [row for row in table.rows if all(arm.training for arm in row.arms.values())]
    lines = [
        f"# {plan.name}: {plan.about}",
        "",
        f"Success of `{plan.policy}` on {len(arms[0].policies[plan.policy].won):,} held-out tasks, greedily and, where "
        "it says so, sampled at temperature 1; intervals at 95 %, over tasks and seeds. p is corrected for "
        f"{len(table.rows) - 1} overrides (Holm). Gain: the policy less the SFT model that it began from. Commits: "
        f"{_some(sorted({arm.commit for arm in arms}))}.",
        "",
        *markdown_lines(("override", "sees", "seeds", *measures), map(_verdict_cells, table.rows)),
        "",
        *_costs(table, plan),
        *([*markdown_lines(_TRAINING, map(_training_cells, trained)), "", _LEGEND, ""] if trained else []),
        *notes,
        *(f"- {note}" for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _costs(table: Table, plan: Plan) -> list[str]:
    """Share of the sampled episodes with harm, where the world has costs: mean over seeds, and the
    lowest and the highest of a seed."""
    by_row = {row.override.name: [arm.policies[plan.policy].costs for arm in row.arms.values()] for row in table.rows}
    names = list(dict.fromkeys(name for seeds in by_row.values() for costs in seeds for name in costs))
    if not names:
        return []

    def cell(seeds: Sequence[Mapping[str, CostRate]], name: str) -> str:
        rates = [costs[name].sampled_rate for costs in seeds if name in costs]
        known = [rate for rate in rates if rate is not None]
        return f"{percent(fmean(known))} ({percent_range(min(known), max(known))})" if known else UNKNOWN

    rows = [[f"`{override}`", *(cell(seeds, name) for name in names)] for override, seeds in by_row.items()]
    legend = "Harm: share of the episodes sampled at temperature 1; mean over seeds, lowest … highest seed."
    return [*markdown_lines(("override", *(name.replace("_", " ") for name in names)), rows), "", legend, ""]


def _some(names: Sequence[str]) -> str:
    """The first few; the record has all."""
    shown = names[:5]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _verdict_cells(row: Row) -> list[str]:
    sees = "an expert" if row.override.is_oracle else ""
    name = f"`{row.override.name}`{' (control)' if row.override.is_control else ''}"
    return [name, sees, str(len(row.arms)), *(cell for one in Measure for cell in _measured(row, one))]


def _measured(row: Row, measure: Measure) -> list[str]:
    if (measured := row.measured.get(measure)) is None:
        return [UNKNOWN] * 5
    mean, low, high = measured.success
    success, one = f"{percent(mean)} ({percent_range(low, high)})", measured.difference
    compared = [_points(one), f"{one.p_value:.3f}", one.advice] if one else [UNKNOWN] * 3
    return [success, *compared, _points(measured.gain) if measured.gain else UNKNOWN]


def _points(one: Verdict) -> str:
    return points(one.estimate, one.low, one.high)


def _training_cells(row: Row) -> list[str]:
    trainings = [arm.training for arm in row.arms.values() if arm.training]
    seconds = [one.seconds for one in trainings if one.seconds is not None]
    return [
        f"`{row.override.name}`",
        *(f"{fmean(float(getattr(one, name)) for one in trainings):,.0f}" for name in _COUNTS),
        *(_moved(trainings, name, "means", "last") for name in (*_SHARES, *_NUMBERS)),
        *(_moved(trainings, name, "dev_first", "dev_last") for name in _DEV),
        f"{fmean(seconds):,.0f}" if seconds else UNKNOWN,
    ]


def _moved(trainings: Sequence[Training], name: str, first: str, last: str) -> str:
    """`32 % → 28 %`, or `0.120 → 0.080`."""
    ends = []
    for which in (first, last):
        found = [values[name] for one in trainings if name in (values := getattr(one, which))]
        form = "{:.3f}" if name in _NUMBERS else "{:.0%}"
        ends.append(form.format(fmean(found)).replace("%", " %") if found else UNKNOWN)
    return " → ".join(ends)
