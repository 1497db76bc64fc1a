"""Makes the model that training starts from: a small one from scratch, warmed up on copying, or a
pretrained one by name.

The tokenizer of a model from scratch is trained on the demonstrations.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from posttrain.models.codec import ChatCodec
from posttrain.models.loading import atomic_folder, load_pretrained, save_model
from posttrain.models.params import PrepareModelParams, PretrainedModel, ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.models.warmup import copy_rows, warm_up
from posttrain.runtime.exits import DataError
from posttrain.types import Message


def write_base(
    folder: Path,
    conversations: Sequence[Sequence[Message]],
    tool_names: Collection[str],
    *,
    params: ScratchModel | PretrainedModel,
    warmup: PrepareModelParams,
    max_context_tokens: int,
    seed: int,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> None:
    """Write the model's folder atomically. A pretrained model needs no conversations; one from
    scratch raises DataError without any."""
    model: Any
    match params:
        case ScratchModel():
            if not conversations:
                raise DataError("there is no demonstration: a tokenizer cannot be trained on nothing")
            tokenizer = train_tokenizer(
                conversations, tool_names=tool_names, vocab_size=params.vocab_size, max_length=max_context_tokens
            )
            model = scratch_model(params, tokenizer=tokenizer, max_context_tokens=max_context_tokens, seed=seed)
            steps = warmup.warmup_steps
            rows = copy_rows(conversations, tokenizer, count=steps * warmup.warmup_batch_size, seed=seed)
            warm_up(
                model,
                tokenizer,
                rows,
                warmup,
                on_step=lambda step, loss: progress(step, steps, f"copy loss {loss:.3f}"),
            )
        case PretrainedModel():
            model, tokenizer = load_pretrained(params)
            ChatCodec(tokenizer)  # refuses a template that cannot carry an agent, before hours of training
    with atomic_folder(folder) as partial:
        save_model(model, tokenizer, partial)
