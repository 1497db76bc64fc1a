"""Supervised fine-tuning (SFT) on demonstrations: cross-entropy on the agent's tokens, and on
results of tools where these have a weight.

TRL's `SFTTrainer` on token ids. The mean is over the agent's tokens of the whole step, so a long
episode weighs more than a short one. With a weight w of results the loss of a step is

    (sum over the agent's tokens + w · sum over tokens of results) / number of the agent's tokens.

Judged by the agent's loss on dev demonstrations, which share no entity with the training rows: on
held-out rows of those entities it would fall while the model learns codes by heart. Left out:
packing (rows are short), label smoothing, NEFTune.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import TrainerState
from trl import SFTConfig, SFTTrainer

from posttrain.data.schemas import TrajectoryRow
from posttrain.models.codec import CALL, NONE, OBSERVED, REASONING, ChatCodec, TokenRow
from posttrain.models.distributed import count, gather, index, parts_of
from posttrain.models.lora import split_by_adapter
from posttrain.models.micro_batches import AtOnce, cut_by_length
from posttrain.models.parts import add_gradients, is_small_on_cpu
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, labels_of, pad_right
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.ewc import Ewc
from posttrain.train.gradient_conflict import cosine_names, gradient_cosines
from posttrain.train.params import TrainSftParams
from posttrain.train.resumable_trainer import Resumable, TrainingRun, trainer_arguments
from posttrain.train.sample_order import sort_within_batches, weighted_order

Collator = Callable[[Sequence[Mapping[str, list[int]]]], dict[str, Tensor]]
CATEGORY_NAMES = {"reasoning": REASONING, "call": CALL}
OBSERVATION = "loss_observation"


def fine_tune(
    model: Any,
    codec: ChatCodec,
    demonstrations: Sequence[TrajectoryRow],
    dev: Sequence[TrajectoryRow],
    *,
    params: TrainSftParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on what the agent wrote in the demonstrations, those of each value
    of the label in `params.label_weights` by its share."""
    rows, dev_rows = (codec.encode_rows(row.conversation for row in split) for split in (demonstrations, dev))
    label, shares = next(iter(params.label_weights.items()), ("", {}))
    train_sft(
        model,
        codec.tokenizer,
        rows=rows,
        values=[row.labels.get(label, "") for row in demonstrations],
        shares=shares,
        dev_rows=dev_rows,
        params=params,
        seed=seed,
        run=run,
    )


def train_sft(
    model: Any,
    tokenizer: Any,
    *,
    rows: Sequence[TokenRow],
    values: Sequence[str],
    shares: Mapping[str, float],
    dev_rows: Sequence[TokenRow],
    params: TrainSftParams,
    seed: int,
    run: TrainingRun,
    ewc: Ewc | None = None,
) -> None:
    """Train `model` in place, on rows of which each value in `values` has its share. At the end
    it holds the weights of the lowest dev loss; without dev rows those of the last step. `ewc` is
    added to the loss. Resumes from `run.checkpoint`."""
    num_parts, rows_per_part = parts_of(params.batch_size, "train_sft.batch_size", run.at_once)
    is_beside = count() == 1 and is_small_on_cpu(model)
    if params.gradient_cosine_rows and count() > 1:
        raise ConfigurationError(
            f"train_sft.gradient_cosine_rows is {params.gradient_cosine_rows}, and gradients are compared in one "
            f"process, not {count()}: set it to 0, or train with one process"
        )
    if not shares:  # all rows alike
        values, shares = [""] * len(rows), {"": 1.0}
    # drawn before the first step: a resumed run finds its place by counting
    order = weighted_order(values, shares, count=params.max_steps * params.batch_size, seed=seed)
    order = sort_within_batches(order, [len(row.input_ids) for row in rows], batch_size=params.batch_size)
    arguments = SFTConfig(
        **trainer_arguments(
            run,
            model,
            params,
            max_steps=params.max_steps,
            checkpoint_every_steps=params.eval_every_steps,
            seed=seed,
        ),
        # a small model takes all parts of a step at once, in `learn_parts`
        per_device_train_batch_size=rows_per_part * (num_parts if is_beside else 1),
        gradient_accumulation_steps=1 if is_beside else num_parts,
        per_device_eval_batch_size=run.at_once.rows or max(1, params.batch_size // count()),
        eval_strategy="steps" if dev_rows else "no",
        eval_steps=params.eval_every_steps,
        metric_for_best_model="loss",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
    )
    trainer = _Sft(
        model=model,
        args=arguments,
        train_dataset=_in_turns(rows, order, params),
        eval_dataset=_dataset(dev_rows) if dev_rows else None,
        data_collator=partial(_collated, pad_id=tokenizer.pad_token_id),
        processing_class=tokenizer,
        optimizer_params=params,
        run=run,
        params=params,
        rows_beside=rows_per_part if is_beside else 0,
        ewc=ewc,
    )
    trainer.train_or_resume()


def has_stopped_improving(losses: Sequence[float], patience: int) -> bool:
    """True once `patience` evaluations in a row were no better than the best before them: 3.0,
    2.0, 2.0, 2.1 at 2."""
    return len(losses) - 1 - int(np.argmin(losses)) >= patience if losses else False


def mean_losses(
    model: Any, rows: Dataset, collator: Collator, *, at_once: AtOnce, left_out: Collection[int] = ()
) -> dict[str, float]:
    """Mean loss per agent token over all rows, without the categories that are `left_out`, and over
    those of each category (NaN without any). Processes take batches in turns; one for which none is
    left takes a row to no effect, as they exchange shards."""
    sums = _CategorySums()
    # rows of one length together: little padding, and a mean does not depend on the order
    batches = cut_by_length([len(ids) for ids in rows["input_ids"]], at_once)
    for turn in range(0, len(batches), count()):
        own = batches[turn + index()] if turn + index() < len(batches) else []
        batch = collator(rows.select(own or range(1)).to_list())
        with torch.no_grad():
            logprobs = agent_logprobs(
                model, batch["input_ids"].to(model.device), batch["labels"].to(model.device)
            ).cpu()
        if own:
            sums.add(logprobs, batch["category"])
    return sums.losses(left_out)


class _Sft(Resumable, SFTTrainer):  # type: ignore[misc]  # trl is untyped
    """SFTTrainer with a loss that picks the agent's tokens before the head, split by category."""

    logged: ClassVar = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        **{name: name for kind in CATEGORY_NAMES for name in (f"loss_{kind}", f"eval_loss_{kind}")},
        "eval_loss": "eval_loss",
        OBSERVATION: OBSERVATION,
    }

    def __init__(self, *, params: TrainSftParams, ewc: Ewc | None, **kwargs: Any) -> None:
        if params.gradient_cosine_rows:
            names = cosine_names(kwargs["model"])
            self.logged = self.logged | dict(zip(names, names, strict=True))  # type: ignore[misc]
        super().__init__(**kwargs)
        self._patience = params.early_stopping_patience
        # what is never learnt would end the training early, and have the first checkpoint kept
        self._not_learnt = {REASONING} if params.learn == "no_reasoning" else set[int]()
        self._observation_weight, self._ewc = params.observation_weight, ewc
        self._sums, self._num_cosine_rows = _CategorySums(), params.gradient_cosine_rows
        self._adapters = split_by_adapter(self.model) if params.learn == "separate_adapters" else None

    def is_over(self, state: TrainerState) -> bool:
        return super().is_over(state) or has_stopped_improving(_eval_losses(state), self._patience)

    def training_step(
        self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Gradients of a step's rows and, with the last of them, of the penalty."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self._adapters is not None:  # the first learns in even steps, see `_in_turns`
            for weight in self._adapters[1 - self.state.global_step % 2]:
                weight.grad = None
        if self._ewc is not None and self.accelerator.sync_gradients:
            loss = loss + self._ewc.add_gradients(self.model)
        return loss

    def learn_parts(self, model: Any, parts: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> Tensor:
        """Those of a small model side by side."""
        if not self._rows_beside:
            summed: Tensor = super().learn_parts(model, parts, sizes)
            return summed
        num_tokens = max(self._get_num_items_in_batch(list(parts), self.args.device), 1)
        parts = [_cut(self._with_observations(part)) for part in parts]

        def loss_of(part: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            logprobs_N_T = agent_logprobs(model, part["input_ids"], part["labels"])
            return -self._sum(logprobs_N_T, part) / num_tokens, logprobs_N_T.detach()

        logprobs = add_gradients(model, loss_of, parts)
        for part, logprobs_N_T in zip(parts, logprobs, strict=True):
            self._sums.add(logprobs_N_T, part["category"])
        loss: Tensor = -torch.stack(list(map(self._sum, logprobs, parts))).sum() / num_tokens
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        assert num_items_in_batch is not None
        assert not return_outputs
        inputs = self._with_observations(inputs)
        logprobs_N_T = agent_logprobs(model, inputs["input_ids"], inputs["labels"])
        self._sums.add(logprobs_N_T.detach().cpu(), inputs["category"].cpu())
        # mean over the whole step, times the processes over which gradients are averaged
        num_tokens = num_items_in_batch.clamp(min=1)  # none where a step has rows of observations alone
        loss: Tensor = -self._sum(logprobs_N_T, inputs) / num_tokens * self.accelerator.num_processes
        return loss

    def _with_observations(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Results labelled, too; the trainer has counted the labels that are the agent's."""
        if not self._observation_weight:
            return inputs
        is_observed_N_T = inputs["category"] == OBSERVED
        return {**inputs, "labels": torch.where(is_observed_N_T, inputs["input_ids"], inputs["labels"])}

    def _sum(self, logprobs_N_T: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        is_observed_N_T = batch["category"][:, 1:] == OBSERVED
        return torch.where(is_observed_N_T, self._observation_weight * logprobs_N_T, logprobs_N_T).sum()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        self.model.eval()
        tokens = self.run.at_once.tokens
        at_once = AtOnce(self.run.at_once.rows if tokens else self.args.per_device_eval_batch_size, tokens)
        losses = mean_losses(self.model, self.eval_dataset, self.collate, at_once=at_once, left_out=self._not_learnt)
        metrics = {f"eval_{name}": loss for name, loss in losses.items()}
        if self._num_cosine_rows:
            metrics |= gradient_cosines(self.model, self._cosine_batches())
        self.log(metrics)
        # the trainer clears it in its own `evaluate`
        self.control.should_evaluate = False
        self.control.should_training_stop |= has_stopped_improving(_eval_losses(self.state), self._patience)
        return metrics

    def _cosine_batches(self) -> list[dict[str, Tensor]]:
        rows = self.eval_dataset
        num_rows = min(self._num_cosine_rows, len(rows))
        longest = max(len(ids) for ids in rows["input_ids"][:num_rows])
        size = self.run.at_once.num_rows(longest, self.args.per_device_eval_batch_size)
        ranges = (range(start, min(start + size, num_rows)) for start in range(0, num_rows, size))
        return [self.collate(rows.select(own).to_list()) for own in ranges]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update({name: loss for name, loss in self._sums.losses().items() if name != "loss"})
            if self._observation_weight:
                logs[OBSERVATION] = self._sums.loss_of(OBSERVED)
            self._sums = _CategorySums()
        super().log(logs, start_time)


def _collated(rows: Sequence[Mapping[str, list[int]]], *, pad_id: int) -> dict[str, Tensor]:
    """Tensors (N, T) of a part's rows, padded on the right."""
    values = {"input_ids": pad_id, "labels": IGNORED, "category": NONE}
    return {name: pad_right([row[name] for row in rows], value) for name, value in values.items()}


def _cut(batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    is_agents_T = (batch["labels"] != IGNORED).any(0)
    # attention is causal: what stands behind the last such token changes no loss
    width = int(is_agents_T.nonzero().max()) + 1 if is_agents_T.any() else 2
    return {name: one[:, :width] for name, one in batch.items()}


def _in_turns(rows: Sequence[TokenRow], order: NDArray[np.int64], params: TrainSftParams) -> Dataset:
    """The rows of each step after another, with the labels that `params.learn` has it learn."""
    if params.learn == "all":
        return _dataset(rows).select(order)
    others = [_masked(row, lambda kind: kind != REASONING) for row in rows]
    if params.learn == "no_reasoning":
        return _dataset(others).select(order)
    alone = [_masked(row, lambda kind: kind == REASONING) for row in rows]
    return _dataset([*others, *alone]).select(
        [place + len(rows) * (number // params.batch_size % 2) for number, place in enumerate(order.tolist())]
    )


def _masked(row: TokenRow, is_learnt: Callable[[int], bool]) -> TokenRow:
    mask = [int(bit and is_learnt(kind)) for bit, kind in zip(row.mask, row.category, strict=True)]
    is_left_out = [own and not bit for own, bit in zip(row.mask, mask, strict=True)]
    category = [NONE if out else kind for kind, out in zip(row.category, is_left_out, strict=True)]
    return replace(row, mask=mask, category=category)


def _dataset(rows: Sequence[TokenRow]) -> Dataset:
    return Dataset.from_dict(
        {
            "input_ids": [row.input_ids for row in rows],
            "labels": [labels_of(row.input_ids, row.mask) for row in rows],
            "category": [row.category for row in rows],
        }
    )


def _eval_losses(state: TrainerState) -> list[float]:
    return [line["eval_loss"] for line in state.log_history if "eval_loss" in line]


class _CategorySums:
    """Sums of log-probabilities and numbers of tokens by category, each (5,)."""

    def __init__(self) -> None:
        self.sums, self.counts = np.zeros(5), np.zeros(5)

    def add(self, logprobs_N_T: Tensor, category_N_T: Tensor) -> None:
        """Log-probabilities (N, T-1), 0 where a token has no label."""
        categories = category_N_T[:, 1:].flatten()
        self.sums += torch.bincount(categories, weights=logprobs_N_T.flatten().double(), minlength=5).numpy()
        self.counts += torch.bincount(categories, minlength=5).numpy()

    def losses(self, left_out: Collection[int] = ()) -> dict[str, float]:
        """Mean losses over all processes, of the agent's tokens but for some categories, and by
        category."""
        of_agent = {f"loss_{name}": self.loss_of(index) for name, index in CATEGORY_NAMES.items()}
        counted = [kind for kind in range(REASONING, OBSERVED) if kind not in left_out]
        return {"loss": self.loss_of(*counted)} | of_agent

    def loss_of(self, *categories: int) -> float:
        """Mean loss over all processes of the tokens of these categories, NaN without any."""
        sums, counts = np.sum(gather((self.sums, self.counts)), axis=0)[:, categories].sum(axis=1)
        return float(-sums / counts) if counts else float("nan")
