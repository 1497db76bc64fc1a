"""One page from the small reports of all stages: the policies, how they learnt, on what data, and
how they still fail; and the same in short for DVC's own commands."""

from pathlib import Path

from posttrain.data.files import write_json, write_text
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.report.headline import curves, headline
from posttrain.report.knobs import flat_knobs
from posttrain.report.page import read_reports, render_page
from posttrain.tracking.wandb_tables import show_page

REPORTS = Path("reports")


def report(run: StageRun) -> None:
    reports = read_reports(REPORTS, flat_knobs(run.params.model_dump()))
    page = render_page(reports, num_failures_shown=run.params.report.num_failures_shown)
    write_text(REPORTS / "index.html", page)
    write_json(REPORTS / "headline.json", headline(reports))
    for name, table in curves(reports).items():
        write_text(REPORTS / "curves" / name, table)
    show_page(run, page)


if __name__ == "__main__":
    run_stage(report)
