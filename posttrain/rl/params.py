"""The knobs of learning online, as they stand under `train_policy.algorithm`: one choice each of
credit and objective. Which of them can be together is said here, before any work."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.knobs import Count, Rate, Section, SmallCount

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
    GroupMean | LeaveOneOut | VirtualBest | VirtualEnds | TaskMean | BatchMean | Weighted, Field(discriminator="type")
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
    """As `episode`, and the turns before the first result are credited with `weight` times how well
    they did themselves, compared within the group in the same way (MT-GRPO): the world's score of a
    turn, or the share of its calls that worked."""

    example: ClassVar[str] = (
        "{weight: 1.0, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}"
    )
    type: Literal["turn_scores"]
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


class JoinsNothing(Section):
    """Groups are what was played."""

    type: Literal["none"]


class JoinsExpert(Section):
    """`count` traces of the world's expert are members of every group (LUFFY): an oracle. Their
    tokens' probability p is made likelier through p / (p + `gamma`), or through log p where gamma
    is null."""

    example: ClassVar[str] = "{count: 1, gamma: 0.1}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type expert"
    type: Literal["expert"]
    count: SmallCount
    gamma: Annotated[float, Field(gt=0)] | None


class JoinsBest(Section):
    """The best episode of the task in earlier steps is a member of a group in which nothing
    succeeded (AR3PO's reuse)."""

    example: ClassVar[str] = "{}"
    type: Literal["best"]


class JoinsHints(Section):
    """`share` of a group's episodes begin behind the first turns of the world's expert: an oracle.
    The share of its turns that is given begins at `start` for each task and falls by `step` with
    each group in which one succeeded."""

    example: ClassVar[str] = "{share: 0.5, start: 0.75, step: 0.25}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type hints"
    type: Literal["hints"]
    share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(gt=0, le=1)]
    step: Annotated[float, Field(gt=0, le=1)]


JoinParams = Annotated[JoinsNothing | JoinsExpert | JoinsBest | JoinsHints, Field(discriminator="type")]


class UniformSampling(Section):
    """Every task as often as every other."""

    type: Literal["uniform"]


class SpreadSampling(Section):
    """Tasks whose groups differed in reward before likelier than others, whose odds are `floor`;
    a group counts `decay` as much after each further one of its task. What those with the same
    `labels` came to counts as one group more."""

    example: ClassVar[str] = "{labels: [kind, difficulty], floor: 0.1, decay: 0.5}"
    type: Literal["spread"]
    labels: list[str]
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


class NoKl(Section):
    """Nothing holds the policy to the model that training began from."""

    type: Literal["none"]


class KlLoss(Section):
    """`weight` times the divergence from that model is part of the loss (GRPO's estimate, a token
    at a time)."""

    example: ClassVar[str] = "{weight: 0.01}"
    type: Literal["loss"]
    weight: Annotated[float, Field(gt=0)]


class AdaptiveKl(Section):
    """The same with a weight that rises while the divergence is above `target` nats a token and
    falls below, by a fifth at most over `horizon` steps (arXiv 1909.08593, section 2.2)."""

    example: ClassVar[str] = "{weight: 0.01, target: 0.05, horizon: 10}"
    type: Literal["adaptive"]
    weight: Annotated[float, Field(gt=0)]
    target: Annotated[float, Field(gt=0)]
    horizon: SmallCount


KlParams = Annotated[NoKl | KlLoss | AdaptiveKl, Field(discriminator="type")]


class DevParams(Section):
    """`num_tasks` dev tasks are played greedily before the first step and every `every_steps`;
    `keep` is the model that comes out: the last one, or the one with the best strict success
    there."""

    every_steps: Count
    num_tasks: SmallCount
    keep: Literal["last", "best"]


class OnlineParams(Section):
    """Episodes of the policy in training, credit for what it wrote, and `updates_per_step`
    optimizer steps on them. It ends after `max_steps`, or earlier when `max_generated_tokens` have
    been written in training. `average`: the loss is a mean over the step's tokens (DAPO), over
    episodes of the mean of each (GRPO), or the sum over tokens through episodes times
    `agent.max_context_tokens` (Dr. GRPO)."""

    example: ClassVar[str] = (
        "{max_steps: 88, max_generated_tokens: null, tasks_per_step: 16, group_size: 8, temperature: 1.0, "
        "updates_per_step: 1, max_staleness: 0, sampling: {order: {type: uniform}, max_refills: 0}, "
        "join: {type: none}, credit: {type: episode, baseline: {type: group_mean}, "
        "scale: {type: group_std, floor: 1.0e-4}, drop: none, equal_groups: {type: by_baseline}}, "
        "objective: {type: policy_gradient}, average: tokens, kl: {type: none}, entropy_bonus: 0.0, "
        "importance_cap: 2.0, dev: {every_steps: 22, num_tasks: 128, keep: last}}"
    )
    type: Literal["online"]
    max_steps: Count
    max_generated_tokens: Annotated[int, Field(ge=1)] | None
    tasks_per_step: SmallCount
    group_size: Annotated[int, Field(ge=2, le=100_000)]
    temperature: Annotated[float, Field(gt=0, le=2)]
    updates_per_step: SmallCount
    max_staleness: Literal[0, 1]
    sampling: SamplingParams
    join: JoinParams
    credit: CreditParams
    objective: Annotated[Objective, Field(discriminator="type")]
    average: LossMean
    kl: KlParams
    entropy_bonus: Annotated[float, Field(ge=0)]
    importance_cap: Annotated[float, Field(ge=1)]
    dev: DevParams

    @property
    def baseline(self) -> BaselineParams | None:
        """What rewards are compared with; None of a credit that compares with none."""
        return self.credit.baseline if isinstance(self.credit, Compared) else None

    @property
    def virtual_bests(self) -> dict[str, float]:
        """What is taken for the most that can be earned, by its place in `credit`."""
        places = {"baseline": self.baseline}
        if isinstance(self.credit, StatesCredit):
            places["state_baseline"] = self.credit.state_baseline
        return {key: one.best for key, one in places.items() if isinstance(one, VirtualBest | VirtualEnds)}

    @model_validator(mode="after")
    def _clips_where_it_can_act(self) -> Self:
        if not isinstance(self.objective, PolicyGradient) and self.updates_per_step == 1:
            raise ValueError(
                f"objective is {self.objective.type} and updates_per_step is 1: the ratio to the policy that played is "
                "1 then, and nothing can be held; take policy_gradient, or two updates"
            )
        return self

    @model_validator(mode="after")
    def _plays_ahead_only_what_it_knows(self) -> Self:
        """What a step brings decides the next one's tasks, and ahead that is not known yet."""
        looks_back = [
            *([f"sampling.order is {self.sampling.order.type}"] if self.sampling.order.type != "uniform" else []),
            *([f"sampling.max_refills is {self.sampling.max_refills}"] if self.sampling.max_refills else []),
            *([f"join is {self.join.type}"] if isinstance(self.join, JoinsHints) else []),
        ]
        if self.max_staleness and looks_back:
            raise ValueError(
                f"max_staleness is 1 and {looks_back[0]}: the next step would be chosen before this one is seen; "
                "set max_staleness to 0, or take tasks as they come"
            )
        return self

    @model_validator(mode="after")
    def _imitates_an_expert(self) -> Self:
        if isinstance(self.credit, ImitationCredit) and not isinstance(self.join, JoinsExpert):
            raise ValueError(
                f"credit is imitation and join is {self.join.type}: there would be nothing to imitate; join an expert"
            )
        if isinstance(self.credit, GaeCredit) and not isinstance(self.join, JoinsNothing):
            raise ValueError(
                f"credit is gae and join is {self.join.type}: a critic is of what the policy itself earns; take join "
                "none, or another credit"
            )
        return self

    @model_validator(mode="after")
    def _drops_what_it_credits(self) -> Self:
        credit = self.credit
        if isinstance(credit, EpisodeCredit) and credit.drop == "equal" and credit.equal_groups.type != "by_baseline":
            raise ValueError(
                f"credit.drop is equal and credit.equal_groups {credit.equal_groups.type}: what is dropped would be "
                "credited; take drop none, or by_baseline"
            )
        return self

    @model_validator(mode="after")
    def _scales_what_has_a_scale(self) -> Self:
        """A number known before the step has no spread in a group of one."""
        if isinstance(self.baseline, VirtualEnds) and self.baseline.worst >= self.baseline.best:
            raise ValueError(
                f"credit.baseline.worst is {self.baseline.worst:g} and best {self.baseline.best:g}: the best has to be "
                "above the worst"
            )
        if isinstance(self.baseline, BatchMean) and isinstance(self._scale, GroupStd):
            raise ValueError(
                "credit.baseline is batch_mean and credit.scale group_std: a difference over the whole step would be "
                "measured by the spread of one group; take batch_std or none"
            )
        return self

    @property
    def _scale(self) -> ScaleParams | None:
        return self.credit.scale if isinstance(self.credit, Compared) else None
