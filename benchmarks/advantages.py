"""Prints the advantages that each method gives a right and a wrong episode of a group of eight, of
which 0 to 8 are right and earn 1. `python -m benchmarks.advantages [--json]`.

Each group is a step of its own, of a task that was never played before. An episode is one turn of
one token, whose entropy is 0.5; its one score is what it earns.
"""

import argparse
import json
from collections.abc import Iterator

import numpy as np

from benchmarks.methods import CREDITS, credit_of
from posttrain.train.advantages.credit import Credit, StepContext
from posttrain.train.advantages.groups import FloatArray, Group, Turn

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
            advantages_G = _credited(name, np.array([1.0] * num_right + [0.0] * (GROUP_SIZE - num_right)))
            yield {
                "method": name,
                "k": num_right,
                "right": advantages_G[0] if num_right else None,
                "wrong": advantages_G[-1] if num_right < GROUP_SIZE else None,
            }


def _credited(name: str, rewards_G: FloatArray) -> list[float]:
    turns_G = [[Turn(1, "start", None)]] * GROUP_SIZE
    group = Group("new", rewards_G, rewards_G == 1, turns_G, {"reward": rewards_G})
    entropies = [[np.array([0.5])] * GROUP_SIZE]
    context = StepContext(score_weights={"reward": 1.0}, entropies=entropies)
    credit = credit_of(name)
    assert isinstance(credit, Credit)  # a critic's needs a model
    [found_G] = credit.token_advantages([group], context)
    return [float(of_tokens[0]) for of_tokens in found_G]


def _told(value: float | int | str | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
