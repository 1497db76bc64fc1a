"""The verdict as a page for people: success and differences, and how the trainings went."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from posttrain.experiments.arms import Study
from posttrain.experiments.record import ALL_BAD, ALL_GOOD, SIGNAL, TRAINED_SIGNAL, Measure, Training
from posttrain.experiments.verdicts import Measured, Row, Table
from posttrain.report.table import UNKNOWN, percent, percent_range, points

_COUNTS = ("steps", "generated_tokens", "rollouts", "groups")
_SHARES, _NUMBERS = (SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD), ("kl", "entropy")
_DEV = ("dev_strict_success", "dev_success")
_TRAINING = (
    *("method", "steps", "tokens", "rollouts", "groups", "signal", "of trained", "all bad", "all good"),
    *("KL", "entropy", "strict on dev", "on dev", "seconds"),
)


def table_markdown(table: Table, study: Study) -> str:
    """Ends with a line for each method, and what was left out."""
    regime, runs = study.regimes[table.regime], [run for row in table.rows for run in row.runs.values()]
    measures = [title for one in Measure for title in (one.value, f"less {table.baseline}'s", "p", "verdict")]
    notes = [f"- `{row.name}`: {row.method.about}" for row in table.rows] + [f"- {note}" for note in table.notes]
    lines = [
        f"# Methods in the regime {table.regime}",
        "",
        f"{regime.about}. On {len(runs[0].won):,} held-out tasks, greedily and, where it says so, by plays sampled at "
        "temperature 1; intervals at 95 %, over tasks and seeds. A difference is between runs from the same SFT model; "
        f"its p is corrected for {len(table.rows) - 1} methods (Holm). Code and knobs are of "
        f"{', '.join(sorted({run.commit for run in runs}))}.",
        "",
        *_table(("method", "sees", "seeds", *measures), map(_verdict, table.rows)),
        "",
        *_table(_TRAINING, map(_training, table.rows)),
        "",
        "Mean over seeds. Signal: share of the agent's tokens with an advantage, of what was played and of the groups "
        "that were trained; all bad, all good: share of groups in which nothing, or everything, succeeded; these, KL "
        "and entropy of all steps → of the last 20. Dev: before → after.",
        "",
        *notes,
    ]
    return "\n".join(lines) + "\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rules = ["---", *["---:"] * (len(titles) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]


def _verdict(row: Row) -> list[str]:
    sees = "an expert" if row.method.is_oracle else ""
    name = f"`{row.name}`{' (control)' if row.method.is_control else ''}"
    return [name, sees, str(len(row.runs)), *(cell for one in Measure for cell in _measured(row.measured[one]))]


def _measured(measured: Measured) -> list[str]:
    mean, low, high = measured.success
    success, one = f"{percent(mean)} ({percent_range(low, high)})", measured.difference
    if one is None:
        return [success, UNKNOWN, UNKNOWN, UNKNOWN]
    return [success, points(one.estimate, one.low, one.high), f"{one.p_value:.3f}", one.advice]


def _training(row: Row) -> list[str]:
    trainings = [run.training for run in row.runs.values()]
    seconds = [one.seconds for one in trainings if one.seconds is not None]
    return [
        f"`{row.name}`",
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
