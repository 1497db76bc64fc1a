"""Trains a policy on its own episodes: tasks are chosen and played, each episode is credited with
how much better it was than expected, and the policy is moved towards what was better.

One function from top to bottom, on accelerate. Of several processes each plays its share of a step
and learns from it; all hear of all episodes, so that credit and metrics are those of one process. A
step in which nothing has an advantage makes no optimizer step: the weights stay as they are, bit by
bit, and so does an optimizer's momentum.

Left out: a critic, and a KL term in the loss.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from posttrain.algorithms import processes, sharding
from posttrain.algorithms.importance import importance_metrics
from posttrain.algorithms.resumable import TrainingRun
from posttrain.algorithms.rollouts import EpisodeSource, RolloutSchedule, ScoredEpisode
from posttrain.algorithms.sharding import learner_of
from posttrain.exits import Interrupted
from posttrain.models.codec import TokenRow
from posttrain.models.optimizers import OptimizerKind, build_optimizer
from posttrain.rl import checkpoints
from posttrain.rl.credit.episode import episode_advantages
from posttrain.rl.credit.history import TaskHistory
from posttrain.rl.measures import engine_gap, episode_metrics, group_counts, kl_to_start, loss_on
from posttrain.rl.params import OnlineParams, TaskMean, Weighted
from posttrain.rl.play import groups_of, learnt_groups, of_episodes, play_step
from posttrain.rl.sampling.choice import make_sampler
from posttrain.rl.updates import Updates, logprobs_of, own_parts, part_loss, weights_of, without_dropout
from posttrain.types import Task

MAX_GRAD_NORM = 1.0

Hear = Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]  # a step, its episodes, their advantages


@dataclass(frozen=True, slots=True)
class Setup:
    """What a training is made of besides its knobs."""

    tasks: Sequence[Task]
    source: EpisodeSource
    demonstrations: Sequence[TokenRow] = ()
    on_step: Hear = lambda *_: None


def train_online(  # noqa: C901 — one loop, to be read from top to bottom
    model: Any,
    tokenizer: Any,
    setup: Setup,
    *,
    params: OnlineParams,
    max_context_tokens: int,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on the episodes of `setup.source`, which plays with its weights. The
    rate falls to 0 in a line. Resumes from `run.checkpoint` where there is one.

    `setup.on_step` hears of a step's episodes before they are learnt from; the metrics tell the
    loss on the demonstrations, where there are any.
    """
    without_dropout(model)
    reference = None if hasattr(model, "disable_adapter") else copy.deepcopy(model).eval().requires_grad_(False)
    learner = learner_of(model, optimizer)
    moved = build_optimizer(learner, optimizer, lr)
    accelerator = Accelerator()
    processes.refuse_another_count(accelerator.num_processes)
    learner, prepared = accelerator.prepare(learner, moved)
    moved = prepared.optimizer
    rates = [group["lr"] for group in moved.param_groups]
    if reference is not None:
        reference.to(accelerator.device)

    sampler = make_sampler(params.sampling, setup.tasks, seed=seed)
    history = TaskHistory(_decay(params))
    first = 0
    if run.checkpoint is not None:
        state = checkpoints.load(run.checkpoint, whole=model, optimizer=moved)
        if processes.is_sharded():
            sharding.scatter_weights(model, learner)
        first = state["step"]
        sampler.restore(state["sampler"])
        history = TaskHistory.of_state(state["history"])

    with RolloutSchedule(setup.source) as rollouts:
        for step in range(first, params.max_steps):
            played, staleness = play_step(rollouts, sampler, params, seed=seed, step=step)
            groups = groups_of(played, params.group_size)
            is_trained = learnt_groups(groups, params)
            advantages = of_episodes(episode_advantages(groups, params.credit, history), played, params.group_size)
            for group in groups:
                history.add(group.task_id, group.rewards_G)
            if processes.is_first():
                setup.on_step(step + 1, played, advantages)
            metrics = {
                **episode_metrics(played, advantages, params.group_size),
                **group_counts(groups, is_trained),
                "kl": kl_to_start(reference, learner, played[:: params.group_size], tokenizer, params.temperature),
                "staleness": staleness,
            }
            if setup.demonstrations:
                metrics["demonstration_loss"] = loss_on(learner, setup.demonstrations, tokenizer)
            learnt = [
                (one, advantage)
                for place, (one, advantage) in enumerate(zip(played, advantages, strict=True))
                if is_trained[place // params.group_size]
            ]

            for group, rate in zip(moved.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - step / params.max_steps)
            updates = Updates()
            if any(advantage for _, advantage in learnt):
                parts = own_parts(learnt, tokenizer.pad_token_id)
                weights = weights_of(parts, [one for one, _ in learnt], params, max_context_tokens)
                before: list[Tensor] = []  # the log-probs by the weights that the first update starts from
                for _ in range(params.updates_per_step):
                    for index, (part, weight_N) in enumerate(zip(parts, weights, strict=True)):
                        rows = part.to(accelerator.device)
                        now = logprobs_of(learner, rows, params.temperature)
                        if len(before) == index:
                            before.append(now.detach())
                        updates.hear(now - before[index], rows, params)
                        loss = part_loss(now, before[index], rows, weight_N.to(accelerator.device), params)
                        accelerator.backward(loss * processes.count())  # gradients are averaged over them
                    updates.grad_norms.append(float(accelerator.clip_grad_norm_(learner.parameters(), MAX_GRAD_NORM)))
                    moved.step()
                    moved.zero_grad()
                metrics |= engine_gap(before, parts, params)
            else:
                metrics |= importance_metrics([], [], cap=params.importance_cap)
            if processes.is_sharded():
                sharding.gather_weights(learner, model)

            done = step + 1
            checkpoints.write_metrics(run, done, {**metrics, **updates.metrics(), "lr": moved.param_groups[0]["lr"]})
            is_stopping = any(processes.gather(run.is_stopping))
            if is_stopping or done % checkpoint_every_steps == 0 or done == params.max_steps:
                state = {"sampler": sampler.state(), "history": history.state()}
                checkpoints.save(run, done, whole=model, optimizer=moved, state=state)
            run.progress(done, params.max_steps, "")
            if is_stopping and done < params.max_steps:
                raise Interrupted(
                    f"asked to stop after step {done} of {params.max_steps}; a checkpoint of it is kept: "
                    "run again to go on from there"
                )


def _decay(params: OnlineParams) -> float:
    baseline = params.credit.baseline
    return baseline.decay if isinstance(baseline, TaskMean | Weighted) else 0.0
