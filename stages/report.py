"""One page from the small reports of all stages: the policies, how they learnt, on what data, and
how they still fail."""

from pathlib import Path

from posttrain.data.files import write_text
from posttrain.report.knobs import flat_knobs
from posttrain.report.page import read_reports, render_page
from posttrain.stage.frame import StageRun, run_stage
from posttrain.tracking.wandb_tables import show_page

REPORTS = Path("reports")


def report(run: StageRun) -> None:
    knobs = flat_knobs(run.params.model_dump())
    page = render_page(read_reports(REPORTS, knobs), num_failures_shown=run.params.report.num_failures_shown)
    write_text(REPORTS / "index.html", page)
    show_page(run, page)


if __name__ == "__main__":
    run_stage(report)
