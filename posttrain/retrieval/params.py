"""Knobs of the section `train_retriever`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Count, Rate, Section, SmallCount


class RetrieverTraining(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    temperature: Annotated[float, Field(gt=0, le=1)]
    false_negative_margin: Annotated[float, Field(ge=-1, le=1)]
    max_questions_per_tool: SmallCount
    hard_from: SmallCount


class TrainRetrieverParams(RetrieverTraining):
    method: Literal["words", "vectors", "both"]
    encoder: str
    max_tokens: SmallCount
    exact_up_to: Count
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
