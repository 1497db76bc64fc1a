"""`posttrain compare` and `dashboard`: branches side by side, with the significance of
differences. `posttrain drift`: the demonstrations against those of a commit."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError, DataError

_SUMMARY = Path("reports/validate_data/summary.json")
_POINTS = 5.0  # `posttrain.evals.significance.MARGIN`, which takes a while to import


def add_compare(commands: Commands) -> None:
    command = add_command(commands, "compare", compare)
    command.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="branches, tags or commits, the baseline first; or files of results: Inspect, lm-eval, ours",
    )
    command.add_argument("--policy", default="policy", help="whose success: policy, sft, base or teacher")
    command.add_argument("--score", default="", help="of files with several scores the one that counts")
    command.add_argument(
        "--margin",
        type=float,
        default=_POINTS,
        metavar="POINTS",
        help="smaller ones count as none (%(default)g)",
    )
    command.add_argument("--html", dest="html_file", type=Path, metavar="FILE", help="write a page that opens offline")
    command.add_argument("--json", dest="json_file", type=Path, metavar="FILE", help="write one object")
    command.add_argument("--md", dest="markdown_file", type=Path, metavar="FILE", help="write a Markdown table")
    command = add_command(commands, "dashboard", dashboard)
    command.add_argument("--port", type=int, default=0, help="of 127.0.0.1; any free one by default")
    command = add_command(commands, "drift", drift)
    command.add_argument("revision", nargs="?", default="HEAD", help="commit, branch or tag (%(default)s)")


def compare(
    names: Sequence[str],
    policy: str,
    score: str,
    margin: float,
    html_file: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Compare the results of branches, with intervals and significance, and list what differs.
    Reads git, without a checkout; runs that differ in the seed alone are one setting."""
    from posttrain.report.comparison.foreign import are_files, read_files
    from posttrain.report.comparison.runs import read_runs
    from posttrain.report.comparison.settings import compare_settings
    from posttrain.report.comparison.tables import comparison_json, comparison_markdown, comparison_text
    from posttrain.report.table import POLICIES

    if policy not in POLICIES:
        raise ConfigurationError(f"--policy {policy!r} is none of {', '.join(POLICIES)}")
    if not 0 < margin < 100:
        raise ConfigurationError(f"--margin {margin:g} is no number of points between 0 and 100")
    given = list(dict.fromkeys(names))
    others = [name for name in given if not are_files(name)]
    if not others:
        runs = [run for name in given for run in read_files(name, score=score)]
    elif len(others) < len(given):
        raise ConfigurationError(
            f"there is no file {', '.join(others)}: results in a file are compared with those in another only"
        )
    else:
        runs = read_runs(Path(), given, policy=policy)
    settings = compare_settings(runs, margin=margin / 100)
    print(comparison_text(settings))
    _write(json_file, lambda: comparison_json(settings))
    _write(markdown_file, lambda: comparison_markdown(settings))
    if html_file is not None:
        from posttrain.report.comparison.page import comparison_page

        _write(html_file, lambda: comparison_page(settings))


def dashboard(port: int) -> None:
    """Serve a page of all local branches, until Ctrl-C. For this user alone:
    the printed address has a key."""
    from posttrain.report.comparison.dashboard import Dashboard

    server = Dashboard(Path(), port)
    print(f"the dashboard, until Ctrl-C: {server.address}", flush=True)
    server.serve_forever()


def _write(file: Path | None, text: Callable[[], str]) -> None:
    if file is None:
        return
    try:
        file.write_text(text(), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error


def drift(revision: str) -> None:
    """Compare the validated demonstrations with those of a commit: their number, lengths, labels
    and tools. Exits with 65 where one changed by more than `validate_data.drift` allows."""
    from posttrain.config.params import load_params
    from posttrain.data.validation.drift import drift as changes_between
    from posttrain.data.validation.drift import drift_table
    from posttrain.pipeline.git import file_at

    if not _SUMMARY.is_file():
        raise ConfigurationError(f"{_SUMMARY} is not there: run `posttrain run validate_data` first")
    then = file_at(Path.cwd(), revision, _SUMMARY.as_posix())
    if then is None:
        raise ConfigurationError(f"{revision} has no {_SUMMARY} to compare with: commit one, or name another revision")
    bounds = load_params(Path("params.yaml")).validate_data.drift
    changes = changes_between(json.loads(then), json.loads(_SUMMARY.read_bytes()), bounds)
    print(drift_table(changes))
    if drifted := [change.figure for change in changes if change.is_drift]:
        raise DataError(f"the demonstrations are not as at {revision}: {', '.join(drifted)} changed beyond the limit")
