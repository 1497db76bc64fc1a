"""Stage by stage: what a setting shares with the baseline, what made the rest run again, and how
long that took."""

from collections.abc import Sequence

from posttrain.provenance.code_version import parse_version
from posttrain.provenance.costs import Cost
from posttrain.provenance.eta import duration
from posttrain.report.comparison.runs import LockedStage
from posttrain.report.comparison.settings import Setting
from posttrain.report.run_page import ended

_MAX_NAMED = 3


def stage_differences(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """For each stage a cell on every setting: a word (`same`, what it read that was not the same as
    in the baseline, or that it did not run; empty of the baseline, the first), how long it took,
    and where that was. A setting's first run stands for it."""
    runs = [setting.runs[0] for setting in settings]
    names = list(dict.fromkeys(name for run in runs for name in run.stages))
    baseline = runs[0].stages
    return [
        (
            name,
            [
                (_word(baseline.get(name), run.stages.get(name)) if index else "", *_took(run.costs.get(name)))
                for index, run in enumerate(runs)
            ],
        )
        for name in names
    ]


def _took(cost: Cost | None) -> tuple[str, str]:
    return ("", "") if cost is None else (duration(cost.all_s), _facts(cost))


def _facts(cost: Cost) -> str:
    """`2026-11-23 21:05 UTC, 4cb9056, AMD, AVX-512, 2 threads, peak 812 MiB`."""
    threads = f"{cost.num_threads} thread{'s' * (cost.num_threads != 1)}" if cost.num_threads else ""
    gpus = f"{cost.num_gpus} GPU{'s' * (cost.num_gpus != 1)}" if cost.num_gpus else ""
    resumed = f"resumed after step {', '.join(map(str, cost.resumed_at))}" if cost.resumed_at else ""
    version = parse_version(cost.version).short
    facts = [ended(cost), version, cost.processor, threads, gpus, f"peak {cost.peak_mib:,.0f} MiB", resumed]
    return ", ".join(filter(None, facts))


def _word(before: LockedStage | None, after: LockedStage | None) -> str:
    if after is None:
        return "did not run"
    if before is None:
        return "ran here only"
    paths = [path for path in {**before.deps, **after.deps} if before.deps.get(path) != after.deps.get(path)]
    if paths:
        named = ", ".join(paths[:_MAX_NAMED])
        return f"ran for {named}{f' and {len(paths) - _MAX_NAMED} more' if len(paths) > _MAX_NAMED else ''}"
    return "same" if before.outs == after.outs else "ran for its knobs"
