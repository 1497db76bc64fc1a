"""`posttrain annotate`: people judge episodes on a page."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError, DataError

if TYPE_CHECKING:
    from posttrain.data.annotations import Item

PREFERENCES, REWARD_MODEL = Path("data/preferences"), Path("data/models/reward")


def add_annotate(commands: Commands) -> None:
    command = add_command(commands, "annotate", annotate)
    command.add_argument("--episodes", action="store_true", help="one episode at a time, by marks, in place of pairs")
    command.add_argument("--by-disagreement", action="store_true", help="first what the reward models differ about")
    command.add_argument("--folder", type=Path, default=PREFERENCES, help=f"with pairs and samples ({PREFERENCES})")
    command.add_argument("--num", type=int, default=0, help="items at most; all by default")
    command.add_argument("--port", type=int, default=0, help="on 127.0.0.1; any free one by default")


def annotate(episodes: bool, by_disagreement: bool, folder: Path, num: int, port: int) -> None:
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
    items.sort(key=lambda one: one.item_id)  # which is no order of anything else
    if by_disagreement:
        items = _by_disagreement(items)
    page = AnnotationPage(items[: num or None])
    server = DebugServer(page, rendered(TEMPLATE, title="Annotate", data={"who": getpass.getuser()}), port)
    print(f"the page, until Ctrl-C: {server.address}", flush=True)
    server.serve_forever()
    print(f"track what was said with `dvc add {ANNOTATIONS}`, and name it in sample_preferences.source")


def _by_disagreement(items: list["Item"]) -> list["Item"]:
    """First the pairs whose difference, and the episodes whose score, varies most over the members
    of the reward model."""
    import numpy as np

    from posttrain.models.loading import load_codec
    from posttrain.train.reward_bound import MeanBound
    from posttrain.train.reward_ensemble import load_reward_models

    if not (REWARD_MODEL / "member-2").is_dir():
        raise ConfigurationError(
            f"{REWARD_MODEL} is not several reward models: set train_reward_model.num_members to 4 and train them"
        )
    models, codec = load_reward_models(REWARD_MODEL, MeanBound(type="mean")), load_codec(REWARD_MODEL)
    rows = [row for item in items for row in item.episodes]
    encoded = codec.encode_rows(row.conversation for row in rows)
    scores_M_N = models.member_scores([one.input_ids for one in encoded])
    size = len(items[0].episodes)
    told_M_N = scores_M_N if size == 1 else scores_M_N[:, ::2] - scores_M_N[:, 1::2]
    return [items[place] for place in np.argsort(-told_M_N.std(axis=0), kind="stable")]
