"""Online training loop: rollouts, advantages, updates, metrics, checkpoint.

One function from top to bottom, on accelerate. Each process plays its share of a step and trains on
it; all get all episodes, so that advantages and metrics are those of one process. A step without an
advantage makes no optimizer step: weights and momentum stay as they are, bit by bit. So does an
update whose gradient is not finite.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from accelerate import Accelerator

from posttrain.models import distributed, sharding
from posttrain.models.adapters import is_adapted
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.optimizers import optimizer_of, rate_at
from posttrain.models.params import OptimizerParams
from posttrain.models.parts import in_threads, parts_beside
from posttrain.models.precision import frozen_copy
from posttrain.rollout.generator import RolloutSchedule
from posttrain.train.advantages.estimator import AdvantageEstimator
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online import metrics
from posttrain.train.online.collecting import collecting
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import (
    SavedPart,
    TrainerState,
    TrainingInputs,
    load_checkpoint,
    save_checkpoint,
)
from posttrain.train.online.updates import (
    Updates,
    learn,
    minibatches_of,
    own_micro_batches,
    samples_with_signal,
    weights_of,
    without_dropout,
)
from posttrain.train.resumable_trainer import TrainingRun, asked_to_stop


def train_online(  # noqa: C901 — one loop, to be read from top to bottom
    model: Any,
    tokenizer: Any,
    inputs: TrainingInputs,
    *,
    params: OnlineParams,
    max_context_tokens: int,
    optimizer_params: OptimizerParams,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on the episodes of `inputs.source`, which plays with its weights.
    Resumes from `run.checkpoint`."""
    distributed.refuse_unequal_shares(
        params.tasks_per_step * params.group_size, "train_policy.algorithm.tasks_per_step · group_size"
    )
    without_dropout(model)
    sharding.refuse_optimizer(optimizer_params.optimizer)
    learner = sharding.sharded(model)
    reference = frozen_copy(model) if params.measures_kl and not is_adapted(model) else None
    optim, pad_id = optimizer_of(learner, optimizer_params), tokenizer.pad_token_id
    accelerator = Accelerator()
    estimator = AdvantageEstimator(
        learner,
        params,
        inputs.score_weights,
        pad_id=pad_id,
        at_once=run.at_once,
        seed=seed,
        device=accelerator.device,
        process_model=inputs.process_model,
        role_weights=inputs.role_weights,
    )
    distributed.refuse_another_count(accelerator.num_processes)
    with sharding.weights_kept(learner, optim) if distributed.is_sharded() else nullcontext():
        learner, prepared = accelerator.prepare(learner, optim)
    optim = prepared.optimizer
    rates = [group["lr"] for group in optim.param_groups]
    if reference is not None and not distributed.is_sharded():
        reference.to(accelerator.device)
    by_start = partial(metrics.reference_logprobs, reference, learner, temperature=params.temperature)

    state, step = TrainerState(params, inputs, seed=seed), 0
    saved_parts: list[SavedPart] = [
        estimator,
        *([inputs.refresh] if inputs.refresh else []),
    ]  # with files of their own in a checkpoint
    if run.checkpoint is not None:
        saved = load_checkpoint(run.checkpoint, model=model, optimizer=optim, parts=saved_parts)
        state.restore(saved["state"])
        step = saved["step"]

    with (
        parts_beside(model),
        RolloutSchedule(inputs.source) as rollouts,
        collecting(rollouts, inputs.source, state, params, checkpoint_every_steps, seed=seed) as collector,
    ):
        while (done_frac := state.done_frac(step)) < 1:
            # Rollouts, by the weights as they are after `step` steps
            collector.pause()
            logged = state.dev.run(step) if step % params.dev.every_steps == 0 else {}
            state.dev.keep(model, run.folder, step)
            groups, staleness = collector.collect(step)

            # Advantages
            samples = estimator.samples(learner, groups, step=step, play_on=rollouts.play_on)
            state.num_generated += int(estimator.metrics["branch_tokens"])
            is_trained = trained_groups(groups, params)
            trained = [own for own, is_one in zip(samples, is_trained, strict=True) if is_one]
            episodes = [one for group in groups for one in group.episodes]
            if distributed.is_first():
                inputs.on_step(step + 1, episodes, metrics.mean_advantages(groups, samples))
            kl = metrics.kl_to_start(by_start, groups, pad_id, run.at_once) if params.measures_kl else None
            learnt = (groups, is_trained, samples)
            logged |= metrics.step_metrics(state, inputs, *learnt, params, step=step + 1, kl=kl, staleness=staleness)
            logged |= estimator.metrics
            if inputs.demonstrations:
                rows, at_once = inputs.demonstrations, run.at_once
                logged["demonstration_loss"] = metrics.demonstration_loss(learner, rows, pad_id, at_once)

            # Loss and optimizer steps
            factor = rate_at(done_frac, optimizer_params.lr_warmup_frac, optimizer_params.lr_schedule)
            for group, rate in zip(optim.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            updates = Updates()
            parts = [] if estimator.is_warming(step) else minibatches_of(trained, params, seed=seed, step=step)
            if parts:
                cut = [own_micro_batches(samples_with_signal(part, params), pad_id, run.at_once) for part in parts]
                batches = [batch for own in cut for batch in own]
                weighed = (weights_of(*both, params, max_context_tokens) for both in zip(cut, parts, strict=True))
                weights = [weight for own in weighed for weight in own]
                # `fast_products` switches all threads: not while one collects ahead
                with nullcontext() if params.max_staleness else fast_products(accelerator.device):
                    # without a copy the reference is the learner, its adapters off for all threads
                    each = map if reference is None else in_threads
                    references = list(each(by_start, batches)) if state.kl.weight else [None] * len(batches)
                    how = {"kl_weight": state.kl.weight, "max_grad_norm": optimizer_params.max_grad_norm}
                    updates = learn(accelerator, learner, optim, cut, weights, references, params, **how)
            if kl is not None:
                state.kl.observe(kl)
            logged |= {**metrics.engine_gap(updates, params), **updates.metrics(), "lr": optim.param_groups[0]["lr"]}

            # Metrics and checkpoint
            step += 1
            is_stopping, is_last = any(distributed.gather(run.is_stopping)), state.done_frac(step) >= 1
            if is_last:
                collector.pause()
                logged |= state.dev.run(step)
            if run.metrics is not None:
                run.metrics.write(step, logged)
            state.observe_updates(updates.is_skipped)
            if is_stopping or step % checkpoint_every_steps == 0 or is_last:
                saved = {"state": state.state()}
                save_checkpoint(run, step, model=model, optimizer=optim, state=saved, parts=saved_parts)
            run.progress(step, params.max_steps, "")
            if is_stopping and not is_last:
                raise asked_to_stop(step, params.max_steps)
    state.dev.take(model, run.folder, step)


def trained_groups(groups: Sequence[EpisodeGroup], params: OnlineParams) -> list[bool]:
    """True for each group to train on: with refills the first that differ, else all."""
    if not params.sampling.max_refills:
        return [True] * len(groups)
    num_before = np.cumsum([0, *(one.has_spread for one in groups)])
    return [one.has_spread and bool(num_before[place] < params.tasks_per_step) for place, one in enumerate(groups)]
