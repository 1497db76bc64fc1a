"""A page that says which run the report's figures are of: code, knobs, and when, where and how long
each stage ran.

The report itself is the same to the byte for the same figures, so none of this is in it. It comes
from what the tree's own runs took, and where none made the present outputs from the records that
are committed beside these (`posttrain.provenance.run_records`).
"""

from datetime import UTC, datetime
from pathlib import Path

from posttrain.pipeline.git import file_at
from posttrain.provenance.code_version import parse_version, read_version
from posttrain.provenance.costs import Cost
from posttrain.provenance.eta import duration
from posttrain.provenance.lockfile import lock_entries, replace_file
from posttrain.provenance.run_records import read_own_runs, read_records
from posttrain.report.html import rendered
from posttrain.report.knobs import SEED, Knobs, knobs_that_differ, parse_knobs
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import STATE_DIR, state_dir

PAGE = STATE_DIR / "run.html"  # of what this tree is now, so no commit has it
_TEMPLATE = Path(__file__).with_name("run.html")


def write_run_page(root: Path) -> str:
    """A sentence that names the file; nothing where it cannot be written."""
    page = run_page(root)
    try:
        state_dir(root)
        replace_file(root / PAGE, page)
    except OSError:  # the figures can be read, all the same
        return ""
    return f"commit, knobs, and what each stage took: {root / PAGE}"


def run_page(root: Path) -> str:
    """The HTML text, of the tree at `root`."""
    own = read_own_runs(root)
    records = read_records(root) | own
    knobs = _parsed((root / "params.yaml").read_text(encoding="utf-8", errors="replace"))
    stages = [(name, records.get(name)) for name in lock_entries(root)]
    return rendered(
        _TEMPLATE,
        title="This run",
        version=read_version(root),
        seed=knobs.get(SEED, "–"),
        knobs=knobs_that_differ(_committed_knobs(root) or knobs, knobs),
        stages=stages,
        own=own,
        is_whole=all(cost is not None for _, cost in stages),
        costs=list(records.values()),
        duration=duration,
        ended=ended,
        short=lambda text: parse_version(text).short,
    )


def ended(cost: Cost) -> str:
    """`2026-11-23 21:05 UTC`; empty where it was not recorded."""
    return f"{datetime.fromtimestamp(cost.at, UTC):%Y-%m-%d %H:%M} UTC" if cost.at else ""


def _committed_knobs(root: Path) -> Knobs:
    try:
        return _parsed(file_at(root, "HEAD", "params.yaml") or "")
    except ConfigurationError:  # git is not here
        return {}


def _parsed(text: str) -> Knobs:
    try:
        return parse_knobs(text.encode())
    except ValueError:
        return {}
