"""Checks whether stages fit the memory of a GPU."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig

from posttrain.config.params import Params
from posttrain.memory_estimate.advice import Change, changes_that_fit
from posttrain.memory_estimate.model import model_config
from posttrain.memory_estimate.stages import STAGES, NotEstimatedError, StageMemory, stage_memory

_GIB = 1 << 30
# CUDA's context with its workspaces, and what the allocator wastes; not yet measured on a card
CONTEXT_BYTES, WASTED = 600 << 20, 0.03


@dataclass(frozen=True, slots=True)
class CardPlan:
    """Memory of stages on a GPU of `gpu_bytes`, of which they can have `limit`, and what to change
    where that is too much."""

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
    progress: Callable[[str], None] | None = None,
) -> CardPlan:
    """Plan for these stages, each by itself: the GPU is one process's. Raises ConfigurationError
    where the knobs cannot be."""
    gpu_bytes = int(gpu_gib * _GIB)
    limit = CardPlan(gpu_bytes, (), ()).limit

    def memory_of(stage: str, own: Params) -> StageMemory:
        if progress:
            progress(f"{stage} …")
        return stage_memory(stage, own, config, gpu_bytes=limit)

    found = CardPlan(gpu_bytes, tuple(memory_of(stage, params) for stage in STAGES if stage in stages), ())
    changes = changes_that_fit(params, found.too_large, limit=limit, memory_of=memory_of)
    return CardPlan(gpu_bytes, found.stages, tuple(changes))


def refused_by_cards(params: Params, gib_of: Mapping[str, float], *, root: Path) -> Iterator[str]:
    """A line for each card that has no room for a stage of its own, with what to change. `gib_of`
    names stages, `default` all others; the model is below `root`, or in the hub's cache. Nothing is
    said of a model that cannot be estimated."""
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
