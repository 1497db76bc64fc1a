"""Knobs of SFT, preference pairs and the reward model."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.models.params import OptimizerParams, Schedule
from posttrain.runtime.knobs import SLIP, Count, Frac, Rate, Section, SmallCount, Temperature

ObservationWeight = Annotated[float, Field(ge=0)]


class TrainSftParams(OptimizerParams):
    """`learn`: the tokens that a step learns: `all` of the agent's, `no_reasoning`, or by turns all
    but reasoning, and reasoning (`alternating`), which also may be learnt by a LoRA adapter each
    (`separate_adapters`, merged at the end). `gradient_cosine_rows`: dev demonstrations on
    which each evaluation measures the cosine of calls' and reasoning's gradients; 0 for none. With
    an `observation_weight`, results of tools are targets too, at that weight per token in
    the mean over the agent's tokens: an implicit world model (Early Experience, arXiv
    2510.08558)."""

    max_steps: Count
    batch_size: SmallCount
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    lr_schedule: Schedule = "cosine"
    label_weights: dict[str, dict[str, Frac]]
    eval_every_steps: Count  # a checkpoint each time: the best evaluation needs one to return to
    early_stopping_patience: Count
    edit_copies: Annotated[int, Field(ge=0, le=1000, description=SLIP)]
    observation_weight: ObservationWeight = 0.0
    learn: Literal["all", "no_reasoning", "alternating", "separate_adapters"] = "all"
    gradient_cosine_rows: Annotated[int, Field(ge=0, le=10_000, description=SLIP)] = 0

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        if len(self.label_weights) > 1:
            raise ValueError(f"label_weights names {', '.join(self.label_weights)}; rows are weighed by one label")
        for label, weights in self.label_weights.items():
            if abs((total := sum(weights.values())) - 1) > 1e-9:
                raise ValueError(f"the weights of {label} sum to {total:g}, not 1: they are shares of the rows")
        return self

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        if self.eval_every_steps > self.max_steps:
            raise ValueError(
                f"eval_every_steps is {self.eval_every_steps} and max_steps {self.max_steps}: no checkpoint would ever "
                "be measured; lower it to max_steps or less"
            )
        return self


class SampledPairs(Section):
    """The SFT policy's own episodes of a task, compared by their reward."""

    type: Literal["sampled"]


class ImportedPairs(Section):
    """Imported preferences of people or judges; nothing is sampled. `path` is a file, or a folder
    with files, relative to the repository, under a dep of the stage `import_preferences` such as
    `data/feedback`."""

    example: ClassVar[str] = "{path: data/feedback/ours.jsonl}"
    type: Literal["import"]
    path: str


class SampledAndImportedPairs(Section):
    """Both; `import_frac` of the pairs that a training draws are imported ones."""

    example: ClassVar[str] = "{path: data/feedback/ours.jsonl, import_frac: 0.5}"
    type: Literal["both"]
    path: str
    import_frac: Annotated[float, Field(gt=0, lt=1)]


PairSource = Annotated[SampledPairs | ImportedPairs | SampledAndImportedPairs, Field(discriminator="type")]


class SamplePreferencesParams(Section):
    """`thumbs`: sampled episodes that KTO learns from one by one, up where they succeeded, in place
    of the sampled pairs: none, `all`, or the first `one` of each task, so that nothing is
    paired."""

    source: PairSource
    num_tasks: Count
    # the reward model is judged by the best of four
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=SLIP)]
    temperature: Temperature
    pairs: Literal["best_worst", "closest", "all"]
    edit_pairs: bool
    thumbs: Literal["none", "one", "all"] = "none"


class TrainRewardModelParams(Section):
    """`num_members` above 1 are an ensemble: each learns from another draw of the tasks, with
    replacement. `heads`: scores of the reward by name, each of which gets a head of its own, and
    their weights in the model's score; none is one head that learns which of a pair is the
    better."""

    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    checkpoint_every_steps: Count
    num_members: SmallCount = 1
    heads: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _writes_checkpoints(self) -> Self:
        refuse_no_checkpoint(self.checkpoint_every_steps, self.max_steps, "max_steps")
        return self


class TrainProcessModelParams(Section):
    num_tasks: Annotated[int, Field(ge=2, le=10_000_000, description=SLIP)]
    # a task's own plays are the label of its first state
    samples_per_task: Annotated[int, Field(ge=2, le=100_000, description=SLIP)]
    branches_per_turn: SmallCount
    temperature: Temperature
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    checkpoint_every_steps: Count

    @model_validator(mode="after")
    def _writes_checkpoints(self) -> Self:
        refuse_no_checkpoint(self.checkpoint_every_steps, self.max_steps, "max_steps")
        return self


def refuse_no_checkpoint(every_steps: int, max_steps: int, knob: str) -> None:
    """Raise ValueError where a run would end before its first checkpoint."""
    if every_steps > max_steps:
        raise ValueError(
            f"checkpoint_every_steps is {every_steps} and {knob} {max_steps}: a killed run would begin anew; lower it"
        )
