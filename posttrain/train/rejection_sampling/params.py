"""Knobs of rejection-sampling fine-tuning, as under `train_policy.algorithm`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Count, Rate, Section, SmallCount
from posttrain.train.params import ObservationWeight


class AcceptSuccess(Section):
    """Episodes that reached the goal (RAFT with a reward of 0 or 1, STaR)."""

    type: Literal["success"]


class AcceptStrict(Section):
    """Episodes that reached the goal without a call that it does not accept."""

    type: Literal["strict"]


class AcceptQuantile(Section):
    """Episodes whose reward is at least the `quantile` of all episodes played so far, and above the
    lowest."""

    example: ClassVar[str] = "{quantile: 0.75}"
    type: Literal["quantile"]
    quantile: Annotated[float, Field(gt=0, lt=1)]


class AcceptByReward(Section):
    """All episodes, each by the weight exp(reward / `temperature`): reward-weighted regression,
    weighted behaviour cloning."""

    example: ClassVar[str] = "{temperature: 0.2}"
    type: Literal["by_reward"]
    temperature: Annotated[float, Field(ge=0.01)]


Accept = Annotated[AcceptSuccess | AcceptStrict | AcceptQuantile | AcceptByReward, Field(discriminator="type")]


class NoRetry(Section):
    """A failed episode is not tried again."""

    type: Literal["none"]


class RetryAgain(Section):
    """The task of each failed episode is played once more: the control of `reflection`."""

    type: Literal["again"]


class RetryReflection(Section):
    """Behind each failed episode the user says `prompt`, the policy writes a reflection, the user
    repeats the question, and the policy tries again. An accepted retry is a row without the failed
    try and the reflection (Reflect, Retry, Reward, arXiv 2505.24726, distilled)."""

    example: ClassVar[str] = "{prompt: That was not right. Say what went wrong. Then try again.}"
    type: Literal["reflection"]
    prompt: Annotated[str, Field(min_length=1, max_length=2000)]


class RejectionSamplingParams(Section):
    """Rejection-sampling fine-tuning (RAFT, arXiv 2304.06767; STaR, arXiv 2203.14465): `rounds`
    times the policy plays `max_generated_tokens / rounds` tokens on the rl tasks, and `max_steps`
    optimizer steps of supervised learning follow on the accepted episodes of all rounds so far.
    The tasks come in passes, and a round goes on where the one before ended: with
    `world.num_rl_tasks` large, all are new. `restart`: every round learns from the weights that
    training began from, else from those of the round before.

    `balance`: every `episode` accepted alike, every `task` that has one alike, or tasks by their
    `difficulty`, the normal density of k of n right around n/2 (ExGRPO, arXiv 2510.02245).
    `per_task`: `all`, or the `likeliest`, by the mean log-probability of its tokens as it was
    played. `replay_frac` of the rows are demonstrations that SFT learnt from, which also tell what
    `ewc_weight` holds (`train/ewc.py`). `observation_weight` is that of `train_sft`;
    `observations_of` `all` makes rows of the other episodes, too, as often as they were played, of
    which results alone are targets: what other calls lead to. `retry`: each failed episode is tried
    once more; a retry counts among the episodes of its task."""

    example: ClassVar[str] = (
        "{rounds: 2, max_generated_tokens: 300000, tasks_per_step: 128, samples_per_task: 1, temperature: 1.0, "
        "accept: {type: success}, balance: task, per_task: all, restart: false, replay_frac: 0.0, "
        "max_steps: 300, batch_size: 16, lr: 3.0e-3, lr_warmup_frac: 0.05, num_dev_tasks: 128}"
    )
    type: Literal["rejection_sampling"]
    rounds: SmallCount
    max_generated_tokens: Count
    tasks_per_step: SmallCount  # played at once; a killed run loses no more
    samples_per_task: SmallCount
    temperature: Annotated[float, Field(gt=0, le=2)]
    accept: Accept
    balance: Literal["episode", "task", "difficulty"]
    per_task: Literal["all", "likeliest"]
    restart: bool
    replay_frac: Annotated[float, Field(ge=0, lt=1)]
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    num_dev_tasks: SmallCount
    retry: Annotated[NoRetry | RetryAgain | RetryReflection, Field(discriminator="type")] = NoRetry(type="none")
    observation_weight: ObservationWeight = 0.0
    observations_of: Literal["accepted", "all"] = "accepted"
    ewc_weight: Annotated[float, Field(ge=0)] = 0.0

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all rounds."""
        return self.rounds * self.max_steps

    @model_validator(mode="after")
    def _weighs_what_it_observes(self) -> Self:
        if self.observations_of == "all" and not self.observation_weight:
            raise ValueError(
                "observations_of is all and observation_weight 0: rows without a target would take steps; set a weight"
            )
        return self

    @model_validator(mode="after")
    def _can_tell_difficulty(self) -> Self:
        if self.balance == "difficulty" and self.samples_per_task == 1:
            raise ValueError("balance is difficulty and samples_per_task 1: k of 1 tells nothing; take more samples")
        return self
