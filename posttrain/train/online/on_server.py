"""Online training loop on a Tinker server: rollouts, advantages, updates, metrics, checkpoint.

Episodes, advantages, losses and metrics are those of `loop.py`; forward passes, gradients and the
optimizer are the server's. A step's log-probabilities are asked for before its first update and
sent back as `logprobs`, with the capped importance weight in `advantages`: so the loss is exactly
ours, for one more forward pass a step. What the server cannot do is refused before the first
request (`trainer_choice.py`), what it alone can tell before the first episode (`check_server`).
"""

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.models import distributed
from posttrain.models.lora import load_adapter
from posttrain.models.optimizers import rate_at
from posttrain.models.params import OptimizerParams
from posttrain.models.token_logprobs import agent_logprobs
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.tinker_engine import TinkerEngine, TinkerPolicy
from posttrain.rollout.generator import RolloutSchedule
from posttrain.runtime.exits import ConfigurationError, StoppedByAlarm
from posttrain.train.advantages.estimator import AdvantageEstimator
from posttrain.train.checkpointing import PREFIX
from posttrain.train.losses import Clip, importance_weights
from posttrain.train.online import metrics
from posttrain.train.online.collecting import collecting
from posttrain.train.online.loop import trained_groups
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_choice import ATTENTION, MLP
from posttrain.train.online.trainer_state import STATE, TrainerState, TrainingInputs, seal_checkpoint
from posttrain.train.online.updates import (
    Batch,
    Updates,
    batch_of,
    minibatches_of,
    samples_with_signal,
    split_by_length,
    weights_of,
)
from posttrain.train.resumable_trainer import TrainingRun, asked_to_stop

MAX_GAP = 0.1  # nats a token, the mean over prompts: of bfloat16 a few hundredths come
_UNKNOWN = ("grad_norm", "skipped_updates")  # metrics that a server does not tell


def open_policy(model: Any, *, seed: int, checkpoint: Path | None) -> TinkerPolicy:
    """The policy on the server that `model`, adapted and untrained, stands for, or the one of a
    checkpoint. Raises ConfigurationError where several processes run."""
    if distributed.count() > 1:
        raise ConfigurationError(f"POSTTRAIN_TRAINER is tinker and {distributed.count()} processes run: start one")
    config, state = model.peft_config["default"], _saved(checkpoint)["server"] if checkpoint else None
    named = {one.rpartition(".")[2] for one in config.target_modules}
    parts = {"train_attn": named >= ATTENTION, "train_mlp": named >= MLP, "train_unembed": False}
    return TinkerPolicy(state=state, rank=config.r, seed=seed, **parts)


def check_server(policy: TinkerPolicy, engine: TinkerEngine, model: Any, prompts: Sequence[Sequence[int]]) -> None:
    """Sample, score and download once before anything is played. Raises ConfigurationError where
    one of these is missing or the server's base model is not `model`, DataError where its adapter
    does not fit into that."""
    asyncio.run(engine.generate(GenerateRequest("check", prompts[0], 1, 1.0, 0, frozenset())))
    gaps: list[float] = []
    for ids, theirs in zip(prompts, policy.logprobs(prompts), strict=True):
        row = torch.tensor([list(ids)], device=next(model.parameters()).device)
        with torch.no_grad():
            gaps += np.abs(agent_logprobs(model, row, row)[0].cpu().numpy() - theirs).tolist()
    if not (gap := float(np.mean(gaps))) <= MAX_GAP:  # a NaN is refused as well
        raise ConfigurationError(
            f"log-probabilities of prompts by the Tinker server's model and by the one that training begins from are "
            f"{gap:.2f} nats a token apart: its adapter would be merged into another model; correct "
            "POSTTRAIN_TINKER_MODEL, or begin from the server's base model (posttrain adopt-model, start: earlier_run)"
        )
    fetch_adapter(policy, model, name="check")


def fetch_adapter(policy: TinkerPolicy, model: Any, *, name: str) -> None:
    """Load the policy's adapter as it is now into `model`."""
    with tempfile.TemporaryDirectory(prefix="tinker-") as folder:
        policy.download(name, Path(folder))
        load_adapter(model, Path(folder))


def train_on_server(
    policy: TinkerPolicy,
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
    """Train `policy`, opened from `run.checkpoint`, on the episodes of `inputs.source`, which plays
    with its weights."""
    pad_id, device = tokenizer.pad_token_id, torch.device("cpu")
    own: dict[str, Any] = {"at_once": run.at_once, "seed": seed, "role_weights": inputs.role_weights}
    estimator = AdvantageEstimator(None, params, inputs.score_weights, pad_id=pad_id, device=device, **own)
    state, step = TrainerState(params, inputs, seed=seed), 0
    if run.checkpoint is not None:
        saved = _saved(run.checkpoint)
        state.restore(saved["state"])
        step = saved["step"]
        if inputs.refresh:
            inputs.refresh.load(run.checkpoint)

    with (
        RolloutSchedule(inputs.source) as rollouts,
        collecting(rollouts, inputs.source, state, params, checkpoint_every_steps, seed=seed) as collector,
    ):
        while (done_frac := state.done_frac(step)) < 1:
            # Rollouts, by the weights as they are after `step` steps
            logged = state.dev.run(step) if step % params.dev.every_steps == 0 else {}
            groups, staleness = collector.collect(step)

            # Advantages
            samples = estimator.samples(None, groups, step=step, play_on=rollouts.play_on)
            is_trained = trained_groups(groups, params)
            trained = [own for own, is_one in zip(samples, is_trained, strict=True) if is_one]
            episodes = [one for group in groups for one in group.episodes]
            inputs.on_step(step + 1, episodes, metrics.mean_advantages(groups, samples))
            learnt = (groups, is_trained, samples)
            logged |= metrics.step_metrics(state, inputs, *learnt, params, step=step + 1, kl=None, staleness=staleness)
            logged |= estimator.metrics
            if rows := inputs.demonstrations:
                found = policy.logprobs([row.input_ids for row in rows])
                written = np.concatenate([np.asarray(row.mask[1:], bool) for row in rows])
                logged["demonstration_loss"] = -float(np.concatenate(found)[written].mean(dtype=np.float64))

            # Loss and optimizer steps
            factor = rate_at(done_frac, optimizer_params.lr_warmup_frac, optimizer_params.lr_schedule)
            lr, updates = optimizer_params.lr * factor, Updates()
            if parts := minibatches_of(trained, params, seed=seed, step=step):
                wholes = [batch_of(samples_with_signal(part, params), pad_id=pad_id) for part in parts]
                cut = [split_by_length(whole, len(whole.places_N)) for whole in wholes]  # a row each
                weighed = (weights_of(*both, params, max_context_tokens) for both in zip(cut, parts, strict=True))
                weights = [weight for own in weighed for weight in own]
                updates, logged["loss"] = learn_on_server(policy, cut, weights, params, optimizer_params, lr)
            made = {name: one for name, one in updates.metrics().items() if name not in _UNKNOWN}
            logged |= {**metrics.engine_gap(updates, params), **made, "lr": lr}

            # Metrics and checkpoint
            step += 1
            is_last = state.done_frac(step) >= 1
            if is_last:
                logged |= state.dev.run(step)
            assert run.metrics is not None  # one process runs
            run.metrics.write(step, logged)
            if run.is_stopping or step % checkpoint_every_steps == 0 or is_last:
                folder = run.folder / f"{PREFIX}{step}"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                if inputs.refresh:
                    inputs.refresh.save(folder)
                saved = {"state": state.state(), "server": policy.save_state(folder.name)}
                seal_checkpoint(run, folder, {"step": step, **saved})
            run.progress(step, params.max_steps, "")
            if run.is_stopping and not is_last:
                raise asked_to_stop(step, params.max_steps)


def learn_on_server(
    policy: TinkerPolicy,
    minibatches: Sequence[Sequence[Batch]],
    weights: Sequence[Tensor],
    params: OnlineParams,
    optimizer_params: OptimizerParams,
    lr: float,
) -> tuple[Updates, float]:
    """`updates.learn` on the server, with the first update's loss: `updates_per_step` passes of an
    optimizer step on each minibatch, which is batches of one row, their `weights` (1,) in turn.
    Raises StoppedByAlarm before an optimizer step whose loss is not finite."""
    updates, losses = Updates(), list[float]()
    updates.micro_batches = batches = [batch for own in minibatches for batch in own]
    rows = [batch.input_ids_N_T[0].tolist() for batch in batches]
    updates.before = _scored(batches, policy.logprobs(rows))
    importance = [
        importance_weights(before, batch.engine_logprobs_N_T, cap=params.importance_cap)
        for before, batch in zip(updates.before, batches, strict=True)
    ]
    advantages = [
        (batch.advantages_N_T * factor * weight)[0].numpy()
        for batch, factor, weight in zip(batches, importance, weights, strict=True)
    ]
    before = [one[0].numpy() for one in updates.before]
    how: Any = ("importance_sampling", {})
    if isinstance(params.objective, Clip):
        low, high = 1 - params.objective.low, 1 + params.objective.high
        how = ("ppo", {"clip_low_threshold": low, "clip_high_threshold": high})
    ends = itertools.accumulate(map(len, minibatches))
    passes = [slice(end - len(own), end) for own, end in zip(minibatches, ends, strict=True)] * params.updates_per_step
    for part in passes:
        found, loss = policy.accumulate(rows[part], before[part], advantages[part], *how)
        now = _scored(batches[part], found)
        if not all(one.isfinite().all() for one in now):
            raise StoppedByAlarm(
                "log-probabilities of the server's policy are not all finite: the training has diverged; the "
                "checkpoint before is kept, lower train_policy.lr and run again"
            )
        for batch, own, earlier in zip(batches[part], now, updates.before[part], strict=True):
            updates.observe(own - earlier, batch, params)
        losses.append(loss)
        policy.step(optimizer_params, lr)
        updates.is_skipped.append(False)
    return updates, losses[0]


def _scored(batches: Sequence[Batch], found: Sequence[Any]) -> list[Tensor]:
    """The server's numbers of each row as (1, T-1), 0 where a token is not the agent's."""
    both = zip(batches, found, strict=True)
    return [torch.where(batch.is_scored_N_T, torch.tensor(one)[None], 0.0) for batch, one in both]


def _saved(checkpoint: Path) -> Mapping[str, Any]:
    saved: Mapping[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return saved
