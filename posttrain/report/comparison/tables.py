"""Formats a comparison as text for a terminal, as Markdown and as one JSON object."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.evals.significance import LEVEL, Decision, Verdict
from posttrain.report.comparison.runs import RunResults
from posttrain.report.comparison.settings import Setting, Spent
from posttrain.report.run_reader import Measure
from posttrain.report.table import percent, percent_range, points
from posttrain.runtime.control_chars import visible_line
from posttrain.traces.show import text_table

_MAX_KNOBS = 4


def comparison_text(settings: Sequence[Setting]) -> str:
    """A row per setting, and below what has to be known of it."""
    header, *rows = _rows(settings)
    lines = text_table(header, rows).splitlines()
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([*lines, "", *comparison_notes(settings)])


def comparison_markdown(settings: Sequence[Setting]) -> str:
    """The same, with what differs in each setting as a column."""
    (name, *titles), *rows = _rows(settings)
    lines = [
        f"| {name} | differs in | {' | '.join(titles)} |",
        f"| --- | --- | {' | '.join('---' if title == 'verdict' else '---:' for title in titles)} |",
    ]
    for setting, row in zip(settings, rows, strict=True):
        name, *figures = (_escaped(cell) for cell in row)
        lines.append(f"| {name} | {_escaped(differs_in(setting))} | {' | '.join(figures)} |")
    return "\n".join([*lines, "", *(f"- {_escaped(note)}" for note in comparison_notes(settings))]) + "\n"


def comparison_json(settings: Sequence[Setting]) -> str:
    """One JSON object. Shares are from 0 to 1; of the baseline, the first, `difference` is null."""
    tree = {"level": LEVEL, "settings": [_setting_json(setting) for setting in settings]}
    return json.dumps(tree, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


def differs_in(setting: Setting) -> str:
    """`train_sft.lr 0.002 → 0.004; code of posttrain/rewards`."""
    knobs, code = knobs_and_code(setting)
    more = [f"{len(knobs) - _MAX_KNOBS} more knobs"] if len(knobs) > _MAX_KNOBS else []
    return "; ".join([*knobs[:_MAX_KNOBS], *more, *code])


def knobs_and_code(setting: Setting) -> tuple[list[str], list[str]]:
    """A text for each knob that differs, and one for all of the code, where it does."""
    knobs = [f"{name} {_short(before)} → {_short(after)}" for name, (before, after) in setting.knobs.items()]
    code = [f"code of {', '.join(setting.code[:2])}{' …' * (len(setting.code) > 2)}"] if setting.code else []
    return [visible_line(knob) for knob in knobs], [visible_line(text) for text in code]


def comparison_notes(settings: Sequence[Setting]) -> list[str]:
    """Warnings that belong to the figures: comparisons of single runs, the smallest difference that
    could be shown, and what could not be read."""
    notes = []
    found = [(setting, setting.difference) for setting in settings if setting.difference is not None]
    if any(min(one.num_seeds) == 1 and one.decision is Decision.NEEDS_MORE for _, one in found):
        notes.append("A setting with one run may have been lucky: the difference is one of runs, not of settings.")
    if any(one.is_of_runs_only for _, one in found):
        notes.append("How far seeds of one setting lie apart is not known here: those intervals are over tasks alone.")
    if has_strict(settings) and settings[0].measure is not Measure.STRICT:
        notes.append("Some run recorded no strict success: the settings are compared by success.")
    if any(setting.spent for setting in settings):
        notes.append("Hours are those of all stages that made a run's results, on average over the runs of a setting.")
    for setting, one in found:
        shown = f"{100 * one.smallest_shown:.1f} points"
        seeds = "one run each" if one.num_seeds == (1, 1) else f"{one.num_seeds[0]} and {one.num_seeds[1]} runs"
        notes.append(
            f"{visible_line(setting.name)}: {seeds} on {one.num_tasks:,} tasks would show {shown} four times of five."
        )
    runs = [(setting, run) for setting in settings for run in setting.runs]
    notes += [f"{visible_line(run.name)}: {note}" for setting, run in runs for note in _run_notes(setting, run)]
    notes += [f"{visible_line(one.name)}: {visible_line(one.problem)}." for one in settings if one.problem]
    return notes + [f"{visible_line(run.name)}: {visible_line(text)}." for _, run in runs for text in run.problems]


def _run_notes(setting: Setting, run: RunResults) -> list[str]:
    notes = []
    if run.is_dirty:
        notes.append("its working tree has edits that are not committed; the figures are the commit's.")
    if run.evaluation is not None and run.evaluation.num_lost:
        notes.append(f"{run.evaluation.num_lost:,} lost episodes count neither as won nor as failed.")
    if run.outcomes() and run not in setting.counted:
        notes.append(f"a second run of seed {visible_line(str(run.seed))}, which counts once.")
    return notes


def verdict(setting: Setting) -> str:
    """`better`, `needs 3 more seeds`; `baseline`, or `not comparable`."""
    if setting.difference is not None:
        return setting.difference.advice
    return "not comparable" if setting.problem or setting.success is None else "baseline"


def pass_hat_4(setting: Setting, *, is_strict: bool = False) -> float | None:
    """Mean over its runs; None where none was evaluated, or a run has no task with four
    episodes."""
    evaluations = [run.evaluation for run in setting.counted if run.evaluation is not None]
    found = [one.strict_pass_hat_4 if is_strict else one.pass_hat_4 for one in evaluations]
    known = [share for share in found if share is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def has_strict(settings: Sequence[Setting]) -> bool:
    """True where some setting has a strict success; results of other tools have none."""
    return any(one.strict_success for one in settings if one.counted)


def spent_columns(settings: Sequence[Setting]) -> list[tuple[str, Callable[[Spent], float]]]:
    """Titles and figures of the costs that some setting has: hours, GPU hours."""
    known = [setting.spent for setting in settings if setting.spent]
    columns: list[tuple[str, Callable[[Spent], float]]] = []
    if known:
        columns.append(("hours", lambda one: one.hours))
    if any(one.gpu_hours for one in known):
        columns.append(("GPU hours", lambda one: one.gpu_hours))
    return columns


def amount(one: Spent, figure: Callable[[Spent], float]) -> str:
    """`0.31`, or `> 0.31` where some stage has left no record."""
    return f"{'' if one.is_whole else '> '}{figure(one):,.2f}"


def _rows(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """The titles, and the cells of each setting."""
    columns = spent_columns(settings)
    is_strict = has_strict(settings)
    level = f"{100 * LEVEL:g} % interval"
    strict = ("strict success", level, "strict pass^4") if is_strict else ()
    header = ("setting", "seeds", *strict, "success", level, "pass^4", "difference", "verdict")
    rows = [
        (*_cells(one, is_strict=is_strict), *(amount(one.spent, figure) if one.spent else "" for _, figure in columns))
        for one in settings
    ]
    return [(*header, *(title for title, _ in columns)), *rows]


def _cells(setting: Setting, *, is_strict: bool) -> tuple[str, ...]:
    found = setting.difference
    return (
        visible_line(setting.name),
        str(len(setting.counted)),
        *(_figures(setting.strict_success, pass_hat_4(setting, is_strict=True)) if is_strict else ()),
        *_figures(setting.success, pass_hat_4(setting)),
        points(found.estimate, found.low, found.high) if found else "",
        verdict(setting),
    )


def _figures(success: tuple[float, float, float] | None, reliability: float | None) -> tuple[str, ...]:
    return (
        percent(success[0]) if success else "",
        percent_range(*success[1:]) if success else "",
        percent(reliability) if reliability is not None else "",
    )


def _setting_json(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "runs": [_run_json(run) for run in setting.runs],
        "knobs": {name: list(pair) for name, pair in setting.knobs.items()},
        "code": list(setting.code),
        "compared_by": setting.measure.value.replace(" ", "_"),
        "strict_success": _mean_json(setting.strict_success),
        "success": _mean_json(setting.success),
        "difference": _difference_json(setting.difference) if setting.difference else None,
        "problem": setting.problem,
        "spent": dataclasses.asdict(setting.spent) if setting.spent else None,
    }


def _mean_json(success: tuple[float, float, float] | None) -> dict[str, float] | None:
    return dict(zip(("mean", "low", "high"), success, strict=True)) if success else None


def _difference_json(one: Verdict) -> dict[str, Any]:
    fields = dataclasses.asdict(one)
    return {"verdict": one.advice, "word": str(fields.pop("decision")), **fields}


def _run_json(run: RunResults) -> dict[str, Any]:
    rates = ("strict_success_rate", "success_rate", "strict_pass_hat_4", "pass_hat_4", "num_lost")
    return {
        **{name: getattr(run, name) for name in ("name", "commit", "author", "committed_at", "is_dirty", "seed")},
        **{name: getattr(run.evaluation, name, None) for name in rates},
        "num_tasks": len(run.outcomes()),
        "problems": list(run.problems),
        "data": dict(run.data),
        "stages": {name: dataclasses.asdict(cost) for name, cost in run.costs.items()},
    }


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _escaped(text: str) -> str:
    return visible_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
