"""Trains a policy on pairs of episodes, by the algorithm that the knobs name."""

from collections.abc import Sequence
from typing import Any

from posttrain.models.codec import ChatCodec
from posttrain.train.dpo import dpo_trainer
from posttrain.train.kto import kto_trainer
from posttrain.train.orpo import orpo_trainer
from posttrain.train.pair_training import PairParams, PairTraining
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams, TrainPolicyParams
from posttrain.train.preference_pairs import Pair, token_rows
from posttrain.train.resumable_trainer import TrainingRun


def learn_from_pairs(
    model: Any,
    codec: ChatCodec,
    pairs: Sequence[Pair],
    algorithm: PairParams,
    *,
    params: TrainPolicyParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place; the chosen episode of a pair becomes likelier than the rejected."""
    chosen, rejected = (token_rows([getattr(pair, side) for pair in pairs], codec) for side in ("chosen", "rejected"))
    training = PairTraining(
        model,
        codec.tokenizer,
        list(zip(chosen, rejected, strict=True)),
        lr=params.lr,
        optimizer=params.optimizer,
        checkpoint_every_steps=params.checkpoint_every_steps,
        seed=seed,
        run=run,
    )
    train_on_pairs(training, algorithm)


def train_on_pairs(training: PairTraining, algorithm: PairParams) -> None:
    """Resumes from the run's checkpoint where there is one."""
    match algorithm:
        case DpoParams():
            dpo_trainer(training, algorithm).train_or_resume()
        case KtoParams():
            kto_trainer(training, algorithm).train_or_resume()
        case OrpoParams():
            orpo_trainer(training, algorithm).train_or_resume()
