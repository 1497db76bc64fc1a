"""Shared by the trainers on pairs: arguments, tensors, and reference log-probabilities.

TRL marks everything after the prompt as the completion; here the mask is the agent's tokens alone,
so that a tool result, which differs between the two episodes, is never made likelier. The reference
is the first policy, whose log-probabilities are computed once, before the first step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from datasets import Dataset
from torch import Tensor

from posttrain.models.codec import TokenRow
from posttrain.models.distributed import is_sharded, parts_of
from posttrain.models.micro_batches import cut_by_length
from posttrain.models.params import OptimizerParams
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, pad_right
from posttrain.train.policy_params import PairParams
from posttrain.train.resumable_trainer import Resumable, TrainingRun, num_tokens, trainer_arguments
from posttrain.train.sample_order import IntArray, drawn_by_length

SIDES = ("chosen", "rejected")
COLUMNS = ("input_ids", "mask")

RowPair = tuple[TokenRow, TokenRow]  # chosen, rejected


@dataclass(frozen=True, slots=True)
class PairTraining:
    """A training on (chosen, rejected) pairs, drawn by their `weights`, and for KTO on single
    episodes too, each with whether it is desirable; `model` is trained in place."""

    model: Any
    tokenizer: Any
    pairs: Sequence[RowPair]
    optimizer_params: OptimizerParams
    checkpoint_every_steps: int
    seed: int
    run: TrainingRun
    weights: Sequence[float] = ()  # of the pairs; none is all alike
    verdicts: Sequence[tuple[TokenRow, bool]] = ()

    def arguments(self, params: PairParams) -> dict[str, Any]:
        """The trainer's arguments."""
        num_parts, pairs_per_part = parts_of(
            params.batch_size, "train_policy.algorithm.batch_size", self.run.at_once.in_pairs
        )
        common = trainer_arguments(
            self.run,
            self.model,
            self.optimizer_params,
            max_steps=params.max_steps,
            checkpoint_every_steps=self.checkpoint_every_steps,
            seed=self.seed,
        )
        return {
            **common,
            "per_device_train_batch_size": pairs_per_part,
            "gradient_accumulation_steps": num_parts,
            "beta": params.beta,
        }

    def parts(self) -> dict[str, Any]:
        """A trainer's arguments besides those and its rows."""
        own = {"model": self.model, "optimizer_params": self.optimizer_params, "run": self.run}
        return {**own, "processing_class": self.tokenizer}

    def reference(self) -> Any:
        """None: before its first step the model is its own. Under FSDP TRL wants one, which
        nothing reads: a single weight."""
        if not is_sharded():
            return None
        stand_in: Any = torch.nn.Linear(1, 1)
        stand_in.config = self.model.config
        return stand_in

    def order(self, params: PairParams) -> IntArray:
        """The pairs of all steps, shape (max_steps * batch_size,), the longest of a step first."""
        lengths = [max(len(row.input_ids) for row in pair) for pair in self.pairs]
        weights = self.weights or [1.0] * len(lengths)
        return drawn_by_length(lengths, weights, params.max_steps, params.batch_size, seed=self.seed)


def pair_dataset(pairs: Sequence[RowPair]) -> Dataset:
    """A row for each pair: `chosen_input_ids`, `chosen_mask` and the rejected one's."""
    return Dataset.from_dict(
        {
            f"{side}_{name}": [getattr(pair[index], name) for pair in pairs]
            for index, side in enumerate(SIDES)
            for name in COLUMNS
        }
    )


def episode_logprobs(model: Any, batch: Mapping[str, Tensor]) -> list[float]:
    """Summed log-probability of the agent's tokens in each row."""
    input_ids = batch["input_ids"].to(model.device)
    with torch.no_grad():
        sums: list[float] = agent_logprobs(model, input_ids, batch_labels(batch).to(model.device)).sum(1).tolist()
    return sums


def batch_labels(batch: Mapping[str, Tensor]) -> Tensor:
    """Token ids where the agent wrote them, `IGNORED` elsewhere."""
    return batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)


def padded(input_ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Tensors (N, T) as TRL names them; `completion_mask` is 1 at the agent's tokens."""
    return {
        "input_ids": pad_right(input_ids, pad_id),
        "attention_mask": pad_right([[1] * len(ids) for ids in input_ids], 0),
        "completion_mask": pad_right(masks, 0),
    }


class ReferenceTrainer(Resumable):
    """Mixed in before TRL's DPO and KTO trainers, on token ids. TRL has no public switch against
    tokenizing, and would pass reference log-probs on by a cache file that other processes do not
    find."""

    logged: ClassVar[Mapping[str, str]] = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "entropy": "entropy",
        "kl": "mismatched_gain",  # KTO's z, in nats per episode
        # share of the step's pairs whose chosen episode gained more than the rejected one
        "rewards/accuracies": "pair_accuracy",
        "rewards/margins": "margin",  # beta times the difference of the two gains
        "rewards/chosen": "margin_chosen",
        "rewards/rejected": "margin_rejected",
    }

    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        """Log-probs of a batch's rows by the weights as they are, named as TRL looks for them."""
        raise NotImplementedError

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, _name: str, batch_size: int) -> Dataset:
        # TRL calls this before the model is trained or loaded from a checkpoint: it is its own
        # reference
        columns: dict[str, list[float]] = {}
        places: Sequence[Sequence[int]] = [
            range(start, min(start + batch_size, len(dataset))) for start in range(0, len(dataset), batch_size)
        ]
        if self.run.at_once.tokens is not None:
            at_once = self.run.at_once.in_pairs if self.is_of_pairs else self.run.at_once
            places = cut_by_length([num_tokens(row) for row in dataset], at_once)
        for part in places:
            for name, logprobs in self.reference_columns(self.data_collator(dataset.select(part).to_list())).items():
                column = columns.setdefault(name, [0.0] * len(dataset))
                for place, logprob in zip(part, logprobs, strict=True):
                    column[place] = logprob
        for name, logprobs in columns.items():
            dataset = dataset.add_column(name, logprobs)
        return dataset


def pair_collator(tokenizer: Any) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]:
    """Collates pairs to tensors (2N, T): first the chosen episodes, as TRL halves them."""

    def collate(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        input_ids, masks = ([pair[f"{side}_{name}"] for side in SIDES for pair in pairs] for name in COLUMNS)
        batch = padded(input_ids, masks, tokenizer.pad_token_id)
        for side in SIDES:
            if f"ref_{side}_logps" in pairs[0]:
                batch[f"ref_{side}_logps"] = torch.tensor([pair[f"ref_{side}_logps"] for pair in pairs])
        return batch

    return collate
