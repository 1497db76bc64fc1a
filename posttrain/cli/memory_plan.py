"""`posttrain plan --gpu`: the memory that each stage takes, and what to change where a card has too
little."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.memory_estimate.advice import CardPlan, Change
    from posttrain.memory_estimate.stages import StageMemory

_GIB = 1 << 30


def memory_table(gpu_gib: float, *, params_yaml: Path, model_folder: Path | None) -> str:
    """Memory of each stage by part, and the changes that make all fit."""
    from posttrain.config.params import load_params
    from posttrain.memory_estimate.advice import plan_for_card
    from posttrain.memory_estimate.model import model_config

    params = load_params(params_yaml)
    config = model_config(params, folder=model_folder)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of PEFT about transformers
        return _text(plan_for_card(params, config, gpu_gib=gpu_gib))


def _text(plan: "CardPlan") -> str:
    lines = [*_table(plan.stages, plan.limit), ""]
    lines.append(
        f"GiB at the peak, with rows as long as the knobs allow. Of {plan.gpu_bytes / _GIB:g} GiB "
        f"{plan.reserved_bytes / _GIB:.1f} are left to CUDA itself"
    )
    if plan.too_large:
        names = ", ".join(one.stage for one in plan.too_large)
        lines += ["", f"too large: {names}. In params.yaml, one after the other:"]
        lines += [_change(change) for change in plan.changes]
        lines.append("then all fit" if plan.fits_with_changes else "and that is not enough: take a larger card")
    return "\n".join(lines)


def _table(stages: "Sequence[StageMemory]", limit: int) -> list[str]:
    from posttrain.memory_estimate.tracker import LABELS

    parts = [name for name in LABELS if any(name in one.parts for one in stages)]
    rows = [["stage", *parts, "total", ""]]
    for one in stages:
        verdict = "" if one.total <= limit else f"{_gib(one.total - limit)} too much"
        rows.append([one.stage, *(_gib(one.parts.get(name, 0)) for name in parts), _gib(one.total), verdict])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in (0, len(row) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _change(change: "Change") -> str:
    knobs = ", ".join(f"{name}: {json.dumps(value)}" for name, value in change.knobs.items())
    return f"  {knobs}  → {', '.join(f'{one.stage} {_gib(one.total)}' for one in change.stages)}"


def _gib(size: int) -> str:
    if 0 < size < _GIB / 200:
        return "<0.01"
    return f"{size / _GIB:.2f}" if size else "–"
