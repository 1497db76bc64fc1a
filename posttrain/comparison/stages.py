"""Stage by stage: what a setting shares with the baseline, and what made the rest run again."""

from collections.abc import Sequence

from posttrain.comparison.runs import LockedStage
from posttrain.comparison.settings import Setting

_MAX_NAMED = 3


def stage_differences(settings: Sequence[Setting]) -> list[tuple[str, list[str]]]:
    """For each stage a word on every setting but the baseline, the first: `same`, or what it read
    that was not the same, or that it did not run. A setting's first run stands for it."""
    first, *others = [setting.runs[0].stages for setting in settings]
    names = list(dict.fromkeys(name for stages in (first, *others) for name in stages))
    return [(name, [_word(first.get(name), stages.get(name)) for stages in others]) for name in names]


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
