"""Estimates the peak memory of each stage from the knobs and the model's config alone: the stage's
own forward and backward passes, optimizer and engine run on tensors without numbers (`tracker`).

Rows are taken to be as long as the knobs allow, and the agent to write as much of each as it may,
so that no data can take more. What is counted is tensors; a process has its libraries besides, and
a GPU its context.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from trl.trainer.utils import add_fused_lm_head

from posttrain.config.params import Params
from posttrain.memory_estimate.model import QuantisedShape, shapes_of
from posttrain.memory_estimate.processes import ALONE, LAUNCHED, Processes, among, buckets_of
from posttrain.memory_estimate.tracker import (
    CACHE,
    ENGINE,
    GRADIENTS,
    LABELS,
    OPTIMIZER,
    OTHERS,
    WEIGHTS,
    MemoryTracker,
    tracked,
)
from posttrain.models.adapters import behind_adapters, is_adapted
from posttrain.models.distributed import count, is_sharded, parts_of
from posttrain.models.micro_batches import NO_LIMIT
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import MAX_GRAD_NORM, OptimizerKind, at_once_of
from posttrain.models.precision import frozen_copy, loaded_dtype
from posttrain.models.row_losses import BATCH_TOKENS
from posttrain.models.sharding import named_weights, quantization_of, sharded
from posttrain.models.token_logprobs import agent_logprobs, agent_scores
from posttrain.rollout.engines.choice import NUM_SLOTS, is_elsewhere
from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.slotted_decoder import Extension, SlottedDecoder, num_slots_within
from posttrain.rollout.engines.torch_engine import sample
from posttrain.runtime.exits import ConfigurationError, StageError
from posttrain.train.advantages.critic import Critic
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import NUM_MICRO_BATCHES, Batch
from posttrain.train.params import TrainRewardModelParams, TrainSftParams
from posttrain.train.policy_params import PairParams, Phase
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.trainable import prepared

_EIGHT_BIT_BLOCK, _EIGHT_BIT_LEAST = 256, 4096  # of bitsandbytes: weights that share a scale, and the fewest it packs
_READ_AT_ONCE = 8  # contexts that are read in one pass: more are shorter
_FEW = 3  # layers of a pass that are run where no layer keeps anything; FSDP gathers one while another runs


class NotEstimatedError(ConfigurationError):
    """A model whose code does not run on tensors without numbers; the stage itself may run it."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of a stage: bytes by purpose."""

    stage: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def stage_memory(
    stage: str,
    params: Params,
    config: PretrainedConfig,
    *,
    num_slots: int = NUM_SLOTS,
    gpu_bytes: int | None = None,
    processes: Processes = ALONE,
) -> StageMemory:
    """Estimate a stage, of several processes the first. An engine in this process has `num_slots`
    slots in memory (on a CPU, only those that were used), or fewer where `gpu_bytes` has no room
    for them."""
    row_tokens = min(params.agent.max_turns * params.agent.max_new_tokens, params.agent.max_context_tokens - 1)

    def num_picked(shape: Sequence[int]) -> int:
        return shape[0] * min(row_tokens, shape[1]) if len(shape) == 2 else shape[0]

    if stage not in LAUNCHED:
        processes = replace(processes, count=1, is_sharded=False)
    with among(processes), tracked(vocab_size=config.vocab_size, num_picked=num_picked) as tracker:
        try:
            STAGES[stage](_StageSetup(params, config, tracker, num_slots, gpu_bytes))
        except StageError:
            raise
        except Exception as error:  # of the model's own code
            raise NotEstimatedError(
                f"what {stage} takes of a model of type {config.model_type!r} cannot be estimated: "
                f"{type(error).__name__}: {error}"
            ) from error
    return StageMemory(stage, {name: tracker.at_peak[name] for name in LABELS if tracker.at_peak[name]})


@dataclass(frozen=True, slots=True)
class _StageSetup:
    params: Params
    config: PretrainedConfig
    tracker: MemoryTracker
    num_slots: int
    gpu_bytes: int | None

    def trainable(self, *, is_reward: bool = False) -> Any:
        model = self.params.model
        with self.tracker.labelled(WEIGHTS):
            begun = shapes_of(self.config, loaded_dtype(model), quantization_of(model), is_reward=is_reward)
            made = prepared(begun, model, seed=0, task_type="SEQ_CLS" if is_reward else "CAUSAL_LM").train()
        self.tracker.forget_peak()  # bitsandbytes quantises a matrix at a time
        return made

    def loaded(self) -> Any:
        """The model as it is evaluated."""
        with self.tracker.labelled(WEIGHTS):
            return shapes_of(self.config, self.params.model.dtype)


def rows_at_once(params: Params, stage: str) -> int:
    """The micro-batch of a training step, in rows as long as the knobs allow; 0 where the stage
    trains nothing."""
    if stage == "train_policy":
        return max((_policy_rows(params, one) for one in params.train_policy.phases.values()), default=0)
    match getattr(params, stage):
        case TrainSftParams() as sft:
            return _rows_of(params, sft.batch_size, params.validate_data.max_tokens)
        case TrainRewardModelParams() as of_pairs:
            return _rows_of(params, of_pairs.batch_size, params.agent.max_context_tokens, is_of_pairs=True)
    return 0


def _policy_rows(params: Params, algorithm: Phase) -> int:
    width = params.agent.max_context_tokens
    match algorithm:
        case OnlineParams() as online:
            at_once = at_once_of(params.model)
            num_episodes = math.ceil(_num_episodes(online) / count())
            is_cut = at_once.rows is not None or at_once.tokens is not None
            return at_once.num_rows(width, num_episodes if is_cut else math.ceil(num_episodes / NUM_MICRO_BATCHES))
        case RejectionSamplingParams(batch_size=batch_size):
            return _rows_of(params, batch_size, width)
        case _:
            return _rows_of(params, algorithm.batch_size, width, is_of_pairs=True)


def _num_episodes(online: OnlineParams) -> int:
    """Episodes of an optimizer step, of all processes together."""
    return online.tasks_per_step // online.minibatches * online.group_size


def _rows_of(params: Params, batch_size: int, width: int, *, is_of_pairs: bool = False) -> int:
    at_once = at_once_of(params.model).in_pairs if is_of_pairs else at_once_of(params.model)
    num_rows = parts_of(batch_size, "a batch_size", at_once)[1]
    return (2 if is_of_pairs else 1) * at_once.num_rows(width, num_rows)


def _resampling(own: _StageSetup) -> None:
    model = own.loaded()
    width = own.params.validate_data.max_tokens
    with _nothing_kept(model):
        agent_logprobs(model, *_rows(max(BATCH_TOKENS // width, 1), width))


def _sft(own: _StageSetup) -> None:
    knobs, model = own.params.train_sft, own.trainable()
    width = own.params.validate_data.max_tokens
    _supervised(own, model, rows_at_once(own.params, "train_sft"), width, knobs.optimizer, knobs.batch_size)
    num_rows = at_once_of(own.params.model).num_rows(width, own.params.model.rows_at_once or knobs.batch_size)
    with _nothing_kept(model):
        agent_logprobs(model, *_rows(num_rows, width))


def _supervised(
    own: _StageSetup, model: Any, num_rows: int, width: int, optimizer: OptimizerKind, batch_size: int
) -> None:
    def loss() -> Tensor:
        return -agent_logprobs(model, *_rows(num_rows, width)).sum()

    _step(own, model, _optimizer(own, model, optimizer), loss, num_rows=num_rows, of_step=batch_size)


def _reward_model(own: _StageSetup) -> None:
    model = own.trainable(is_reward=True)
    num_rows = rows_at_once(own.params, "train_reward_model")
    input_ids, _ = _rows(num_rows, own.params.agent.max_context_tokens)

    def loss() -> Tensor:
        scores: Tensor = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
        return scores.sum()

    of_step = 2 * own.params.train_reward_model.batch_size
    _step(own, model, _optimizer(own, model, "adamw"), loss, num_rows=num_rows, of_step=of_step)


def _policy(own: _StageSetup) -> None:
    model = own.trainable()
    for algorithm in own.params.train_policy.phases.values():
        match algorithm:
            case OnlineParams():
                _online(own, model, algorithm)
            case RejectionSamplingParams():
                _rejection_sampling(own, model, algorithm)
            case _:
                _on_pairs(own, model, algorithm)


def _rejection_sampling(own: _StageSetup, model: Any, algorithm: RejectionSamplingParams) -> None:
    with own.tracker.labelled(OTHERS):  # the weights that each round begins from
        num_copies = 2 if algorithm.ewc_weight else 1  # with the Fisher information of each
        start = [[one.detach().clone() for one in model.parameters() if one.requires_grad] for _ in range(num_copies)]
    width, optimizer = own.params.agent.max_context_tokens, own.params.train_policy.optimizer
    _supervised(own, model, _policy_rows(own.params, algorithm), width, optimizer, algorithm.batch_size)
    _run_engine(own, model)
    del start


def _on_pairs(own: _StageSetup, model: Any, algorithm: PairParams) -> None:
    add_fused_lm_head(behind_adapters(model))
    num_rows = _policy_rows(own.params, algorithm)
    input_ids, labels = _rows(num_rows, own.params.agent.max_context_tokens)

    def loss() -> Tensor:
        mask = torch.ones_like(input_ids)
        found: Tensor = model(input_ids=input_ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs
        return found.sum()

    optimizer = _optimizer(own, model, own.params.train_policy.optimizer)
    _step(own, model, optimizer, loss, num_rows=num_rows, of_step=2 * algorithm.batch_size)


def _online(own: _StageSetup, model: Any, algorithm: OnlineParams) -> None:
    width = own.params.agent.max_context_tokens
    reference = critic = reward_model = process_model = None
    with own.tracker.labelled(OTHERS):
        if algorithm.measures_kl and not is_adapted(model):
            reference = frozen_copy(model)
        if own.params.train_policy.reward_model_weight:
            num_members = own.params.train_reward_model.num_members
            reward_model = [shapes_of(own.config, own.params.model.dtype, is_reward=True) for _ in range(num_members)]
        if own.params.train_policy.reads_process_model:
            process_model = sharded(shapes_of(own.config, own.params.model.dtype, is_reward=True))
        if isinstance(algorithm.credit, GaeCredit):
            critic = Critic(model, algorithm.credit.critic, device=torch.device("cpu"))
    optimizer = _optimizer(own, model, own.params.train_policy.optimizer)
    rows_per_part = _policy_rows(own.params, algorithm)
    at_once = at_once_of(own.params.model)
    of_critic = rows_per_part * (algorithm.minibatches if at_once == NO_LIMIT else 1)  # it learns from whole steps
    num_measured = at_once.num_rows(width, algorithm.tasks_per_step)

    def loss() -> Tensor:
        scores = _scores(model, rows_per_part, width, with_entropies=algorithm.entropy_bonus > 0)
        return -scores.sum()

    def learnt() -> None:
        with _nothing_kept(model, reference):
            if algorithm.measures_kl:
                _scores(reference if reference is not None else model, num_measured, width)
            _scores(model, num_measured, width)
        if critic is not None:
            with own.tracker.agreeing():  # that there are returns to learn
                critic.learn([_whole_rows(of_critic, width)] * 2, [torch.zeros(of_critic, width - 1)] * 2)
        _step(own, model, optimizer, loss, num_rows=rows_per_part, of_step=_num_episodes(algorithm))

    if algorithm.max_staleness:
        engine = _run_engine(own, model)
        learnt()
        del engine
    else:  # the engine sleeps then; but it generates beside the optimizer's state
        learnt()
        _run_engine(own, model)
    del reward_model, process_model


def _play(own: _StageSetup) -> None:
    _run_engine(own, own.loaded(), takes=True)


STAGES: dict[str, Callable[[_StageSetup], object]] = {
    "resample_data": _resampling,
    "train_sft": _sft,
    "sample_preferences": _play,
    "train_reward_model": _reward_model,
    "train_policy": _policy,
    "evaluate": _play,
}


def phases_alone(stage: str, params: Params) -> list[Params]:
    """The params of each phase of a stage's training alone: the stage's peak is the largest of
    theirs."""
    policy = params.train_policy
    if stage != "train_policy" or len(policy.phases) < 2:
        return [params]
    alone = [policy.model_copy(update={"begin_with": None, "algorithm": one}) for one in policy.phases.values()]
    return [params.model_copy(update={"train_policy": one}) for one in alone]


@contextmanager
def _nothing_kept(*models: nn.Module | None) -> Iterator[None]:
    """Context without gradients, in which of layers that are all alike only a few are run: each
    takes what the one before it has freed."""
    with torch.no_grad(), ExitStack() as stack:
        for part in (part for model in models if model is not None for part in model.modules()):
            layers = getattr(part, "layers", None)
            if isinstance(layers, nn.ModuleList) and len({_shapes(layer) for layer in layers}) == 1:
                stack.enter_context(mock.patch.object(part, "layers", layers[:_FEW]))
        yield


def _shapes(layer: nn.Module) -> tuple[Any, ...]:
    kind = getattr(layer, "attention_type", None), getattr(getattr(layer, "self_attn", None), "sliding_window", None)
    return type(layer), *kind, *((name, one.shape, one.dtype) for name, one in layer.named_parameters())


def _run_engine(own: _StageSetup, model: Any, *, takes: bool = False) -> object:
    """Run a few layers of the engine once, with the model's weights or a copy. Returns what it
    holds, or None where vLLM servers generate."""
    if is_elsewhere():
        return None
    if is_sharded():
        raise ConfigurationError(
            "FSDP leaves no process all weights, and the engine that plays in train_policy needs them: say how many "
            "vLLM servers play (--servers), or take infra/accelerate/ddp.yaml"
        )
    num_slots, width = own.num_slots, own.params.agent.max_context_tokens
    with own.tracker.labelled(ENGINE):
        weights = fuse(_as_numbers(own, model), takes=takes)
        if own.gpu_bytes is not None:
            num_slots = min(num_slots, num_slots_within(own.gpu_bytes - own.tracker.live.total(), weights, width))
        few = replace(weights, layers=weights.layers[:_FEW])
        decoder = SlottedDecoder(few, num_slots=num_slots, max_context_tokens=width)
        rest = decoder.cache.new_empty((len(weights.layers) - len(few.layers), *decoder.cache.shape[1:]))
    own.tracker.label(decoder.cache, CACHE)
    own.tracker.label(rest, CACHE)
    size = max(width // _READ_AT_ONCE, 1)
    decoder.read([Extension(slot, width - size, [0] * size) for slot in range(min(num_slots, _READ_AT_ONCE))])
    logits = decoder.write(np.zeros(num_slots, np.int64), np.full(num_slots, width))
    sample(logits, torch.ones(num_slots), torch.zeros(num_slots))
    return decoder, weights, rest


def _as_numbers(own: _StageSetup, model: Any) -> Any:
    """The model, or where it is quantised one of the same shapes that is not."""
    if not any(isinstance(module, QuantisedShape) for module in model.modules()):
        return model
    with own.tracker.labelled(None):
        return shapes_of(own.config, own.params.model.dtype)


def _optimizer(own: _StageSetup, model: nn.Module, kind: OptimizerKind) -> Any:
    if kind == "adamw_8bit":
        return _EightBits(model)
    optimizer = build_optimizer(model, kind, 1e-3)
    if own.gpu_bytes is not None:  # as it is on a GPU
        for group in optimizer.param_groups:
            group["fused"] = True
    return optimizer


class _EightBits:
    """Optimizer that takes as much memory as bitsandbytes' AdamW with averages in eight bits."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._state: list[Tensor] = []

    def step(self) -> None:
        if not self._state:
            sizes = [_bytes_of_averages(weight.numel()) for weight in self._weights]
            self._state = [torch.empty(size, dtype=torch.uint8) for size in sizes]

    def zero_grad(self) -> None:
        for weight in self._weights:
            weight.grad = None


def _bytes_of_averages(size: int) -> int:
    return 8 * size if size < _EIGHT_BIT_LEAST else 2 * (size + 4 * -(-size // _EIGHT_BIT_BLOCK))


def _step(
    own: _StageSetup, model: nn.Module, optimizer: Any, loss: Callable[[], Tensor], *, num_rows: int, of_step: int
) -> None:
    """Run an optimizer step and a part of the next one: by then all lasting state is allocated. A
    part has `num_rows` of a process; where they are not all `of_step`, of all processes, there are
    gradients while the next part is computed."""
    with own.tracker.labelled(GRADIENTS):
        weights = list(named_weights(model).values())
        for weight in weights:
            weight.grad = torch.empty_like(weight) if weight.requires_grad else None
        buckets = buckets_of(weights)
    torch.nn.utils.clip_grad_norm_(weights, MAX_GRAD_NORM)
    with own.tracker.labelled(OPTIMIZER):
        optimizer.step()
    if num_rows * count() >= of_step:
        optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    del buckets, weights


def _rows(count: int, width: int) -> tuple[Tensor, Tensor]:
    """Ids and labels, shape (N, T)."""
    return torch.zeros(count, width, dtype=torch.long), torch.zeros(count, width, dtype=torch.long)


def _scores(model: Any, count: int, width: int, *, with_entropies: bool = False) -> Tensor:
    input_ids, labels = _rows(count, width)
    return agent_scores(model, input_ids, labels, with_entropies=with_entropies).logprobs


def _whole_rows(count: int, width: int) -> Batch:
    input_ids, labels = _rows(count, width)
    numbers, places = torch.zeros(count, width - 1), torch.arange(count)
    return Batch(input_ids, labels, numbers, numbers, places, places > count, places, places, places)
