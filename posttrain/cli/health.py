"""`posttrain health`: the spread of rewards within tasks, of any file of trajectories."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from posttrain.cli.command import Commands, add_command


def add_health(commands: Commands) -> None:
    command = add_command(commands, "health", health)
    command.add_argument("file", type=Path, help="trajectories with rewards: JSONL, JSON or Parquet")
    command.add_argument("--format", dest="file_format", help="the file's format, where its records do not show it")
    command.add_argument("--reward", default="", help="column of the reward, where the format defines none")
    command.add_argument("--group", default="", help="column that episodes of a task share, or the size of a group")
    command.add_argument("--success-at", type=float, default=1.0, help="an episode with this reward or more succeeded")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a table")


def health(file: Path, file_format: str | None, reward: str, group: str, success_at: float, as_json: bool) -> None:
    """Print how much signal groups of these trajectories give: the reward spread within a task, and
    the share of groups without any."""
    from posttrain.evals.health import group_health, read_rollouts

    found = read_rollouts(file, file_format, reward=reward, group=group)
    if found.unread:
        print(found.unread, file=sys.stderr)
    if bad := found.bad:
        print(f"{len(bad)} records are none; the first, {bad[0].number}: {bad[0].reason}", file=sys.stderr)
    metrics = group_health(found.rollouts, success_at=success_at, source=str(file))
    if metrics["num_lost"] or metrics["num_unscored"]:
        why = f"{metrics['num_lost']} that infrastructure ended, {metrics['num_unscored']} without a reward"
        print(f"left out: {why}, of {len(found.rollouts)} rollouts", file=sys.stderr)
    print(json.dumps(metrics, sort_keys=True, indent=2) if as_json else _table(metrics))


def _table(metrics: Mapping[str, float]) -> str:
    width = max(len(name) for name in metrics)
    return "\n".join(
        f"{name:<{width}}  {value:>10.4f}" if isinstance(value, float) else f"{name:<{width}}  {value:>10}"
        for name, value in metrics.items()
    )
