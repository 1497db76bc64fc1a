"""One part by itself: `python -m benchmarks.gpu.part NAME FOLDER [--small]`."""

import argparse
import importlib
import json
from pathlib import Path

from benchmarks.gpu.ground import Ground
from benchmarks.gpu.parts import FOUND


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.gpu.part", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path, help="for what parts leave to each other")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    part = importlib.import_module(f"benchmarks.gpu.{given.name}")
    for found in part.find(Ground(given.folder, is_small=given.small)):
        print(FOUND + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
