"""The verdicts of an experiment as a Markdown page: success and differences, and how the trainings
went."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from posttrain.evals.significance import Verdict
from posttrain.experiments.plan import Plan
from posttrain.experiments.record import ALL_BAD, ALL_GOOD, SIGNAL, TRAINED_SIGNAL
from posttrain.experiments.verdicts import Row, Table
from posttrain.report.arms import Training
from posttrain.report.run_reader import Measure
from posttrain.report.table import UNKNOWN, percent, percent_range, points

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
        f"{', '.join(sorted({arm.commit for arm in arms}))}.",
        "",
        *_table(("override", "sees", "seeds", *measures), map(_verdict, table.rows)),
        "",
        *([*_table(_TRAINING, map(_training, trained)), "", _LEGEND, ""] if trained else []),
        *notes,
        *(f"- {note}" for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rules = ["---", *["---:"] * (len(titles) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]


def _verdict(row: Row) -> list[str]:
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


def _training(row: Row) -> list[str]:
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
