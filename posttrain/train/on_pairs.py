"""Trains a policy on pairs of episodes, by the algorithm that the knobs name."""

from collections.abc import Sequence
from typing import Any

from posttrain.models.codec import ChatCodec
from posttrain.train.dpo import train_dpo
from posttrain.train.kto import train_kto
from posttrain.train.orpo import train_orpo
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams, TrainPolicyParams
from posttrain.train.preference_pairs import Pair, token_rows
from posttrain.train.resumable_trainer import TrainingRun


def learn_from_pairs(
    model: Any,
    codec: ChatCodec,
    pairs: Sequence[Pair],
    algorithm: DpoParams | KtoParams | OrpoParams,
    *,
    params: TrainPolicyParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place; the chosen episode of a pair becomes likelier than the rejected."""
    chosen, rejected = (token_rows([getattr(pair, side) for pair in pairs], codec) for side in ("chosen", "rejected"))
    given: dict[str, Any] = {
        "pairs": list(zip(chosen, rejected, strict=True)),
        "lr": params.lr,
        "optimizer": params.optimizer,
        "checkpoint_every_steps": params.checkpoint_every_steps,
        "seed": seed,
        "run": run,
    }
    match algorithm:
        case DpoParams():
            train_dpo(model, codec.tokenizer, params=algorithm, **given)
        case KtoParams():
            train_kto(model, codec.tokenizer, params=algorithm, **given)
        case OrpoParams():
            train_orpo(model, codec.tokenizer, params=algorithm, **given)
