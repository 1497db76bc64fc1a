"""How long a comparison of branches takes, beside `dvc exp show` on the same repository.

Made-up branches, each with results of its own (a megabyte): 100 of them to JSON, and 20 settings of
5 seeds to the page. Every command is a process of its own, timed from the start of Python on, in
turns; the median is told.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.branches import Branch, make_repository
from posttrain.provenance.costs import processor_kind

NUM_BRANCHES, NUM_SETTINGS, NUM_SEEDS = 100, 20, 5


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.compare", description="Branches compared, against `dvc exp show`.")
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory(prefix="posttrain-compare-") as folder:
        repositories = {name: Path(folder) / name for name in ("alone", "settings")}
        alone = [
            Branch(f"exp/{index}", index, 0.8, {"train_sft.lr": 1e-3 + index / 1e5}) for index in range(NUM_BRANCHES)
        ]
        settings = [
            Branch(f"exp/{index}-seed{seed}", seed, 0.8 + index / 200, {"train_sft.lr": 1e-3 + index / 1e5})
            for index in range(NUM_SETTINGS)
            for seed in range(1, NUM_SEEDS + 1)
        ]
        for root, branches in zip(repositories.values(), (alone, settings), strict=True):
            make_repository(root, [Branch("main"), *branches], has_graph=True)
            subprocess.run(["git", "checkout", "--quiet", "main"], cwd=root, check=True)
        compare = [sys.executable, "-m", "posttrain.cli.main", "compare"]
        page, found = Path(folder) / "page.html", Path(folder) / "found.json"
        commands = {
            f"posttrain compare, {NUM_BRANCHES} branches to JSON": (
                repositories["alone"],
                [*compare, *(branch.name for branch in alone), "--json", str(found)],
            ),
            f"dvc exp show, {NUM_BRANCHES} branches to JSON": (
                repositories["alone"],
                [sys.executable, "-m", "dvc", "exp", "show", "--all-branches", "--json"],
            ),
            f"posttrain compare, {NUM_SETTINGS} settings of {NUM_SEEDS} seeds to a page": (
                repositories["settings"],
                [*compare, *(branch.name for branch in settings), "--html", str(page)],
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repeat):
            for name, (root, command) in commands.items():
                started_s = time.monotonic()
                subprocess.run(command, cwd=root, check=True, capture_output=True)
                seconds[name].append(time.monotonic() - started_s)
        print(f"{processor_kind()}; median of {repeat}, and the range")
        for name, taken in seconds.items():
            print(f"{name:48} {statistics.median(taken):6.2f} s  ({min(taken):.2f} … {max(taken):.2f})")
        print(f"the page has {page.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
