"""Tokens a second of SFT, of play, and seconds of a whole step online, against TRL on the same
device with the same model, rows and tasks."""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from benchmarks.against_trl import comparable, measured_steps
from benchmarks.gpu.ground import Ground, encoded, synchronised
from posttrain.models.codec import TokenRow
from posttrain.models.loading import CHECKPOINTING, load_codec, load_model
from posttrain.models.token_logprobs import IGNORED, labels_of, pad_right

NUM_STEPS = 30


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    yield from _steps(ground)
    yield from _sft(ground)


def _steps(ground: Ground) -> Iterator[dict[str, Any]]:
    params = ground.params
    algorithm = params.train_policy.algorithm
    tasks = comparable(ground.domain.tasks("rl", params.world.num_rl_tasks), algorithm.tasks_per_step * 4)
    ours, theirs = measured_steps(params, ground.trained, ground.domain, tasks, clock=synchronised)
    for name, side in (("posttrain", ours), ("trl", theirs)):
        yield {"what": "online", "by": name, **{key: round(value, 3) for key, value in side._asdict().items()}}
    yield {
        "what": "online",
        "ratio_of_play": round(ours.tokens_per_s / theirs.tokens_per_s, 2),
        "ratio_of_steps": round(theirs.step_s / ours.step_s, 2),
    }


def _sft(ground: Ground) -> Iterator[dict[str, Any]]:
    """SFT trainings from start to end, the start of each included."""
    codec = load_codec(ground.trained)
    num_steps = 4 if ground.is_small else NUM_STEPS
    own = {"train_sft.max_steps": num_steps, "train_sft.eval_every_steps": num_steps, "train_sft.optimizer": "adamw"}
    params = ground.params_with(own)
    batch = params.train_sft.batch_size
    rows = encoded(codec, ground.demonstrations(batch * 4))
    tokens = sum(len(row.input_ids) for row in rows) / len(rows) * num_steps * batch
    seconds = {
        "posttrain": ground.sft(load_model(ground.trained), codec, rows, params)[1],
        "trl": _trl(load_model(ground.trained), codec.tokenizer, rows, num_steps, batch),
    }
    for name, taken in seconds.items():
        yield {"what": "sft", "by": name, "tokens_per_s": round(tokens / taken), "seconds": round(taken, 2)}
    yield {"what": "sft", "ratio": round(seconds["trl"] / seconds["posttrain"], 2)}


def _trl(model: Any, tokenizer: Any, rows: list[TokenRow], num_steps: int, batch: int) -> float:
    def collate(some: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED}
        padded = {name: pad_right([row[name] for row in some], value) for name, value in padding.items()}
        lengths_N = torch.tensor([len(row["input_ids"]) for row in some])
        return padded | {"attention_mask": torch.arange(padded["labels"].shape[1]) < lengths_N[:, None]}

    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                max_steps=num_steps,
                learning_rate=1e-5,
                per_device_train_batch_size=batch // 4,
                gradient_accumulation_steps=4,
                dataset_kwargs={"skip_prepare_dataset": True},
                max_length=None,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                bf16=False,
                **{CHECKPOINTING: False},
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=Dataset.from_list(
                [{"input_ids": row.input_ids, "labels": labels_of(row.input_ids, row.mask)} for row in rows]
            ),
            data_collator=collate,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        began = synchronised()
        trainer.train()
        return synchronised() - began
