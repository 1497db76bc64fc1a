"""Stage `validate_data`: checks demonstrations by rules and quarantines bad ones with their
reasons.

Too many bad ones stop the run, after the report and the quarantine are written: they are needed to
mend the source.
"""

from pathlib import Path

from posttrain.data.files import ParquetBatches, write_batches, write_json, write_jsonl, write_text
from posttrain.data.schemas import TASKS_SCHEMA, TRAJECTORIES_SCHEMA
from posttrain.data.validation.leakage import TASK_COLUMNS
from posttrain.data.validation.page import render_page
from posttrain.data.validation.suite import check_suite
from posttrain.data.validation.validate import kept, quarantined, refuse_too_many, summary, validate
from posttrain.provenance.runner import StageRun, run_stage

SOURCE = Path("data/raw/demonstrations.parquet")
VALIDATED = Path("data/validated")
REPORTS = Path("reports/validate_data")


def validate_data(run: StageRun) -> None:
    params = run.params.validate_data
    rows = ParquetBatches(SOURCE, TRAJECTORIES_SCHEMA)
    shown = ParquetBatches(SOURCE, TRAJECTORIES_SCHEMA, ("trajectory_id", "messages"))
    tasks = ParquetBatches(Path("data/raw/tasks.parquet"), TASKS_SCHEMA, TASK_COLUMNS)
    suite = check_suite(rows)
    result = validate(rows, tasks, max_tokens=params.max_tokens, source=SOURCE, suite=suite)

    write_jsonl(VALIDATED / "quarantine.jsonl", quarantined(result, rows))
    write_json(REPORTS / "summary.json", summary(result))
    write_text(REPORTS / "data_docs.html", suite.data_docs)
    write_text(REPORTS / "index.html", render_page(result, shown, max_quarantine_frac=params.max_quarantine_frac))
    refuse_too_many(result, max_quarantine_frac=params.max_quarantine_frac, source=SOURCE)
    write_batches(VALIDATED / "demonstrations.parquet", kept(result, rows), TRAJECTORIES_SCHEMA)


if __name__ == "__main__":
    run_stage(validate_data)
