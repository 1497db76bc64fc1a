"""Knobs of SFT, preference pairs, the reward model, and DPO, KTO and ORPO."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.models.params import OptimizerKind
from posttrain.runtime.knobs import SLIP, Count, Frac, Rate, Section, SmallCount, Temperature


class TrainSftParams(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    optimizer: OptimizerKind
    label_weights: dict[str, dict[str, Frac]]
    eval_every_steps: Count  # a checkpoint each time: the best evaluation needs one to return to
    early_stopping_patience: Count

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        if len(self.label_weights) > 1:
            raise ValueError(
                f"label_weights names the labels {', '.join(self.label_weights)}; rows are weighed by one of them"
            )
        for label, weights in self.label_weights.items():
            if abs((total := sum(weights.values())) - 1) > 1e-9:
                raise ValueError(
                    f"the weights of {label} sum to {total:g}, not 1; they are shares of the training rows"
                )
        return self

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        if self.eval_every_steps > self.max_steps:
            raise ValueError(
                f"eval_every_steps is {self.eval_every_steps} and max_steps {self.max_steps}: the dev loss would never "
                "be measured, so there would be no best checkpoint to keep; lower it to max_steps or less"
            )
        return self


class SamplePreferencesParams(Section):
    num_tasks: Count
    # the reward model is judged by the best of four
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=SLIP)]
    temperature: Temperature
    pairs: Literal["best_worst", "closest"]


class TrainRewardModelParams(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    checkpoint_every_steps: Count

    @model_validator(mode="after")
    def _writes_checkpoints(self) -> Self:
        refuse_no_checkpoint(self.checkpoint_every_steps, self.max_steps, "max_steps")
        return self


class DpoParams(Section):
    """Direct preference optimisation (arXiv 2305.18290) on the sampled pairs. The example is the
    one that README has figures of. `loss`: `sigmoid`, `hinge` (SLiC), which lets go of a pair once
    it is 1 / `beta` apart, or `ipo`, which wants it 1 / (2 `beta`) apart per token."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5, loss: sigmoid}"
    type: Literal["dpo"]
    max_steps: Count
    batch_size: SmallCount
    beta: Annotated[float, Field(gt=0)]
    loss: Literal["sigmoid", "hinge", "ipo"]


class KtoParams(Section):
    """Kahneman-Tversky optimisation (arXiv 2402.01306): the chosen episodes of the sampled pairs
    are desirable, the rejected ones undesirable, each by itself. A step has both of `batch_size`
    pairs."""

    example: ClassVar[str] = (
        "{max_steps: 80, batch_size: 32, beta: 0.5, desirable_weight: 1.0, undesirable_weight: 1.0}"
    )
    type: Literal["kto"]
    max_steps: Count
    # the mismatched episodes are of another pair of the step
    batch_size: Annotated[int, Field(ge=2, le=100_000, description=SLIP)]
    beta: Annotated[float, Field(gt=0)]
    desirable_weight: Annotated[float, Field(gt=0)]
    undesirable_weight: Annotated[float, Field(gt=0)]


class OrpoParams(Section):
    """Odds ratio preference optimisation (arXiv 2403.07691) on the sampled pairs, without a
    reference: fine-tuning on the chosen episodes, and `beta` times the loss of the odds."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5}"
    type: Literal["orpo"]
    max_steps: Count
    batch_size: SmallCount
    beta: Annotated[float, Field(gt=0)]


def refuse_no_checkpoint(every_steps: int, max_steps: int, knob: str) -> None:
    """Raise ValueError where a run would end before its first checkpoint."""
    if every_steps > max_steps:
        raise ValueError(
            f"checkpoint_every_steps is {every_steps} and {knob} {max_steps}: a killed run would begin anew, for want "
            f"of any checkpoint; lower it to {knob} or less"
        )
