"""Knobs of the section `train_retriever`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.runtime.knobs import SLIP, Count, Rate, Section, SmallCount


class Ranking(Section):
    """`method`: by words (BM25), which needs no encoder, by vectors, or by both fused. Texts are
    cut at `max_tokens`. Up to `exact_up_to` tools are compared one by one, more in a graph
    (HNSW)."""

    method: Literal["words", "vectors", "both"]
    max_tokens: SmallCount
    exact_up_to: Count


class TrainRetrieverParams(Ranking):
    """`encoder` is a folder of a sentence-transformers model, or its name on a hub; `words` reads
    none."""

    encoder: str
    num_world_tasks: Annotated[int, Field(ge=0, le=10_000_000, description=SLIP)]
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    train_tokens: SmallCount
    max_questions_per_tool: SmallCount
    max_pseudo_questions: Annotated[int, Field(ge=0, le=10_000_000, description=SLIP)]
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    temperature: Annotated[float, Field(gt=0, le=1)]
    false_negative_margin: Annotated[float, Field(ge=-1, le=1)]
    hard_among: SmallCount


def idle_deps(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Deps of `train_retriever` that it does not read where the tasks' own tools are offered."""
    return frozenset(["data/tools"] if knobs["agent"]["tools"]["type"] == "offered" else [])
