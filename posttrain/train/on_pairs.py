"""Trains a policy on pairs of its own episodes, by the algorithm that the knobs name; and direct
preference optimisation (DPO), the first of these.

DPO is TRL's `DPOTrainer` (arXiv 2305.18290) on whole multi-turn episodes. With d the chosen
episode's gain in log-likelihood over the first policy less the rejected one's, a pair's loss is:

- `sigmoid`: -log sigmoid(beta d) (eq. 7).
- `hinge`: max(0, 1 - beta d) (SLiC, arXiv 2305.10425): 0 once the pair is 1 / beta apart.
- `robust`: of the pairs a share e, `label_smoothing`, may stand the wrong way round:
  (-(1 - e) log sigmoid(beta d) + e log sigmoid(-beta d)) / (1 - 2 e), unbiased for the loss of the
  right pairs (rDPO, arXiv 2403.00409, eq. 10).
- `ipo`: (d' - 1 / (2 beta))^2, d' of gains per agent token (IPO, arXiv 2310.12036, eq. 17): a pair
  is to be so far apart and no farther, where a sigmoid never has enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from trl import DPOConfig, DPOTrainer

from posttrain.data.preferences import Pair, Verdict
from posttrain.models.codec import ChatCodec
from posttrain.runtime.exits import DataError
from posttrain.train.episode_tokens import token_rows
from posttrain.train.kto import kto_trainer
from posttrain.train.orpo import orpo_trainer
from posttrain.train.pair_training import (
    PairTraining,
    ReferenceTrainer,
    episode_logprobs,
    pair_collator,
    pair_dataset,
)
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams, PairParams, TrainPolicyParams
from posttrain.train.preference_pairs import NO_PAIRS
from posttrain.train.resumable_trainer import TrainingRun


def learn_from_pairs(
    model: Any,
    codec: ChatCodec,
    pairs: Sequence[Pair],
    algorithm: PairParams,
    verdicts: Sequence[Verdict] = (),
    *,
    params: TrainPolicyParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place; the chosen episode of a pair becomes likelier than the rejected.
    `verdicts` are learnt by KTO alone."""
    if not pairs and not (isinstance(algorithm, KtoParams) and verdicts):
        thumbs_alone = "where there are thumbs alone, kto learns from these"
        raise DataError(f"{algorithm.type} learns from pairs: {NO_PAIRS}; {thumbs_alone}")
    thumbs = [one for one in verdicts if one.is_desirable is not None]
    if isinstance(algorithm, KtoParams) and any(one.said.source == "sampled" for one in thumbs):
        pairs = [pair for pair in pairs if pair.said.source != "sampled"]
    chosen, rejected = (token_rows([getattr(pair, side) for pair in pairs], codec) for side in ("chosen", "rejected"))
    training = PairTraining(
        model,
        codec.tokenizer,
        list(zip(chosen, rejected, strict=True)),
        optimizer_params=params,
        checkpoint_every_steps=params.checkpoint_every_steps,
        seed=seed,
        run=run,
        weights=[pair.weight for pair in pairs],
        verdicts=[
            (row, bool(one.is_desirable))
            for row, one in zip(token_rows([one.row for one in thumbs], codec), thumbs, strict=True)
        ],
    )
    train_on_pairs(training, algorithm)


def train_on_pairs(training: PairTraining, algorithm: PairParams) -> None:
    match algorithm:
        case DpoParams():
            dpo_trainer(training, algorithm).train_or_resume()
        case KtoParams():
            kto_trainer(training, algorithm).train_or_resume()
        case OrpoParams():
            orpo_trainer(training, algorithm).train_or_resume()


def dpo_trainer(training: PairTraining, params: DpoParams) -> ReferenceTrainer:
    trainer = _Dpo(
        args=DPOConfig(
            **training.arguments(params),
            loss_type=params.loss,
            label_smoothing=params.label_smoothing,
            precompute_ref_log_probs=True,
            max_length=None,
        ),
        is_reference_free=params.reference_free,
        ref_model=training.reference(),
        train_dataset=pair_dataset(training.pairs),
        data_collator=pair_collator(training.tokenizer),
        **training.parts(),
    )
    # after the reference's log-probs were computed: once for each pair, not for each of its uses
    trainer.train_dataset = trainer.train_dataset.select(training.order(params))
    return trainer


class _Dpo(ReferenceTrainer, DPOTrainer):  # type: ignore[misc]  # trl is untyped
    is_of_pairs: ClassVar = True

    def __init__(self, *, is_reference_free: bool, **arguments: Any) -> None:
        self._is_reference_free = is_reference_free
        super().__init__(**arguments)

    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        if self._is_reference_free:
            logprobs_2N = [0.0] * len(batch["input_ids"])
        else:
            logprobs_2N = episode_logprobs(self.model, batch)
        num_pairs = len(logprobs_2N) // 2
        return {"ref_chosen_logps": logprobs_2N[:num_pairs], "ref_rejected_logps": logprobs_2N[num_pairs:]}
