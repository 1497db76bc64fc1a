"""Knobs of the section `train_policy`: the algorithm, its optimizer and its health alarms."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from posttrain.models.params import OptimizerKind
from posttrain.runtime.knobs import Count, Rate, Section
from posttrain.tracking.params import AlarmParams
from posttrain.train.online.params import OnlineParams
from posttrain.train.params import DpoParams, KtoParams, OrpoParams, refuse_no_checkpoint


class TrainPolicyParams(Section):
    algorithm: Annotated[OnlineParams | DpoParams | KtoParams | OrpoParams, Field(discriminator="type")]
    lr: Rate
    optimizer: OptimizerKind
    reward_model_weight: Annotated[float, Field(ge=0)]
    checkpoint_every_steps: Count
    on_alarm: Literal["warn", "stop"]
    alarms: AlarmParams

    @model_validator(mode="after")
    def _agrees_with_the_algorithm(self) -> Self:
        refuse_no_checkpoint(self.checkpoint_every_steps, self.algorithm.max_steps, "algorithm.max_steps")
        if isinstance(self.algorithm, DpoParams | KtoParams | OrpoParams) and self.reward_model_weight:
            raise ValueError(
                f"reward_model_weight is {self.reward_model_weight:g} and algorithm.type {self.algorithm.type}, which "
                "learns from pairs and earns no reward, so the weight would change nothing; set it to 0.0"
            )
        if isinstance(self.algorithm, OnlineParams) and not self.algorithm.measures_kl and self.alarms.kl is not None:
            raise ValueError(
                f"alarms.kl is {self.alarms.kl:g} and algorithm.kl.is_measured false: it would never be raised; set "
                "it to null, or measure"
            )
        return self
