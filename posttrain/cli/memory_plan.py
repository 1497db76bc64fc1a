"""`posttrain plan --gpu`: the memory that each stage takes, and what to change where a card has too
little."""

import gc
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.config.params import Params
    from posttrain.memory_estimate.advice import CardPlan, Change
    from posttrain.memory_estimate.processes import Processes
    from posttrain.memory_estimate.stages import StageMemory

_GIB = 1 << 30


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """To look for cycles takes a tenth of the seconds of an estimate."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_garbage_kept()
def memory_table(
    gpu_gib: float,
    *,
    params_yaml: Path,
    model_folder: Path | None,
    processes: "Processes",
) -> str:
    """Memory of each stage by part, of several processes in the first, and the changes that make
    all fit."""
    from posttrain.memory_estimate.advice import plan_for_card
    from posttrain.memory_estimate.model import model_config
    from posttrain.memory_estimate.processes import LAUNCHED, server_memory

    params = read_params(params_yaml)
    config = model_config(params, folder=model_folder)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of PEFT about transformers
        num_workers = min(len(os.sched_getaffinity(0)), 8)  # stages and their phases
        text = _text(plan_for_card(params, config, gpu_gib=gpu_gib, processes=processes, num_workers=num_workers))
        if processes.count > 1:
            text += f"\n{', '.join(LAUNCHED)}: the first of {processes.count} processes, each with a card of its own"
        if processes.servers:
            weights, per_token = server_memory(params, config)
            num_tokens = max(0, int((0.9 * gpu_gib * _GIB - weights) / per_token))
            text += (
                f"\nvLLM server: {_gib(weights)} GiB of weights; nine tenths of a card have room besides for the keys "
                f"and values of {num_tokens} tokens, {num_tokens // params.agent.max_context_tokens} of the longest "
                "episodes"
            )
    return text


def read_params(file: Path) -> "Params":
    """A file of knobs, or `params.yaml` with the first override of an experiment file."""
    from posttrain.config.params import load_params, parse_params, read_knobs
    from posttrain.experiments.plan import read_plan, variants, with_knobs

    if not file.is_file() or "overrides" not in (read_knobs(file.read_bytes(), source=str(file)) or {}):
        return load_params(file)
    load_params()  # refuses where there is none to set knobs in
    text = Path("params.yaml").read_text(encoding="utf-8")
    first = variants(read_plan(file, (), ()), text)[0]
    return parse_params(read_knobs(with_knobs(text, first), source=str(file)), source=str(file))


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
