"""Knobs of online training, as under `train_policy.algorithm`: one choice each of sampling order,
replay, credit and objective, whose own knobs stand with their code. Contradictory choices are
refused here, before any work."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Count, Section, SmallCount
from posttrain.train.advantages.baselines import BaselineParams, BatchMean, VirtualBest
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.credit import Compared, EpisodeCredit, ImitationCredit
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.advantages.process_model import ProcessModelCredit
from posttrain.train.advantages.returns import DiscountedCredit, StatesCredit
from posttrain.train.advantages.scores import ScoresCredit
from posttrain.train.advantages.turn_scores import TurnScoresCredit
from posttrain.train.losses import KlParams, NoKl, Objective, PolicyGradient
from posttrain.train.online.constraints import ConstraintParams
from posttrain.train.rejection_sampling.params import NoRetry, RetryReflection
from posttrain.train.replay import EditReplay, ExpertReplay, HintReplay, NoReplay, ReplayParams
from posttrain.train.sampling.greso import GresoSampling
from posttrain.train.sampling.horizon import HorizonSampling
from posttrain.train.sampling.orders import SpreadSampling, UniformSampling
from posttrain.train.sampling.pools import PoolSampling

CreditParams = Annotated[
    EpisodeCredit
    | ScoresCredit
    | DiscountedCredit
    | TurnScoresCredit
    | StatesCredit
    | GaeCredit
    | BranchValueCredit
    | ProcessModelCredit
    | ImitationCredit,
    Field(discriminator="type"),
]
Order = Annotated[
    UniformSampling | SpreadSampling | GresoSampling | PoolSampling | HorizonSampling, Field(discriminator="type")
]
LossMean = Literal["tokens", "episodes", "max_tokens"]


class SamplingParams(Section):
    """In which order tasks are played, and how often a step goes on playing others, at most, until
    it has `tasks_per_step` groups that differ in reward (DAPO's dynamic sampling); 0 takes groups
    as they come."""

    order: Order
    max_refills: Annotated[int, Field(ge=0, le=100)]


class DevParams(Section):
    """`num_tasks` dev tasks are played greedily before the first step and every `every_steps`;
    `keep` is the model that comes out: the last one, or the one with the best strict success
    there."""

    every_steps: Count
    num_tasks: SmallCount
    keep: Literal["last", "best"]


class OnlineParams(Section):
    """Episodes of the policy in training, credit for what it wrote, and `updates_per_step` passes
    over them (TRL's `num_iterations`, verl's `ppo_epochs`). It ends after `max_steps`, or earlier
    when `max_generated_tokens` have been written in training. `minibatches`: parts that a pass is
    cut into, an optimizer step each (verl's train_batch_size / `ppo_mini_batch_size`): equal
    numbers of whole groups, shuffled once a step. `max_staleness`: by how many steps the weights
    that began an episode may be older than those that learn from it; with 1 the next step's
    episodes are played while this one trains, with more play never pauses, and a step takes the
    groups that end first. `average`: the loss is a mean over the tokens of the minibatch, as verl's
    is (DAPO), over its episodes of the mean of each (GRPO), or the sum over its tokens through its
    episodes times `agent.max_context_tokens` (Dr. GRPO). With `retry` a group is reflections on one
    failed try of its task, each rewarded as the retry behind it."""

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
    minibatches: SmallCount = 1
    max_staleness: Annotated[int, Field(ge=0, le=64)]
    sampling: SamplingParams
    join: ReplayParams
    credit: CreditParams
    objective: Objective
    average: LossMean
    kl: KlParams
    entropy_bonus: Annotated[float, Field(ge=0)]
    importance_cap: Annotated[float, Field(ge=1)]
    dev: DevParams
    constraints: Annotated[list[ConstraintParams], Field(default_factory=list)]
    retry: Annotated[NoRetry | RetryReflection, Field(discriminator="type")] = NoRetry(type="none")

    @property
    def baseline(self) -> BaselineParams | None:
        """Baseline of the rewards; None where the credit has none."""
        return self.credit.baseline if isinstance(self.credit, Compared) else None

    @property
    def virtual_bests(self) -> dict[str, float]:
        """The most that can be earned, as virtual baselines have it, by their key in `credit`."""
        places = {"baseline": self.baseline}
        if isinstance(self.credit, StatesCredit):
            places["state_baseline"] = self.credit.state_baseline
        return {key: one.best for key, one in places.items() if isinstance(one, VirtualBest)}

    @property
    def measures_kl(self) -> bool:
        """True where the policy is compared with the model that training began from."""
        return not isinstance(self.kl, NoKl) or self.kl.is_measured

    @model_validator(mode="after")
    def _reflections_are_whole(self) -> Self:
        is_counted, credit = self.max_generated_tokens is not None, self.credit.type
        if self.retry.type != "none" and (self.join.type != "none" or credit == "branch_values" or is_counted):
            raise ValueError(
                f"retry is {self.retry.type}: nothing can join its groups (join: none), reflections are not played on "
                "(no branch_values), and the tokens of tries and retries are not counted (max_generated_tokens: null)"
            )
        return self

    @model_validator(mode="after")
    def _choices_agree(self) -> Self:
        for contradiction in self._contradictions():
            raise ValueError(contradiction)
        return self

    def _contradictions(self) -> Iterator[str]:  # noqa: C901 — a list
        credit, order, refills = self.credit, self.sampling.order.type, self.sampling.max_refills
        if not isinstance(self.objective, PolicyGradient) and self.updates_per_step * self.minibatches == 1:
            # at the first update the ratio to the policy that sampled is 1
            yield (
                f"objective is {self.objective.type}, updates_per_step is 1 and minibatches 1: nothing can be clipped; "
                "take two of either"
            )
        if self.tasks_per_step % self.minibatches:
            yield (
                f"tasks_per_step is {self.tasks_per_step} and minibatches {self.minibatches}: a part would have more "
                "groups than another; take a number that divides it"
            )
        looks_back = [
            *([f"sampling.order is {order}"] if order != "uniform" else []),
            *([f"sampling.max_refills is {refills}"] if refills else []),
            *([f"join is {self.join.type}"] if isinstance(self.join, HintReplay) else []),
        ]
        if self.max_staleness and looks_back:
            yield (
                f"max_staleness is {self.max_staleness} and {looks_back[0]}: the next step would be chosen before this "
                "one is seen; set max_staleness to 0, or take tasks as they come"
            )
        if isinstance(credit, ImitationCredit) and not isinstance(self.join, ExpertReplay | EditReplay):
            yield f"credit is imitation and join is {self.join.type}: there is nothing to imitate; join an expert"
        if isinstance(credit, GaeCredit | BranchValueCredit) and not isinstance(self.join, NoReplay):
            yield (
                f"credit is {credit.type} and join {self.join.type}: values are of what the policy itself earns; "
                "join none"
            )
        if isinstance(credit, BranchValueCredit) and self.max_staleness:
            yield (
                f"credit is branch_values and max_staleness {self.max_staleness}: branches would be played by other "
                "weights than their episodes; set max_staleness to 0"
            )
        if self.max_staleness > 1 and self.retry.type != "none":
            yield (
                f"max_staleness is {self.max_staleness} and retry {self.retry.type}: a retry is played by the weights "
                "of its reflection; set max_staleness to 0 or 1"
            )
        if isinstance(credit, BranchValueCredit | ProcessModelCredit) and refills:
            yield (
                f"credit is {credit.type} and sampling.max_refills {refills}: groups of equal rewards are learnt from, "
                "too; set max_refills to 0"
            )
        if self.constraints and isinstance(credit, ScoresCredit | ImitationCredit | BranchValueCredit):
            yield (
                f"constraints are on {self.constraints[0].score} and credit is {credit.type}, which does not learn "
                "from the reward of an episode: take another credit"
            )
        if isinstance(credit, EpisodeCredit) and credit.drop == "equal" and credit.equal_groups.type != "by_baseline":
            yield f"credit.drop is equal and credit.equal_groups {credit.equal_groups.type}: take drop none"
        # a difference over the whole step would be measured by the spread of one group
        if isinstance(credit, Compared) and isinstance(credit.baseline, BatchMean) and credit.scale.type == "group_std":
            yield "credit.baseline is batch_mean and credit.scale group_std: take batch_std or none"
