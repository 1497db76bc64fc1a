"""Trains a policy on its own episodes, by group-relative policy optimisation (GRPO). Each task is
played G times; what beat the group's mean becomes likelier, token by token.

TRL's `GRPOTrainer` with a rollout function that plays multi-turn episodes, one optimizer step per
generation: the probability ratio is 1 and the clip never acts. What separates engine from trainer,
rounding or a step of staleness, is corrected by a capped importance weight per token. The loss is a
mean over all agent tokens of the step (TRL's `dapo`), so that a long episode is not taught less per
token than a short one. Its advantages are replaced by ours (`advantages.py`). Tool results are
masked. Left out: several steps per generation, TRL's own vLLM.

Where no KL term asks for them, episodes without an advantage are not passed through the model
again: their gradient is exactly zero.

With several processes each plays its share of the step and learns from it; a group may be split.
All hear of all episodes, so that advantages and metrics are those of one process.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from posttrain.algorithms.advantages import group_advantages
from posttrain.algorithms.episode_sampler import Stream, episode_seeds
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.importance import importance_metrics, importance_weights, turn_numbers
from posttrain.algorithms.processes import gather, is_first, parts_of, share_of
from posttrain.algorithms.resumable import Resumable, TrainingRun, trainer_arguments
from posttrain.algorithms.rollouts import EpisodeSource, RolloutBatch, RolloutSchedule, ScoredEpisode
from posttrain.algorithms.row_order import repeated_passes
from posttrain.algorithms.sharding import learner_of
from posttrain.algorithms.token_logprobs import IGNORED, agent_logprobs, can_pick_before_head, labels_of, pad_right
from posttrain.models.codec import TokenRow
from posttrain.models.optimizers import OptimizerKind, build_optimizer
from posttrain.params import GrpoParams
from posttrain.types import Task, Trajectory

_ANY_TOKEN = 0

Hear = Callable[
    [int, Sequence[ScoredEpisode], Sequence[float]], None
]  # a step as `metrics.jsonl` counts it, its episodes, their advantages


def train_grpo(
    model: Any,
    tokenizer: Any,
    *,
    tasks: Sequence[Task],
    source: EpisodeSource,
    params: GrpoParams,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
    demonstrations: Sequence[TokenRow] = (),
    on_step: Hear = lambda *_: None,
) -> None:
    """Train `model` in place on the episodes of `source`, which plays with this model's weights.
    Tasks are used in shuffled passes.

    `on_step` hears of a step's episodes before they are learnt from. The metrics tell the loss on
    `demonstrations`, where there are any. Resumes from `run.checkpoint`
    where there is one.
    """
    num_parts, episodes_per_part = parts_of(
        params.tasks_per_step * params.group_size, "train_policy.algorithm.tasks_per_step · group_size"
    )
    learner = learner_of(model, optimizer)
    order = repeated_passes(
        np.arange(len(tasks)), params.max_steps * params.tasks_per_step, np.random.default_rng(seed)
    )
    arguments = GRPOConfig(
        **trainer_arguments(
            run, model, max_steps=params.max_steps, checkpoint_every_steps=checkpoint_every_steps, lr=lr, seed=seed
        ),
        lr_scheduler_type="linear",
        per_device_train_batch_size=episodes_per_part,
        gradient_accumulation_steps=num_parts,
        steps_per_generation=num_parts,
        num_generations=params.group_size,
        shuffle_dataset=False,
        temperature=params.temperature,
        beta=0.0,  # else TRL loads the reference from the folder that the model came from; it is set below
        epsilon=params.epsilon,
        loss_type="dapo",
        scale_rewards="none",
    )
    trainer = _Grpo(
        model=learner,
        whole=model,
        args=arguments,
        reward_funcs=_reward_already_known,
        rollout_func=_rollout,
        train_dataset=Dataset.from_dict({"prompt": [""] * len(order)}),  # TRL counts them; `batch_of` knows the tasks
        processing_class=tokenizer,
        optimizer=build_optimizer(learner, optimizer, lr),
        run=run,
        on_step=on_step,
        demonstrations=demonstrations,
        params=params,
    )
    with RolloutSchedule(source) as trainer.rollouts:
        trainer.tasks = [tasks[index] for index in order]
        trainer.train_or_resume()


class _Grpo(Resumable, GRPOTrainer):  # type: ignore[misc]  # trl is untyped
    """GRPOTrainer that plays episodes, takes our advantages, and scores no token that cannot
    teach."""

    logged: ClassVar = {
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
    }  # on policy the loss is minus the mean advantage: nothing to watch

    rollouts: RolloutSchedule
    tasks: Sequence[Task]  # of all steps, in their order

    def __init__(
        self, *args: Any, on_step: Hear, demonstrations: Sequence[TokenRow], params: GrpoParams, **kwargs: Any
    ) -> None:
        self.on_step, self.demonstrations, self.params = on_step, demonstrations, params
        self.played: list[ScoredEpisode] = []  # of all processes
        self.staleness = 0
        self._step_metrics: dict[str, float] = {}
        self._log_ratios: list[float] = []
        self._turns: list[int] = []  # of each log ratio's token
        self._part: dict[str, Tensor] | None = None
        self._buffered_inputs: list[dict[str, Tensor]] | None = None
        super().__init__(*args, **kwargs)
        self._reference = (
            None if hasattr(self.model, "disable_adapter") else copy.deepcopy(self.model).eval().requires_grad_(False)
        )
        if self._reference is not None:
            self._reference.to(self.accelerator.device)  # under FSDP the model itself is not there yet
        self.beta, self.ref_model = params.beta, self._reference

    def metrics_of(self, logs: Mapping[str, float]) -> dict[str, Any]:
        metrics = super().metrics_of(logs)
        if not metrics:
            return {}
        log_ratios = [ratio for ratios in gather(self._log_ratios) for ratio in ratios]
        turns = [turn for turns in gather(self._turns) for turn in turns]
        return metrics | self._step_metrics | importance_metrics(log_ratios, turns, cap=self.params.importance_cap)

    def batch_of(self, step: int) -> RolloutBatch | None:
        """The batch of a step counted from 0, a group after the other; None after the last one."""
        if step >= self.args.max_steps:
            return None
        first = step * self.params.tasks_per_step
        tasks = [
            task
            for task in self.tasks[first : first + self.params.tasks_per_step]
            for _ in range(self.params.group_size)
        ]
        return RolloutBatch(tasks, episode_seeds(Stream.GRPO, self.args.seed, step, count=len(tasks)))

    def is_checkpointed(self, step: int) -> bool:
        """Whether a checkpoint is written after a step counted from 0."""
        return (step + 1) % int(self.args.save_steps) == 0

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Tensor]:
        """As TRL's, but a step is cut into parts by length and not by lot; `_step` counts parts."""
        num_parts = self.args.steps_per_generation
        if self._step % num_parts == 0 or self._buffered_inputs is None:
            self._buffered_inputs = _parts_by_length(self._generate_and_score_completions(generation_batch), num_parts)
        part: dict[str, Tensor] = self._buffered_inputs[self._step % num_parts]
        return part

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = super()._generate_and_score_completions(inputs)
        shape = (-1, self.params.group_size)
        rule_rewards_P_G = np.array([played.rule_reward for played in self.played]).reshape(shape)
        bonuses_P_G = np.array([played.bonus for played in self.played]).reshape(shape)
        is_lost_P_G = np.array([played.is_lost for played in self.played]).reshape(shape)
        advantages_P_G = group_advantages(
            rule_rewards_P_G + bonuses_P_G, scale=self.params.advantage, is_lost_P_G=is_lost_P_G
        )
        self._step_metrics = {
            **step_metrics(
                self.played, rule_rewards_P_G=rule_rewards_P_G, is_lost_P_G=is_lost_P_G, advantages_P_G=advantages_P_G
            ),
            "kl": self._kl([played.trajectory for played in self.played[:: self.params.group_size]]),
            "staleness": self.staleness,
        }
        if self.demonstrations:
            self._step_metrics["demonstration_loss"] = self._demonstration_loss()
        self._log_ratios, self._turns = [], []
        if is_first():
            self.on_step(self.state.global_step + 1, self.played, advantages_P_G.flatten().tolist())
        device, width = batch["advantages"].device, batch["completion_ids"].shape[1]
        own = share_of(len(self.played))
        batch["advantages"] = torch.tensor(advantages_P_G.flatten()[own], dtype=torch.float32, device=device)
        engine_logprobs = pad_right([_completion(played.trajectory).logprobs for played in self.played[own]], 0)
        batch["engine_logprobs"] = torch.nn.functional.pad(engine_logprobs, (0, width - engine_logprobs.shape[1])).to(
            device
        )
        return batch if self.beta else _without_idle(batch, at_least=self.args.steps_per_generation)

    def _kl(self, trajectories: Sequence[Trajectory]) -> float:
        """KL to the model that training began from, on the first episode of each group: a sixteenth
        of the tokens tells it well enough."""
        input_ids = pad_right([trajectory.token_ids for trajectory in trajectories], self.processing_class.pad_token_id)
        labels = pad_right([labels_of(trajectory.token_ids, trajectory.mask) for trajectory in trajectories], IGNORED)
        policy = pad_right([trajectory.logprobs for trajectory in trajectories], 0)
        reference = self._reference or self.model
        with torch.no_grad(), self.model.disable_adapter() if self._reference is None else contextlib.nullcontext():
            logprobs = agent_logprobs(
                reference, input_ids.to(reference.device), labels.to(reference.device), temperature=self.temperature
            ).cpu()
        is_scored = labels[:, 1:] != IGNORED
        return kl_estimate(policy[:, 1:][is_scored].tolist(), logprobs[is_scored].tolist())

    def _demonstration_loss(self) -> float:
        """Mean loss per agent token, as supervised fine-tuning has it."""
        input_ids = pad_right([row.input_ids for row in self.demonstrations], self.processing_class.pad_token_id)
        labels = pad_right([labels_of(row.input_ids, row.mask) for row in self.demonstrations], IGNORED)
        self.model.eval()
        with torch.no_grad():
            logprobs = agent_logprobs(self.model, input_ids.to(self.model.device), labels.to(self.model.device))
        self.model.train()
        return float(-logprobs.double().sum() / (labels[:, 1:] != IGNORED).sum())

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        self._part = dict(inputs)
        loss: Tensor = super()._compute_loss(model, self._part)
        self._part = None
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **rest: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """In the loss: each token's advantage gets its importance weight, which is known here
        first. On a CPU only the agent's tokens are scored, and entropies are zeros: ours come from
        the samples."""
        if self._part is None:
            return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **rest)  # type: ignore[no-any-return]
        is_scored = (self._part["completion_mask"] * self._part["tool_mask"]).bool()
        if can_pick_before_head(model, input_ids):
            labels = torch.full_like(input_ids, IGNORED)
            labels[:, -logits_to_keep:] = input_ids[:, -logits_to_keep:].masked_fill(~is_scored, IGNORED)
            num_padding_N = attention_mask.argmax(1)
            scored = agent_logprobs(
                model, _turned(input_ids, num_padding_N), _turned(labels, num_padding_N), temperature=self.temperature
            )
            logprobs = _turned(torch.nn.functional.pad(scored, (1, 0)), -num_padding_N)[:, -logits_to_keep:]
            entropies, rest_of_it = torch.zeros_like(logprobs), None
        else:
            logprobs, entropies, rest_of_it = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **rest
            )
        engine_logprobs = self._part["engine_logprobs"]
        weights = importance_weights(logprobs.detach(), engine_logprobs, cap=self.params.importance_cap)
        self._part["advantages"] = self._part["advantages"][:, None] * weights
        self._log_ratios += (logprobs.detach() - engine_logprobs)[is_scored].tolist()
        self._turns += turn_numbers(is_scored)[is_scored].tolist()
        return logprobs, entropies, rest_of_it


def _rollout(_: Sequence[str], trainer: _Grpo) -> dict[str, list[Any]]:
    """What TRL asks for: this process's share of the step's episodes. A prompt is what the agent
    read before its first token."""
    step = trainer.state.global_step
    batch = trainer.batch_of(step)
    assert batch is not None
    trainer.refresh_whole()
    is_ahead = trainer.params.max_staleness and not trainer.is_checkpointed(step)
    trainer.played, trainer.staleness = trainer.rollouts.take(
        batch, following=trainer.batch_of(step + 1) if is_ahead else None
    )
    own = trainer.played[share_of(len(trainer.played))]
    completions = [_completion(played.trajectory) for played in own]
    return {
        "prompt_ids": [completion.prompt_ids for completion in completions],
        "completion_ids": [completion.token_ids for completion in completions],
        "env_mask": [completion.mask for completion in completions],
        "logprobs": [completion.logprobs for completion in completions],
        "reward": [played.rule_reward + played.bonus for played in own],
    }


@dataclass(frozen=True, slots=True)
class _Completion:
    """An episode cut before the agent's first token."""

    prompt_ids: list[int]
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]


def _completion(trajectory: Trajectory) -> _Completion:
    """A lost episode may have no token of the agent's: it becomes one that is not trained on."""
    mask = list(trajectory.mask)
    if 1 not in mask:
        return _Completion([_ANY_TOKEN], [_ANY_TOKEN], [0], [0.0])
    start = mask.index(1)
    token_ids, logprobs = list(trajectory.token_ids), list(trajectory.logprobs)
    return _Completion(token_ids[:start], token_ids[start:], mask[start:], logprobs[start:])


def _reward_already_known(reward: list[float], **_: Any) -> list[float]:
    return reward


def _without_idle(batch: dict[str, Tensor], *, at_least: int) -> dict[str, Tensor]:
    """The rows with an advantage, and as many others as it takes to have `at_least` and as many as
    every other process: TRL gathers a number of each. The loss divides by all tokens of the step,
    as before."""
    is_idle = batch["advantages"] == 0
    kept = torch.argsort(is_idle.int(), stable=True)[: max(*gather(int((~is_idle).sum())), at_least)]
    return {name: tensor[kept] if tensor.dim() else tensor for name, tensor in batch.items()}


def _parts_by_length(batch: dict[str, Tensor], num_parts: int) -> list[dict[str, Tensor]]:
    """The rows in `num_parts` parts of rising length, each without the columns that are padding in
    all its rows."""
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    return [
        _cut({name: tensor[rows] if tensor.dim() else tensor for name, tensor in batch.items()})
        for rows in torch.argsort(lengths, stable=True).tensor_split(num_parts)
    ]


def _turned(rows_N_T: Tensor, shift_N: Tensor) -> Tensor:
    """Each row turned left by its shift, what falls out coming in on the right: padding on the left
    becomes padding on the right."""
    columns_T = torch.arange(rows_N_T.shape[1], device=rows_N_T.device)
    return rows_N_T.gather(1, (columns_T + shift_N[:, None]) % rows_N_T.shape[1])


def _cut(part: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prompts are padded on the left, everything per completion token on the right."""
    prompt_width, completion_width = int(part["prompt_mask"].sum(1).max()), int(part["completion_mask"].sum(1).max())
    full_prompt, full_completion = part["prompt_mask"].shape[1], part["completion_mask"].shape[1]
    cut = {}
    for name, tensor in part.items():
        if name.startswith("prompt_"):
            cut[name] = tensor[:, full_prompt - prompt_width :]
        else:
            cut[name] = (
                tensor[:, :completion_width] if tensor.dim() == 2 and tensor.shape[1] == full_completion else tensor
            )
    return cut
