"""Checks whether stages fit the memory of a GPU, and finds what to change in `params.yaml` where
they do not."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

from transformers import PretrainedConfig

from posttrain.config.params import Params
from posttrain.memory_estimate.model import model_config
from posttrain.memory_estimate.processes import ALONE, Processes
from posttrain.memory_estimate.stages import (
    STAGES,
    NotEstimatedError,
    StageMemory,
    phases_alone,
    rows_at_once,
    stage_memory,
)
from posttrain.memory_estimate.tracker import ACTIVATIONS, LOGITS
from posttrain.models.params import LINEAR_LAYERS, FullAdapter, LoraAdapter
from posttrain.train.losses import NoKl
from posttrain.train.online.params import OnlineParams

_GIB = 1 << 30
# CUDA's context with its workspaces, and what the allocator wastes; not yet measured on a card
CONTEXT_BYTES, WASTED = 600 << 20, 0.03
Knobs: TypeAlias = Mapping[str, Any]
LORA = {
    "type": "lora",
    "r": 16,
    "alpha": 32,
    "dropout": 0.0,
    "target_modules": [name.rpartition(".")[2] for name in LINEAR_LAYERS],
}


@dataclass(frozen=True, slots=True)
class Change:
    """Knobs by their dotted names with their new values, and what the stages take with them and
    with those before."""

    knobs: Knobs
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, slots=True)
class CardPlan:
    """Memory of stages on a GPU of `gpu_bytes`, and what to change where it is over `limit`."""

    gpu_bytes: int
    stages: tuple[StageMemory, ...]
    changes: tuple[Change, ...]

    @property
    def reserved_bytes(self) -> int:
        return CONTEXT_BYTES + int(WASTED * self.gpu_bytes)

    @property
    def limit(self) -> int:
        return self.gpu_bytes - self.reserved_bytes

    @property
    def too_large(self) -> tuple[StageMemory, ...]:
        return tuple(one for one in self.stages if one.total > self.limit)

    @property
    def fits_with_changes(self) -> bool:
        """True where all stages fit with all changes."""
        last = {one.stage: one.total for change in self.changes for one in change.stages}
        return all(last.get(one.stage, one.total) <= self.limit for one in self.too_large)


def plan_for_card(
    params: Params,
    config: PretrainedConfig,
    *,
    gpu_gib: float,
    stages: Collection[str] = tuple(STAGES),
    processes: Processes = ALONE,
    num_workers: int = 1,
) -> CardPlan:
    """Plan for these stages, each alone on the GPU, or on those of `processes`. Stages are
    estimated in `num_workers` forks, or in this process where that is 1: nobody forks beside
    threads. Raises ConfigurationError for wrong knobs."""
    gpu_bytes = int(gpu_gib * _GIB)
    limit = CardPlan(gpu_bytes, (), ()).limit
    estimate = partial(stage_memory, config=config, gpu_bytes=limit, processes=processes)
    with get_context("fork").Pool(num_workers) if num_workers > 1 else nullcontext() as pool:
        starmap = itertools.starmap if pool is None else pool.starmap

        def memories_of(names: Sequence[str], own: Params) -> list[StageMemory]:
            alike: dict[Any, str] = {}  # stages that do the same take the same
            for name in names:
                alike.setdefault(STAGES[name], name)
            each = [(name, alone) for name in alike.values() for alone in phases_alone(name, own)]
            peaks = dict[str, StageMemory]()
            for (name, _), one in zip(each, starmap(estimate, each), strict=True):
                peaks[name] = max(peaks.get(name, one), one, key=lambda memory: memory.total)
            return [replace(peaks[alike[STAGES[name]]], stage=name) for name in names]

        found = CardPlan(gpu_bytes, tuple(memories_of([name for name in STAGES if name in stages], params)), ())
        changes = changes_that_fit(params, found.too_large, limit=limit, memories_of=memories_of)
    return CardPlan(gpu_bytes, found.stages, tuple(changes))


def refused_by_cards(params: Params, gib_of: Mapping[str, float], *, root: Path) -> Iterator[str]:
    """A line for each card that is too small for a stage, with what to change. `gib_of` names
    stages, `default` all others. Nothing is said of a model that cannot be estimated."""
    config = model_config(params, root=root)
    stages_of: dict[float, list[str]] = {}
    for stage in STAGES:
        if (gib := gib_of.get(stage, gib_of.get("default"))) is not None:
            stages_of.setdefault(gib, []).append(stage)
    for gib, stages in stages_of.items():
        try:
            plan = plan_for_card(params, config, gpu_gib=gib, stages=stages)
        except NotEstimatedError:
            continue
        if plan.too_large:
            sizes = ", ".join(f"{one.stage} takes {one.total / _GIB:.1f} GiB" for one in plan.too_large)
            knobs = ", ".join(f"{name}: {value}" for change in plan.changes for name, value in change.knobs.items())
            remedy = f"it would fit with {knobs}" if plan.fits_with_changes else "no knob makes it fit"
            yield f"{sizes}, and a GPU of {gib:g} is reserved: {remedy} (posttrain plan --gpu {gib:g} shows the parts)"


def changes_that_fit(
    params: Params,
    too_large: Sequence[StageMemory],
    *,
    limit: int,
    memories_of: Callable[[Sequence[str], Params], Sequence[StageMemory]],
) -> list[Change]:
    """Changes that make these stages smaller, those that alter the learning least first, until none
    takes more than `limit` bytes. Whether that was reached, the last change's stages tell."""
    left, changes = list(too_large), list[Change]()
    tried: list[Knobs] = []
    while left:
        knobs = next((one for one in _smaller(params, left) if one not in tried), None)
        if knobs is None:
            break
        tried.append(knobs)
        changed = with_knobs(params, knobs)
        now = memories_of([one.stage for one in left], changed)
        if all(new.total >= old.total for new, old in zip(now, left, strict=True)):
            continue
        params = changed
        changes.append(Change(knobs, tuple(now)))
        left = [one for one in now if one.total > limit]
    return changes


def with_knobs(params: Params, knobs: Knobs) -> Params:
    """The params with other knobs. Raises pydantic's error where they are refused."""
    content = params.model_dump()
    for name, value in knobs.items():
        *path, last = name.split(".")
        section = content
        for key in path:
            section = section[key]
        section[last] = value
    return Params.model_validate(content)


def _smaller(params: Params, stages: Sequence[StageMemory]) -> Iterator[Knobs]:
    names, model = {one.stage for one in stages}, params.model
    trained = [name for name in ("train_sft", "train_policy") if name in names]
    at_once = max(rows_at_once(params, one.stage) for one in stages)
    in_tokens, in_rows = (
        {"model.tokens_at_once": (model.tokens_at_once or 0) // 2},
        {"model.rows_at_once": at_once // 2},
    )
    fewer: list[Knobs] = [in_tokens if model.tokens_at_once else in_rows] if at_once > 1 else []
    if any(2 * _of_rows(one) > one.total for one in stages):
        yield from fewer
    if names & {"train_sft", "train_reward_model", "train_policy"} and not model.gradient_checkpointing:
        yield {"model.gradient_checkpointing": True}
    if model.dtype != "bfloat16":
        yield {"model.dtype": "bfloat16"}
    algorithm = params.train_policy.algorithm
    if "train_policy" in names and isinstance(algorithm, OnlineParams) and algorithm.kl == NoKl(type="none"):
        unmeasured = {"type": "none", "is_measured": False}
        yield {"train_policy.algorithm.kl": unmeasured, "train_policy.alarms.kl": None}
    for name in trained:
        if getattr(params, name).optimizer != "adamw_8bit":
            yield {f"{name}.optimizer": "adamw_8bit"}
    if isinstance(model.adapter, FullAdapter):
        yield {"model.adapter": LORA}
    if isinstance(model.adapter, LoraAdapter) and model.adapter.quantization == "none":
        yield {"model.adapter.quantization": "nf4"}
    yield from fewer


def _of_rows(memory: StageMemory) -> int:
    return memory.parts.get(ACTIVATIONS, 0) + memory.parts.get(LOGITS, 0)
