"""Stage `prepare_model`: makes the base model, a small one from scratch with a tokenizer of its
own, warmed up on copying, or a pretrained one by name."""

import shutil
from pathlib import Path

from posttrain.data.schemas import TrajectoryRow, read_trajectories
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_pretrained, save_model
from posttrain.models.params import PretrainedModel, ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.models.warmup import copy_rows, warm_up
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import DataError

DEMONSTRATIONS = Path("data/validated/demonstrations.parquet")
BASE = Path("data/models/base")


def prepare_model(run: StageRun) -> None:
    match run.params.model:
        case ScratchModel() as params:
            model, tokenizer = _make(run, params, read_trajectories(DEMONSTRATIONS))
        case PretrainedModel() as params:
            model, tokenizer = load_pretrained(params)
            ChatCodec(tokenizer)  # refuses a template that cannot carry an agent, before hours of training
    unfinished = BASE.with_name(BASE.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    save_model(model, tokenizer, unfinished)
    shutil.rmtree(BASE, ignore_errors=True)
    unfinished.rename(BASE)


def _make(run: StageRun, params: ScratchModel, demonstrations: list[TrajectoryRow]) -> tuple[object, object]:
    if not demonstrations:
        raise DataError(
            f"{DEMONSTRATIONS} has no row: a tokenizer cannot be trained on nothing. "
            "See reports/validate_data/index.html for the reasons"
        )
    max_context_tokens, prepare = run.params.agent.max_context_tokens, run.params.prepare_model
    conversations = [row.trajectory.messages for row in demonstrations]
    tool_names = {tool["function"]["name"] for row in demonstrations for tool in row.tools}
    tokenizer = train_tokenizer(
        conversations, tool_names=tool_names, vocab_size=params.vocab_size, max_length=max_context_tokens
    )
    model = scratch_model(params, tokenizer=tokenizer, max_context_tokens=max_context_tokens, seed=run.params.seed)
    rows = copy_rows(
        conversations, tokenizer, count=prepare.warmup_steps * prepare.warmup_batch_size, seed=run.params.seed
    )
    warm_up(
        model,
        tokenizer,
        rows,
        prepare,
        on_step=lambda step, loss: run.progress(step, prepare.warmup_steps, f"copy loss {loss:.3f}"),
    )
    return model, tokenizer


if __name__ == "__main__":
    run_stage(prepare_model)
