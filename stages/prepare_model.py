"""Stage `prepare_model`: makes the base model, a small one from scratch with a tokenizer of its
own, warmed up on copying, or a pretrained one by name."""

from pathlib import Path

from posttrain.data.schemas import conversations, read_trajectories, tool_names
from posttrain.models.base import write_base
from posttrain.models.params import ScratchModel
from posttrain.provenance.runner import StageRun, run_stage

DEMONSTRATIONS = Path("data/validated/demonstrations.parquet")


def prepare_model(run: StageRun) -> None:
    params = run.params
    rows = read_trajectories(DEMONSTRATIONS) if isinstance(params.model, ScratchModel) else []
    write_base(
        Path("data/models/base"),
        conversations(rows),
        tool_names(rows),
        params=params.model,
        warmup=params.prepare_model,
        max_context_tokens=params.agent.max_context_tokens,
        seed=params.seed,
        progress=run.progress,
    )


if __name__ == "__main__":
    run_stage(prepare_model)
