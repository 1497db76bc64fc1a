"""Trains a policy on its own episodes: tasks are chosen and played, others may join their groups,
what was written is credited with how much better it was than expected, and the policy is moved
towards what was better.

One function from top to bottom, on accelerate. Of several processes each plays its share of a step
and learns from it; all hear of all episodes, so that credit and metrics are those of one process. A
step in which nothing has an advantage makes no optimizer step: the weights stay as they are, bit by
bit, and so does an optimizer's momentum.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

from accelerate import Accelerator

from posttrain.algorithms import processes, sharding
from posttrain.algorithms.resumable import TrainingRun
from posttrain.algorithms.rollouts import RolloutSchedule
from posttrain.algorithms.sharding import learner_of
from posttrain.exits import Interrupted
from posttrain.models.adapted import is_adapted
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.optimizers import build_optimizer
from posttrain.models.parts import in_threads, parts_beside
from posttrain.models.precision import frozen_copy
from posttrain.params import OptimizerKind
from posttrain.rl import checkpoints, measures
from posttrain.rl.crediting import Crediting
from posttrain.rl.memory import Memory
from posttrain.rl.params import OnlineParams
from posttrain.rl.play import Player, learnt_groups
from posttrain.rl.rows import own_parts
from posttrain.rl.setup import Setup
from posttrain.rl.updates import Updates, has_signal, learn, teaching, weights_of, without_dropout


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
    rate falls to 0 in a line. Resumes from `run.checkpoint` where there is one."""
    processes.refuse_unequal_shares(
        params.tasks_per_step * params.group_size, "train_policy.algorithm.tasks_per_step · group_size"
    )
    without_dropout(model)
    reference = frozen_copy(model) if params.measures_kl and not is_adapted(model) else None
    learner = learner_of(model, optimizer)
    moved = build_optimizer(learner, optimizer, lr)
    accelerator = Accelerator()
    crediting = Crediting(
        learner,
        params,
        setup.score_weights,
        pad_id=tokenizer.pad_token_id,
        rows_at_once=run.rows_at_once,
        seed=seed,
        device=accelerator.device,
    )
    processes.refuse_another_count(accelerator.num_processes)
    learner, prepared = accelerator.prepare(learner, moved)
    moved = prepared.optimizer
    rates = [group["lr"] for group in moved.param_groups]
    if reference is not None:
        reference.to(accelerator.device)
    by_start = partial(measures.reference_logprobs, reference, learner, temperature=params.temperature)

    memory, step = Memory(params, setup, seed=seed), 0
    if run.checkpoint is not None:
        state = checkpoints.load(run.checkpoint, whole=model, optimizer=moved, also=crediting.load)
        if processes.is_sharded():
            sharding.scatter_weights(model, learner)
        memory.restore(state["memory"])
        step = state["step"]

    with parts_beside(model), RolloutSchedule(setup.source) as rollouts:
        player = Player(rollouts, memory, params, seed=seed)
        while (done_frac := memory.done_frac(step)) < 1:
            metrics = memory.dev.played(step) if step % params.dev.every_steps == 0 else {}
            memory.dev.keep(model, run.folder, step)
            groups, staleness = player.play(step, is_ahead=_may_play_ahead(params, step + 1, checkpoint_every_steps))
            members = crediting.members(learner, groups, memory.history, step=step)
            memory.compared(groups)
            is_trained = learnt_groups(groups, params)
            learnt = [one for own, is_one in zip(members, is_trained, strict=True) if is_one for one in own]
            played = [one for group in groups for one in group.played]
            if processes.is_first():
                setup.on_step(step + 1, played, measures.mean_advantages(groups, members))
            kl = measures.kl_to_start(by_start, measures.samples(groups), tokenizer) if params.measures_kl else None
            metrics |= {
                **measures.episode_metrics(groups, params.group_size),
                **measures.group_counts(groups, is_trained, members, params),
                **measures.credit_metrics(groups, is_trained, members),
                **crediting.metrics,
                "generated_tokens": memory.num_generated,
                **({} if kl is None else {"kl": kl}),
                "kl_weight": memory.kl.weight,
                "staleness": staleness,
            }
            if setup.demonstrations:
                metrics["demonstration_loss"] = measures.loss_on(learner, setup.demonstrations, tokenizer)

            for group, rate in zip(moved.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - done_frac)
            updates = Updates()
            if has_signal(learnt, params) and not crediting.is_warming(step):
                parts = own_parts(teaching(learnt, params), tokenizer.pad_token_id, run.rows_at_once)
                weights = weights_of(parts, learnt, params, max_context_tokens)
                # the switch of `fast_products` is one for all threads: not while one plays ahead
                products = nullcontext() if params.max_staleness else fast_products(accelerator.device)
                with products:
                    # without a copy the reference is the learner, its adapters off for all threads
                    each = map if reference is None else in_threads
                    references = list(each(by_start, parts)) if memory.kl.weight else [None] * len(parts)
                    updates = learn(accelerator, learner, moved, parts, weights, references, memory.kl.weight, params)
            if kl is not None:
                memory.kl.hear(kl)
            metrics |= {**measures.engine_gap(updates, params), **updates.metrics(), "lr": moved.param_groups[0]["lr"]}
            if processes.is_sharded():
                sharding.gather_weights(learner, model)

            step += 1
            is_stopping, is_last = any(processes.gather(run.is_stopping)), memory.done_frac(step) >= 1
            if is_last:
                metrics |= memory.dev.played(step)
            checkpoints.write_metrics(run, step, metrics)
            if is_stopping or step % checkpoint_every_steps == 0 or is_last:
                state = {"memory": memory.state()}
                checkpoints.save(run, step, whole=model, optimizer=moved, state=state, also=crediting.save)
            run.progress(step, params.max_steps, "")
            if is_stopping and not is_last:
                raise Interrupted(
                    f"asked to stop after step {step} of {params.max_steps}; a checkpoint of it is kept: "
                    "run again to go on from there"
                )
    memory.dev.take(model, run.folder, step)


def _may_play_ahead(params: OnlineParams, next_step: int, checkpoint_every_steps: int) -> bool:
    """Whether the episodes of the next step may be played while this one learns: not over a
    checkpoint, nor where dev tasks are played by the weights that come out of this one."""
    is_kept = next_step % checkpoint_every_steps == 0 or next_step == params.max_steps
    return params.max_staleness == 1 and not is_kept and next_step % params.dev.every_steps != 0
