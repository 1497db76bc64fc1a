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

    example: ClassVar[str] = "{floor: 0.1, decay: 0.5}"
    type: Literal["spread"]
    floor: Annotated[float, Field(gt=0, le=1)]
    decay: Decay


class GresoSampling(Section):
    """Every task as often as every other, but skipped the likelier the more of its last groups in a
    row were equal and all solved (easy), or equal and all failed (hard): it is played with a chance
    of p to the power of their number (GRESO). p is `start` at first, and falls while the share of
    easy, or of hard, groups is at its target or above."""

    example: ClassVar[str] = "{easy_share: 0.0833, hard_share: 0.1667, start: 0.5}"
    type: Literal["greso"]
    easy_share: Annotated[float, Field(gt=0, le=1)]
    hard_share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(ge=0.05, le=0.95)]


class PoolShares(Section):
    """Of a step's tasks. Tasks never played are in the middle, which therefore has a share."""

    hard: Annotated[float, Field(ge=0, lt=1)]
    middle: Annotated[float, Field(gt=0, le=1)]
    easy: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.hard + self.middle + self.easy
        if abs(total - 1) > 1e-9:
            raise ValueError(f"hard, middle and easy sum to {total:g}, not 1: they are shares of a step's tasks")
        return self


class PoolSampling(Section):
    """`shares` of a step's tasks that lately succeeded in at most `low` of their episodes (hard),
    in at least `high` (easy), or between; a group counts `decay` as much after each further one of
    its task."""

    example: ClassVar[str] = "{low: 0.2, high: 0.8, shares: {hard: 0.25, middle: 0.6, easy: 0.15}, decay: 0.5}"
    type: Literal["pools"]
    low: Annotated[float, Field(ge=0, lt=1)]
    high: Annotated[float, Field(gt=0, le=1)]
    shares: PoolShares
    decay: Decay

    @model_validator(mode="after")
    def _pools_do_not_overlap(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low is {self.low:g} and high {self.high:g}: a task would be hard and easy at once; put low below high"
            )
        return self


class HorizonSampling(Section):
    """Tasks up to a level of `label`, a number that the world gives each: the lowest at first, the
    next one whenever `promote_at` of the episodes at the highest succeed, a draw's counting `decay`
    as much as the next one's."""

    example: ClassVar[str] = "{label: difficulty, promote_at: 0.7, decay: 0.5}"
    type: Literal["horizon"]
    label: Annotated[str, Field(min_length=1)]
    promote_at: Annotated[float, Field(gt=0, le=1)]
    decay: Decay


Order = UniformSampling | SpreadSampling | GresoSampling | PoolSampling | HorizonSampling


class SamplingParams(Section):
    """In which order tasks are played, and how often a step goes on playing others, at most, until
    it has `tasks_per_step` groups that differ in reward (DAPO's dynamic sampling); 0 takes groups
    as they come."""

    order: Annotated[Order, Field(discriminator="type")]
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
