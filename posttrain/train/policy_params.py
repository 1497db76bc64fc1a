"""Knobs of the section `train_policy`: the algorithm and one before it, the optimizer and the
health alarms."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.models.params import OptimizerParams
from posttrain.runtime.knobs import SLIP, Count, Section, SmallCount
from posttrain.tracking.params import AlarmParams
from posttrain.train.advantages.process_model import ProcessModelCredit
from posttrain.train.online.params import OnlineParams
from posttrain.train.params import refuse_no_checkpoint
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.reward_bound import Bound, MeanBound
from posttrain.train.roles import EQUAL, RoleWeights
from posttrain.types import Task


class DpoParams(Section):
    """Direct preference optimisation (arXiv 2305.18290) on the pairs. The example is the one that
    README has figures of. `loss`: `sigmoid`, `hinge` (SLiC), which lets go of a pair once it is
    1 / `beta` apart, `ipo`, which wants it 1 / (2 `beta`) apart per token, or `robust`.
    `label_smoothing`: the share of pairs that may stand the wrong way round, for which `robust`
    corrects (rDPO, arXiv 2403.00409). `reference_free`: the first policy counts as finding all
    episodes equally likely."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5, loss: sigmoid}"
    type: Literal["dpo"]
    max_steps: Count
    batch_size: SmallCount
    beta: Annotated[float, Field(gt=0)]
    loss: Literal["sigmoid", "hinge", "ipo", "robust"]
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    reference_free: bool = False

    @model_validator(mode="after")
    def _can_doubt(self) -> Self:
        if bool(self.label_smoothing) != (self.loss == "robust"):
            raise ValueError(
                f"label_smoothing is {self.label_smoothing:g} and loss {self.loss}: robust needs one above 0, and the "
                "others read none"
            )
        return self


class KtoParams(Section):
    """Kahneman-Tversky optimisation (arXiv 2402.01306) on single episodes: thumbs, and both
    sides of the pairs, the chosen desirable and the rejected not. A step has 2 `batch_size`
    episodes. Where one kind is rarer, its weight is to be higher."""

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


PairParams = DpoParams | KtoParams | OrpoParams


class NoTraining(Section):
    """The policy is the model that training would begin from: one of another trainer, which is
    evaluated, compared and served like one of ours. `trained_by` says how it came about."""

    type: Literal["none"]
    trained_by: str


_Training = OnlineParams | RejectionSamplingParams | PairParams
Phase = Annotated[_Training, Field(discriminator="type")]


class ReplayBufferParams(Section):
    """At most `size` episodes. Which: `uniform`, each ever learnt from alike (reservoir sampling),
    or `rare`, the more likely the fewer successes there are of the episode's task."""

    size: Count
    keep: Literal["uniform", "rare"]


class TaskPart(Section):
    """Part number `part`, from 1, of `of` equal parts of the rl tasks, so that runs after one
    another have tasks of their own."""

    part: SmallCount
    of: SmallCount

    def of_tasks(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Every `of`-th task. Parts 1 and 2 of 2 of a, b, c: a and c, and b."""
        return tasks[self.part - 1 :: self.of]

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.part > self.of:
            raise ValueError(f"part is {self.part} of {self.of}: parts count from 1 to {self.of}")
        return self


class RefreshParams(Section):
    """After every `every_steps` steps the reward models take `max_steps` optimizer steps of
    `batch_size` pairs of the episodes since the last time. `by`: the score that says which episode
    is the better, such as a judge's `judge_task`; null is the reward."""

    example: ClassVar[str] = "{every_steps: 20, max_steps: 10, batch_size: 32, lr: 3.0e-4}"
    every_steps: Count
    max_steps: Count
    batch_size: SmallCount
    lr: Annotated[float, Field(gt=0)]
    by: str | None = None


class TrainPolicyParams(OptimizerParams):
    """`begin_with`: an algorithm that trains before `algorithm`, with an optimizer of its own; null
    is none. `start`: the model that training begins from, that of SFT or the policy of an earlier
    run in `data/earlier_run`. `role_weights`: shares of the reward of two policies in one episode,
    alike in the record of an older run. `replay_buffer`: episodes that were learnt from are left
    for a later run, and those of an earlier one are learnt again. `task_part`: of the rl tasks;
    null is all."""

    begin_with: Phase | None
    algorithm: Annotated[_Training | NoTraining, Field(discriminator="type")]
    start: Literal["sft", "earlier_run"]
    replay_buffer: ReplayBufferParams | None
    task_part: TaskPart | None
    reward_model_weight: Annotated[float, Field(ge=0)]
    reward_model_bound: Bound = MeanBound(type="mean")
    reward_model_refresh: RefreshParams | None = None
    role_weights: RoleWeights = EQUAL
    world_reward_weight: Annotated[float, Field(ge=0, le=1)] = 1.0
    checkpoint_every_steps: Count
    on_alarm: Literal["warn", "stop"]
    alarms: AlarmParams

    @property
    def phases(self) -> Mapping[str, Phase]:
        """`begin_with`, if there is one, then `algorithm`, by the name of its section; none where
        nothing is trained."""
        sections = {"begin_with": self.begin_with, "algorithm": self.algorithm}
        return {name: one for name, one in sections.items() if one and not isinstance(one, NoTraining)}

    @property
    def online(self) -> Mapping[str, OnlineParams]:
        """Those of the phases that train online."""
        return {section: one for section, one in self.phases.items() if isinstance(one, OnlineParams)}

    @property
    def is_online(self) -> bool:
        """True where a phase trains online: the alarms are about its metrics."""
        return bool(self.online)

    @property
    def reads_process_model(self) -> bool:
        """True where a phase credits turns by the process reward model."""
        return any(isinstance(one.credit, ProcessModelCredit) for one in self.online.values())

    @model_validator(mode="after")
    def _agrees_with_the_algorithm(self) -> Self:
        for section, one in self.phases.items():
            refuse_no_checkpoint(self.checkpoint_every_steps, one.max_steps, f"{section}.max_steps")
        for section, online in self.online.items():
            if not online.measures_kl and self.alarms.kl is not None:
                raise ValueError(f"alarms.kl is {self.alarms.kl:g} and {section}.kl.is_measured false; set it to null")
        if isinstance(self.algorithm, NoTraining) and (self.begin_with or self.start != "earlier_run"):
            raise ValueError(
                f"algorithm.type is none, start {self.start} and begin_with {'set' if self.begin_with else 'null'}: "
                "nothing is trained only where the policy is in data/earlier_run (`posttrain adopt-model`); set start "
                "to earlier_run and begin_with to null"
            )
        if self.replay_buffer and not any(isinstance(one, RejectionSamplingParams) for one in self.phases.values()):
            raise ValueError("replay_buffer is set and nothing is learnt by rejection_sampling: set it to null")
        if not self.reward_model_weight and self.world_reward_weight < 1:
            raise ValueError(
                f"reward_model_weight is 0 and world_reward_weight {self.world_reward_weight:g}: the world's reward "
                "would be the only one, and smaller; set it to 1.0"
            )
        if self.reward_model_refresh and not (self.reward_model_weight and self.online):
            raise ValueError(
                "reward_model_refresh is set, and nothing is learnt online by a reward model: set it to null, or "
                "reward_model_weight above 0 and an algorithm of type online"
            )
        if self.reward_model_weight and all(isinstance(one, PairParams) for one in self.phases.values()):
            raise ValueError(
                f"reward_model_weight is {self.reward_model_weight:g} and algorithm.type {self.algorithm.type} plays "
                "nothing that it could reward: it would change nothing; set it to 0.0"
            )
        return self
