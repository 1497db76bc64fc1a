"""The knobs of learning online, as they stand under `train_policy.algorithm`: one choice each of
credit and objective. Which of them can be together is said here, before any work."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.knobs import Count, Section, SmallCount

Decay = Annotated[float, Field(ge=0, lt=1)]


class GroupMean(Section):
    """The mean of the group (GRPO)."""

    type: Literal["group_mean"]


class LeaveOneOut(Section):
    """The mean of the group's other members (RLOO)."""

    type: Literal["leave_one_out"]


class VirtualBest(Section):
    """The mean of the group with one more member that earned `best` (NGRPO); none may earn more."""

    type: Literal["virtual_best"]
    best: float


class TaskMean(Section):
    """The task's mean in earlier steps, an episode counting `decay` as much after each further
    step; the group's own mean where there was none."""

    type: Literal["task_mean"]
    decay: Decay


class BatchMean(Section):
    """The mean of all of the step's episodes."""

    type: Literal["batch_mean"]


class Weighted(Section):
    """The group's mean, the task's running mean and the batch's, which counts as `batch_count`
    episodes, by how many each speaks for."""

    type: Literal["weighted"]
    decay: Decay
    batch_count: Annotated[float, Field(ge=0)]


BaselineParams = Annotated[
    GroupMean | LeaveOneOut | VirtualBest | TaskMean | BatchMean | Weighted, Field(discriminator="type")
]


class Unscaled(Section):
    """The difference as it is (Dr. GRPO)."""

    type: Literal["none"]


class GroupStd(Section):
    """Over the standard deviation of what the baseline is a mean of, plus `floor`."""

    type: Literal["group_std"]
    floor: Annotated[float, Field(gt=0, le=1)]


class BatchStd(Section):
    """Over the standard deviation of all of the step's rewards, plus `floor`."""

    type: Literal["batch_std"]
    floor: Annotated[float, Field(gt=0, le=1)]


ScaleParams = Annotated[Unscaled | GroupStd | BatchStd, Field(discriminator="type")]


class EpisodeCredit(Section):
    """One number for all tokens of an episode: (reward - baseline) / scale. `drop`: groups that
    count for nothing, `equal` those whose rewards are, `all_good` those in which all succeeded."""

    example: ClassVar[str] = "{baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    type: Literal["episode"]
    baseline: BaselineParams
    scale: ScaleParams
    drop: Literal["none", "equal", "all_good"]


class UniformSampling(Section):
    """Every task as often as every other."""

    type: Literal["uniform"]


class SpreadSampling(Section):
    """Tasks whose groups differed in reward before likelier than others, whose odds are `floor`;
    a group counts `decay` as much after each further one of its task."""

    type: Literal["spread"]
    floor: Annotated[float, Field(gt=0, le=1)]
    decay: Decay


class SamplingParams(Section):
    """In which order tasks are played, and how often a step goes on playing others, at most, until
    it has `tasks_per_step` groups that differ in reward (DAPO's dynamic sampling); 0 takes groups
    as they come."""

    order: Annotated[UniformSampling | SpreadSampling, Field(discriminator="type")]
    max_refills: Annotated[int, Field(ge=0, le=100)]


class Clip(Section):
    """The likelihood ratio to the policy that played, kept within 1 - `low` and 1 + `high` where
    that would make the step larger (PPO, DAPO's clip-higher)."""

    example: ClassVar[str] = "{low: 0.2, high: 0.2}"
    type: Literal["clip"]
    low: Annotated[float, Field(gt=0, lt=1)]
    high: Annotated[float, Field(gt=0)]


class Cispo(Section):
    """The log-likelihood times the advantage and the ratio, which is held below `cap` and not
    differentiated, so that no token loses its gradient (CISPO)."""

    example: ClassVar[str] = "{cap: 5.0}"
    type: Literal["cispo"]
    cap: Annotated[float, Field(ge=1)]


class Gspo(Section):
    """As clip, with one ratio for an episode: the geometric mean of its tokens' (GSPO)."""

    example: ClassVar[str] = "{low: 3.0e-4, high: 4.0e-4}"
    type: Literal["gspo"]
    low: Annotated[float, Field(gt=0, lt=1)]
    high: Annotated[float, Field(gt=0)]


class Sapo(Section):
    """A sigmoid of the ratio instead of a clip: the gradient fades as the ratio leaves 1, the
    faster the higher the temperature of the advantage's sign (SAPO)."""

    example: ClassVar[str] = "{positive: 1.0, negative: 1.05}"
    type: Literal["sapo"]
    positive: Annotated[float, Field(gt=0)]
    negative: Annotated[float, Field(gt=0)]


class PolicyGradient(Section):
    """The likelihood ratio times the advantage, without a clip."""

    example: ClassVar[str] = "{}"
    type: Literal["policy_gradient"]


Objective = Clip | Cispo | Gspo | Sapo | PolicyGradient

LossMean = Literal["tokens", "episodes", "max_tokens"]


class OnlineParams(Section):
    """Episodes of the policy in training, credit for what it wrote, and `updates_per_step`
    optimizer steps on them. `average`: the loss is a mean over the step's tokens (DAPO), over
    episodes of the mean of each (GRPO), or the sum over tokens through episodes times
    `agent.max_context_tokens` (Dr. GRPO)."""

    example: ClassVar[str] = (
        "{max_steps: 88, tasks_per_step: 16, group_size: 8, temperature: 1.0, updates_per_step: 1, "
        "sampling: {order: {type: uniform}, max_refills: 0}, "
        "credit: {type: episode, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}, "
        "objective: {type: policy_gradient}, average: tokens, importance_cap: 2.0}"
    )
    type: Literal["online"]
    max_steps: Count
    tasks_per_step: SmallCount
    group_size: Annotated[int, Field(ge=2, le=100_000)]
    temperature: Annotated[float, Field(gt=0, le=2)]
    updates_per_step: SmallCount
    sampling: SamplingParams
    credit: EpisodeCredit
    objective: Annotated[Objective, Field(discriminator="type")]
    average: LossMean
    importance_cap: Annotated[float, Field(ge=1)]

    @model_validator(mode="after")
    def _clips_where_it_can_act(self) -> Self:
        if not isinstance(self.objective, PolicyGradient) and self.updates_per_step == 1:
            raise ValueError(
                f"objective is {self.objective.type} and updates_per_step is 1: the ratio to the policy that played is "
                "1 then, and nothing can be held; take policy_gradient, or two updates"
            )
        return self
