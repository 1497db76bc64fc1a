"""Lists a world's tasks in a process of its own: the section and the counts come in by stdin, and
the last line of stdout has each task as text."""

import json
import sys

from posttrain.world_check.tasks import canonical, listed
from posttrain.worlds.choices import world_params
from posttrain.worlds.domains import make_domain


def main() -> None:
    asked = json.load(sys.stdin)
    tasks = listed(make_domain(world_params(asked["world"])), asked["counts"])
    print(json.dumps({split: [canonical(task) for task in own] for split, own in tasks.items()}))


if __name__ == "__main__":
    main()
