"""What each method credits the nine groups of eight episodes with, of which 0 to 8 are right and
earn 1: the advantage of a right and of a wrong one. `python -m benchmarks.advantages [--json]`.

Each group is a step of its own, of a task that was never played before.
"""

import argparse
import json
from collections.abc import Iterator

import numpy as np

from benchmarks.methods import CREDITS, credit_of
from posttrain.rl.credit.episode import episode_advantages
from posttrain.rl.credit.groups import Group
from posttrain.rl.credit.history import TaskHistory

GROUP_SIZE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a list of objects: method, k, right, wrong")
    found = list(table())
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
        return
    for name in CREDITS:
        rows = [row for row in found if row["method"] == name]
        print(f"{name:15}" + "".join(f"{_told(row['right']):>8}/{_told(row['wrong']):<8}" for row in rows))


def table() -> Iterator[dict[str, float | int | str | None]]:
    """A row for each method and each k; None where the group has no such episode."""
    for name in CREDITS:
        for num_right in range(GROUP_SIZE + 1):
            rewards_G = np.array([1.0] * num_right + [0.0] * (GROUP_SIZE - num_right))
            group = Group("new", rewards_G, rewards_G == 1)
            [advantages_G] = episode_advantages([group], credit_of(name), TaskHistory(0.0))
            yield {
                "method": name,
                "k": num_right,
                "right": float(advantages_G[0]) if num_right else None,
                "wrong": float(advantages_G[-1]) if num_right < GROUP_SIZE else None,
            }


def _told(value: float | int | str | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
