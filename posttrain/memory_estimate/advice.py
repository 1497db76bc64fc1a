"""Finds what to change in `params.yaml` where stages take more memory than a GPU has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from posttrain.config.params import Params
from posttrain.memory_estimate.stages import StageMemory, rows_at_once
from posttrain.memory_estimate.tracker import ACTIVATIONS, LOGITS
from posttrain.models.params import LINEAR_LAYERS, FullAdapter, LoraAdapter
from posttrain.train.losses import NoKl
from posttrain.train.online.params import OnlineParams

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


def changes_that_fit(
    params: Params, too_large: Sequence[StageMemory], *, limit: int, memory_of: Callable[[str, Params], StageMemory]
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
        now = [memory_of(one.stage, changed) for one in left]
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
    fewer: list[Knobs] = [{"model.rows_at_once": at_once // 2}] if at_once > 1 else []
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
