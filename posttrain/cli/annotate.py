"""`posttrain annotate`: people judge episodes on a page."""

import getpass
from pathlib import Path

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import DataError

PREFERENCES = Path("data/preferences")


def add_annotate(commands: Commands) -> None:
    command = add_command(commands, "annotate", annotate)
    command.add_argument("--episodes", action="store_true", help="one episode at a time, by marks, in place of pairs")
    command.add_argument("--folder", type=Path, default=PREFERENCES, help=f"with pairs and samples ({PREFERENCES})")
    command.add_argument("--num", type=int, default=0, help="items at most; all by default")
    command.add_argument("--port", type=int, default=0, help="on 127.0.0.1; any free one by default")


def annotate(episodes: bool, folder: Path, num: int, port: int) -> None:
    """Judge pairs of episodes, or single ones, on a page in a browser, until Ctrl-C. Each judgement
    goes to data/feedback/annotations.parquet, which sample_preferences.source may name."""
    from posttrain.data.annotations import ANNOTATIONS, item_of
    from posttrain.data.preferences import read_pairs
    from posttrain.data.schemas import read_trajectories
    from posttrain.debug.annotation import TEMPLATE, AnnotationPage
    from posttrain.debug.server import DebugServer
    from posttrain.report.html import rendered

    if episodes:
        rows = read_trajectories(folder / "samples.parquet")
        items = [item_of(row) for row in rows if not row.trajectory.is_aborted]
    else:
        items = [item_of(pair.chosen, pair.rejected) for pair in read_pairs(folder / "pairs.parquet")]
    if not items:
        raise DataError(f"{folder} has nothing to judge: run sample_preferences first")
    page = AnnotationPage(sorted(items, key=lambda one: one.item_id)[: num or None])
    server = DebugServer(page, rendered(TEMPLATE, title="Annotate", data={"who": getpass.getuser()}), port)
    print(f"the page, until Ctrl-C: {server.address}", flush=True)
    server.serve_forever()
    print(f"track what was said with `dvc add {ANNOTATIONS}`, and name it in sample_preferences.source")
