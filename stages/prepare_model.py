"""Stage `prepare_model`: makes the base model, a small one from scratch with a tokenizer of its
own, warmed up on copying, or a pretrained one by name."""

from pathlib import Path

from posttrain.data.schemas import TrajectoryRow, read_trajectories, tool_names
from posttrain.models.base import write_base
from posttrain.models.params import ScratchModel
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import DataError

DEMONSTRATIONS = Path("data/validated/demonstrations.parquet")


def prepare_model(run: StageRun) -> None:
    params = run.params
    rows = _demonstrations() if isinstance(params.model, ScratchModel) else []
    write_base(
        Path("data/models/base"),
        [row.trajectory.messages for row in rows],
        tool_names(rows),
        params=params.model,
        warmup=params.prepare_model,
        max_context_tokens=params.agent.max_context_tokens,
        seed=params.seed,
        progress=run.progress,
    )


def _demonstrations() -> list[TrajectoryRow]:
    rows = read_trajectories(DEMONSTRATIONS)
    if not rows:
        raise DataError(
            f"{DEMONSTRATIONS} has no row: a tokenizer cannot be trained on nothing. "
            "See reports/validate_data/index.html for the reasons"
        )
    return rows


if __name__ == "__main__":
    run_stage(prepare_model)
