"""Sends bad demonstrations to quarantine with their reasons, lets the others go on, and stops where
there are too many bad ones.

The page, the counts and the quarantine are written before it stops: they are what a person needs to
mend the source.
"""

from pathlib import Path

import pyarrow as pa

from posttrain.data.files import read_parquet, write_json, write_jsonl, write_parquet, write_text
from posttrain.data.schemas import TASKS_SCHEMA, TRAJECTORIES_SCHEMA
from posttrain.data.validation.page import render_page
from posttrain.data.validation.verdict import quarantined, refuse_too_many, summary, validate
from posttrain.stage.frame import StageRun, run_stage

SOURCE = Path("data/raw/demonstrations.parquet")
VALIDATED = Path("data/validated")
REPORTS = Path("reports/validate_data")


def validate_data(run: StageRun) -> None:
    params = run.params.validate_data
    rows = read_parquet(SOURCE, TRAJECTORIES_SCHEMA)
    tasks = read_parquet(Path("data/raw/tasks.parquet"), TASKS_SCHEMA)
    verdict = validate(rows, tasks, max_tokens=params.max_tokens, source=SOURCE)

    write_jsonl(VALIDATED / "quarantine.jsonl", quarantined(verdict, rows))
    write_json(REPORTS / "summary.json", summary(verdict))
    write_text(REPORTS / "index.html", render_page(verdict, rows, max_quarantine_frac=params.max_quarantine_frac))
    refuse_too_many(verdict, max_quarantine_frac=params.max_quarantine_frac, source=SOURCE)
    write_parquet(VALIDATED / "demonstrations.parquet", rows.filter(pa.array(verdict.is_kept)))


if __name__ == "__main__":
    run_stage(validate_data)
