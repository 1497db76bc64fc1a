"""How does a policy learn from its own episodes? Each task is played G times; what beat the group's mean becomes likelier, token by token.

TRL's `GRPOTrainer` with a rollout function that plays multi-turn episodes, one optimizer step per generation: strictly on policy, so the probability
ratio is 1 and the clip never acts. The loss is a mean over all agent tokens of the step (TRL's `dapo`), so that a long episode is not taught less per
token than a short one. Its advantages are replaced by ours (`advantages.py`). Tool results are masked. Left out: several steps per generation, vLLM.

Where no KL term asks for them, episodes without an advantage are not passed through the model again: their gradient is exactly zero.
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
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.resumable import Resumable, TrainingRun, trainer_arguments
from posttrain.algorithms.row_order import repeated_passes
from posttrain.algorithms.sampling import episode_seeds
from posttrain.algorithms.token_logprobs import IGNORED, agent_logprobs, labels_of, pad_right
from posttrain.models.optimizers import OptimizerKind, build_optimizer
from posttrain.params import GrpoParams
from posttrain.types import Task, Trajectory

NUM_PARTS = 4  # of a step, forward and backward one after the other, episodes of one length together

Play = Callable[[Sequence[Task], Sequence[int]], list["Played"]]
Hear = Callable[[int, Sequence["Played"], Sequence[float]], None]  # a step as `metrics.jsonl` counts it, its episodes, their advantages


@dataclass(frozen=True, slots=True)
class Played:
    """A scored episode with its tokens, whether it succeeded, and what a reward model adds to the rule reward that it has."""

    trajectory: Trajectory
    is_success: bool
    bonus: float = 0.0

    @property
    def rule_reward(self) -> float:
        """The reward by rules, which the group metrics are about."""
        if self.trajectory.reward is None:
            raise ValueError(f"the episode of task {self.trajectory.task_id} has no reward; score it before it is learnt from")
        return self.trajectory.reward


def train_grpo(
    model: Any,
    tokenizer: Any,
    *,
    tasks: Sequence[Task],
    play: Play,
    params: GrpoParams,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
    on_step: Hear = lambda *_: None,
) -> None:
    """Train `model` in place. `play(tasks, seeds)` plays one episode for each with the model's weights as they are at that moment, and scores it.

    `on_step` hears of a step's episodes before they are learnt from. Tasks are used in shuffled passes. Resumes from `run.checkpoint` where there is
    one.
    """
    batch_size = params.tasks_per_step * params.group_size
    num_parts = NUM_PARTS if batch_size % NUM_PARTS == 0 else 1
    order = repeated_passes(np.arange(len(tasks)), params.max_steps * params.tasks_per_step, np.random.default_rng(seed))
    arguments = GRPOConfig(
        **trainer_arguments(run, model, max_steps=params.max_steps, checkpoint_every_steps=checkpoint_every_steps, lr=lr, seed=seed),
        lr_scheduler_type="linear",
        per_device_train_batch_size=batch_size // num_parts,
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
        model=model,
        args=arguments,
        reward_funcs=_reward_already_known,
        rollout_func=_rollout,
        train_dataset=Dataset.from_dict({"prompt": [tasks[index].task_id for index in order]}),
        processing_class=tokenizer,
        optimizers=(build_optimizer(model, optimizer, lr), None),
        run=run,
        tasks={task.task_id: task for task in tasks},
        play=play,
        on_step=on_step,
        params=params,
    )
    trainer.train_or_resume()


class _Grpo(Resumable, GRPOTrainer):  # type: ignore[misc]  # trl is untyped
    """GRPOTrainer that plays episodes, takes our advantages, and scores no token that cannot teach."""

    logged: ClassVar = {"learning_rate": "lr", "grad_norm": "grad_norm"}  # on policy the loss is minus the mean advantage: nothing to watch

    def __init__(self, *args: Any, tasks: Mapping[str, Task], play: Play, on_step: Hear, params: GrpoParams, **kwargs: Any) -> None:
        self.play, self.on_step, self.tasks, self.params = play, on_step, tasks, params
        self.played: list[Played] = []
        self._step_metrics: dict[str, float] = {}
        self._scored: Tensor | None = None
        self._buffered_inputs: list[dict[str, Tensor]] | None = None
        super().__init__(*args, **kwargs)
        self._reference = None if hasattr(self.model, "disable_adapter") else copy.deepcopy(self.model).eval().requires_grad_(False)
        self.beta, self.ref_model = params.beta, self._reference

    def metrics_of(self, logs: Mapping[str, float]) -> dict[str, Any]:
        metrics = super().metrics_of(logs)
        return metrics | self._step_metrics if metrics else {}

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
        advantages_P_G = group_advantages(rule_rewards_P_G + bonuses_P_G, scale=self.params.advantage)
        trajectories_PG = [played.trajectory for played in self.played]
        success_PG = [played.is_success for played in self.played]
        self._step_metrics = step_metrics(trajectories_PG, rule_rewards_P_G=rule_rewards_P_G, success_PG=success_PG, advantages_P_G=advantages_P_G)
        self.on_step(self.state.global_step + 1, self.played, advantages_P_G.flatten().tolist())
        self._step_metrics["kl"] = self._kl(trajectories_PG[:: self.params.group_size])
        batch["advantages"] = torch.tensor(advantages_P_G.flatten(), dtype=torch.float32, device=batch["advantages"].device)
        return batch if self.beta else _without_idle(batch, at_least=self.args.steps_per_generation)

    def _kl(self, trajectories: Sequence[Trajectory]) -> float:
        """KL to the model that training began from, on the first episode of each group: a sixteenth of the tokens tells it well enough."""
        input_ids = pad_right([trajectory.token_ids for trajectory in trajectories], self.processing_class.pad_token_id)
        labels = pad_right([labels_of(trajectory.token_ids, trajectory.mask) for trajectory in trajectories], IGNORED)
        policy = pad_right([trajectory.logprobs for trajectory in trajectories], 0)
        reference = self._reference or self.model
        with torch.no_grad(), self.model.disable_adapter() if self._reference is None else contextlib.nullcontext():
            logprobs = agent_logprobs(reference, input_ids.to(reference.device), labels.to(reference.device), temperature=self.temperature).cpu()
        is_scored = labels[:, 1:] != IGNORED
        return kl_estimate(policy[:, 1:][is_scored].tolist(), logprobs[is_scored].tolist())

    def _compute_loss(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        self._scored = inputs["completion_mask"] * inputs["tool_mask"]
        loss: Tensor = super()._compute_loss(model, inputs)
        self._scored = None
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **rest: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """In the loss, on a CPU: only the agent's tokens; entropies are zeros there, ours come from the samples."""
        if self._scored is None or input_ids.device.type != "cpu":
            scored: tuple[Tensor, Tensor | None, Tensor | None] = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **rest
            )
            return scored
        labels = torch.full_like(input_ids, IGNORED)
        labels[:, -logits_to_keep:] = input_ids[:, -logits_to_keep:].masked_fill(self._scored == 0, IGNORED)
        logprobs = agent_logprobs(model, input_ids, labels, attention_mask, temperature=self.temperature)[:, -logits_to_keep:]
        return logprobs, torch.zeros_like(logprobs), None


def _rollout(task_ids: Sequence[str], trainer: _Grpo) -> dict[str, list[Any]]:
    """What TRL asks for. Task ids come repeated, a group after the other; a prompt is what the agent read before its first token."""
    seeds = episode_seeds(trainer.args.seed, trainer.state.global_step, count=len(task_ids))
    trainer.played = trainer.play([trainer.tasks[task_id] for task_id in task_ids], seeds)
    episodes = [(played.trajectory, list(played.trajectory.mask).index(1)) for played in trainer.played]
    return {
        "prompt_ids": [list(trajectory.token_ids[:start]) for trajectory, start in episodes],
        "completion_ids": [list(trajectory.token_ids[start:]) for trajectory, start in episodes],
        "env_mask": [list(trajectory.mask[start:]) for trajectory, start in episodes],
        "logprobs": [list(trajectory.logprobs[start:]) for trajectory, start in episodes],
        "reward": [played.rule_reward + played.bonus for played in trainer.played],
    }


def _reward_already_known(reward: list[float], **_: Any) -> list[float]:
    return reward


def _without_idle(batch: dict[str, Tensor], *, at_least: int) -> dict[str, Tensor]:
    """The rows with an advantage, and as many others as it takes to have `at_least`. The loss divides by all tokens of the step, as before."""
    is_idle = batch["advantages"] == 0
    kept = torch.argsort(is_idle.int(), stable=True)[: max(int((~is_idle).sum()), at_least)]
    return {name: tensor[kept] if tensor.dim() else tensor for name, tensor in batch.items()}


def _parts_by_length(batch: dict[str, Tensor], num_parts: int) -> list[dict[str, Tensor]]:
    """The rows in `num_parts` parts of rising length, each without the columns that are padding in all its rows."""
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    return [
        _cut({name: tensor[rows] if tensor.dim() else tensor for name, tensor in batch.items()})
        for rows in torch.argsort(lengths, stable=True).tensor_split(num_parts)
    ]


def _cut(part: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prompts are padded on the left, everything per completion token on the right."""
    prompt_width, completion_width = int(part["prompt_mask"].sum(1).max()), int(part["completion_mask"].sum(1).max())
    full_prompt, full_completion = part["prompt_mask"].shape[1], part["completion_mask"].shape[1]
    cut = {}
    for name, tensor in part.items():
        if name.startswith("prompt_"):
            cut[name] = tensor[:, full_prompt - prompt_width :]
        else:
            cut[name] = tensor[:, :completion_width] if tensor.dim() == 2 and tensor.shape[1] == full_completion else tensor
    return cut
