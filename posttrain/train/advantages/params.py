"""The knobs of credit: what rewards are compared with, over what scale, and for which tokens."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Decay, Rate, Section, SmallCount


class GroupMean(Section):
    """The mean of the group (GRPO)."""

    type: Literal["group_mean"]


class Nothing(Section):
    """Nothing: an episode counts what it earned, and one that earned nothing does not (REINFORCE;
    of rewards of 0 and 1, RAFT)."""

    type: Literal["nothing"]


class LeaveOneOut(Section):
    """The mean of the group's other members (RLOO)."""

    type: Literal["leave_one_out"]


class VirtualBest(Section):
    """The mean of the group with one more member that earned `best` (NGRPO); none may earn more."""

    type: Literal["virtual_best"]
    best: float


class VirtualEnds(Section):
    """The group's mean; a group of equal rewards gets one more member, with `best` where they lie
    nearer to `worst` and with `worst` else (our reading of AVSPO)."""

    type: Literal["virtual_ends"]
    worst: float
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
    Nothing | GroupMean | LeaveOneOut | VirtualBest | VirtualEnds | TaskMean | BatchMean | Weighted,
    Field(discriminator="type"),
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


class ByBaseline(Section):
    """A group of equal rewards is credited as any other: with nothing under a baseline that is its
    own mean."""

    type: Literal["by_baseline"]


class ByEntropy(Section):
    """A token of a group of equal rewards is credited with `alpha` times its entropy where all
    succeeded, and where all failed with how far it lies below the episode's most uncertain one
    (RL-ZVP)."""

    type: Literal["by_entropy"]
    alpha: Annotated[float, Field(gt=0)]


class ByCoin(Section):
    """A group of equal rewards is credited with `size`, up or down as a coin falls: a control of
    what any constant does."""

    type: Literal["by_coin"]
    size: Annotated[float, Field(gt=0)]


EqualGroups = Annotated[ByBaseline | ByEntropy | ByCoin, Field(discriminator="type")]

Drop = Literal["none", "equal", "all_good"]


class Compared(Section):
    """(reward - baseline) / scale. `drop`: groups that count for nothing, `equal` those whose
    rewards are, `all_good` those in which all succeeded."""

    baseline: BaselineParams
    scale: ScaleParams
    drop: Drop


class EpisodeCredit(Compared):
    """One number for all tokens of an episode: (reward - baseline) / scale. `drop`: groups that
    count for nothing, `equal` those whose rewards are, `all_good` those in which all succeeded."""

    example: ClassVar[str] = (
        "{baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none, "
        "equal_groups: {type: by_baseline}}"
    )
    type: Literal["episode"]
    equal_groups: EqualGroups


class ScoresCredit(Section):
    """Each score of the reward is compared within the group by itself, over its own deviation, and
    only then weighed and summed; the sums are normalised over the step (GDPO)."""

    example: ClassVar[str] = "{floor: 1.0e-4}"
    type: Literal["scores"]
    floor: Annotated[float, Field(gt=0, le=1)]


class DiscountedCredit(Compared):
    """As `episode`, and a turn is credited with `gamma` for each turn that came after it."""

    example: ClassVar[str] = (
        "{gamma: 0.9, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["discounted"]
    gamma: Annotated[float, Field(gt=0, lt=1)]


class TurnScoresCredit(Compared):
    """As `episode`, and turns are credited with `weight` times how well they did themselves,
    compared within the group in the same way: the world's score of a turn, or the share of its
    calls that worked. `first`: those before the first result, with its score (MT-GRPO); `every`:
    each with its own, compared with all of the group's."""

    example: ClassVar[str] = (
        "{turns: first, weight: 1.0, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["turn_scores"]
    turns: Literal["first", "every"]
    weight: Annotated[float, Field(gt=0)]
    # what is known of a task before the step is of rewards, not of turns
    baseline: Annotated[GroupMean | LeaveOneOut | VirtualBest | VirtualEnds | BatchMean, Field(discriminator="type")]


class StatesCredit(Compared):
    """As `episode`, and every turn is credited with `weight` times how its discounted return
    compares with those of the group's other turns that began from the same state (GiGPO):
    `state_baseline` may be one with a virtual best."""

    example: ClassVar[str] = (
        "{gamma: 0.95, weight: 1.0, state_baseline: {type: group_mean}, baseline: {type: group_mean}, "
        "scale: {type: none}, drop: none}"
    )
    type: Literal["states"]
    gamma: Annotated[float, Field(gt=0, le=1)]
    weight: Annotated[float, Field(gt=0)]
    scale: Annotated[Unscaled | GroupStd, Field(discriminator="type")]  # a whole step's turns are of no one state
    state_baseline: Annotated[GroupMean | LeaveOneOut | VirtualBest, Field(discriminator="type")]


class CriticParams(Section):
    """What an episode will earn, by a head on the policy's own last layer, which it does not move
    (`shared`), or by a model of its own that begins as the policy does (`apart`); learnt with AdamW
    at `lr`, `updates_per_step` times a step, from `warmup_steps` before the policy learns on."""

    trunk: Literal["shared", "apart"]
    lr: Rate
    updates_per_step: SmallCount
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)]


class GaeCredit(Section):
    """Generalised advantage estimation over the agent's tokens or turns, against a critic; with an
    `objective` of clip this is PPO."""

    example: ClassVar[str] = (
        "{over: tokens, gamma: 1.0, lam: 0.95, scale: {type: batch_std, floor: 1.0e-4}, "
        "critic: {trunk: apart, lr: 1.0e-3, updates_per_step: 2, warmup_steps: 4}}"
    )
    type: Literal["gae"]
    over: Literal["tokens", "turns"]
    gamma: Annotated[float, Field(gt=0, le=1)]
    lam: Annotated[float, Field(ge=0, le=1)]
    scale: Annotated[Unscaled | BatchStd, Field(discriminator="type")]
    critic: CriticParams


class ImitationCredit(Section):
    """1 for an expert's trace that joined the group, nothing for what was played: supervised
    learning on the traces that an oracle method uses, as its control."""

    example: ClassVar[str] = "{}"
    type: Literal["imitation"]


CreditParams = Annotated[
    EpisodeCredit | ScoresCredit | DiscountedCredit | TurnScoresCredit | StatesCredit | GaeCredit | ImitationCredit,
    Field(discriminator="type"),
]
