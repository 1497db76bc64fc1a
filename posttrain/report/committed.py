"""Compares each policy's strict success with the figure committed at HEAD by the one verdict
(`posttrain.evals.significance`), and refuses reports that are not those in dvc.lock.

On one kind of processor a run gives the same bytes. Another kind rounds some sums otherwise, and
from there the training goes another way, as with another seed: so the seeds on record count, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.evals.significance import LEVEL, Verdict, corrected, difference, spread_over
from posttrain.pipeline.git import file_at
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import read_entries
from posttrain.report.arms import Arms
from posttrain.report.knobs import parse_knobs
from posttrain.report.run_reader import Evaluation, Measure, held_out_outcomes, parse_object, parse_results, read_object
from posttrain.report.table import POLICIES, percent, points
from posttrain.runtime.exits import DataError


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy now and at HEAD. `is_wrong`: the committed figure no longer holds."""

    policy: str
    sentence: str
    is_wrong: bool = False


def compare_with_committed(reports_dir: Path, policies: Sequence[str] = POLICIES) -> list[Comparison]:
    """Compare policies, corrected as one family. Raises DataError where an evaluation is missing or
    broken."""
    now = {policy: read_object(reports_dir / "evaluate" / f"{policy}.json", Evaluation) for policy in policies}
    then = {policy: file_at(reports_dir, "HEAD", f"evaluate/{policy}.json") for policy in policies}
    verdicts = _verdicts(reports_dir, policies)
    return [
        _compared(policy, now[policy], text, verdicts.get(policy))
        if (text := then[policy]) is not None
        else Comparison(policy, f"{policy}: no evaluation is committed at HEAD to compare with.")
        for policy in policies
    ]


def refuse_unrecorded(files: Iterable[Path], lock: Path) -> None:
    """Refuse reports that are not those of the last run, by their MD5s in `dvc.lock`.

    For readers outside of the graph: a report with an edited digit still parses. Raises DataError
    for the first of `files` that differs. Files without an entry pass, and all do without a lock.
    """
    recorded = _recorded(lock) if lock.exists() else {}
    for file in files:
        stage, md5 = recorded.get(file.resolve(), ("", None))
        if md5 is not None and (not file.is_file() or md5_of(file) != md5):
            raise DataError(
                f"{file} is not the one that {lock} records: it was damaged, edited, or written by a stage that was "
                f"run by hand. Run `dvc repro {stage}`, or take it back with `git checkout {file}`"
            )


def _compared(policy: str, now: Evaluation, text: str, verdict: Verdict | None) -> Comparison:
    then, figure = parse_object(Evaluation, text.encode()), f"{policy}: strict success {percent(now.strict.share)}"
    if now.strict == then.strict:
        return Comparison(policy, f"{figure}, as committed.")
    committed = f"{figure}, and {percent(then.strict.share)} is committed"
    if verdict is None:
        return Comparison(policy, f"{committed}, of OTHER TASKS: they cannot be compared.", is_wrong=True)
    is_wrong = verdict.p_value < 1 - LEVEL
    chance = "the choice of tasks" if verdict.is_of_runs_only else "the choice of tasks and seeds"
    by = f"more than {chance} does. It has CHANGED" if is_wrong else f"no more than {chance} does"
    apart = points(verdict.estimate, verdict.low, verdict.high)
    return Comparison(policy, f"{committed}: {apart} points, {by}.", is_wrong)


def _verdicts(reports_dir: Path, policies: Sequence[str]) -> dict[str, Verdict]:
    """Verdicts on now against HEAD; none of a policy that was evaluated on other tasks."""
    seeds = reports_dir / "experiments" / "seeds.json"
    arms = read_object(seeds, Arms) if seeds.exists() else Arms()
    params = reports_dir.parent / "params.yaml"
    knobs = parse_knobs(params.read_bytes()) if params.exists() else {}
    found = {}
    for policy in policies:
        path = f"evaluate/{policy}.tasks.jsonl"
        then, now = (file_at(reports_dir, "HEAD", path) or "").encode(), reports_dir / path
        runs = [_outcomes(then)], [_outcomes(now.read_bytes() if now.is_file() else b"")]
        try:
            found[policy] = difference(*runs, spread=spread_over(arms.seed_rates(policy, knobs)))
        except DataError:  # no task in common: the comparison says so
            continue
    return dict(zip(found, corrected(list(found.values())), strict=True))


def _outcomes(content: bytes) -> dict[str, float]:
    return held_out_outcomes(parse_results(content)[0], Measure.STRICT)


def _recorded(lock: Path) -> dict[Path, tuple[str, str | None]]:
    """Stage and MD5 by file."""
    try:
        entries = read_entries(lock.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        entries = None
    if entries is None:
        raise DataError(f"{lock} is damaged: take it back with `git checkout {lock}`, or run `dvc repro`")
    outs = [(stage, out) for stage, entry in entries.items() for out in entry.get("outs") or ()]
    return {lock.resolve().parent / out["path"]: (stage, out.get("md5")) for stage, out in outs}
