"""Measures what the default pipeline costs: seconds and peak memory of every stage, run from
nothing in a copy of the checkout.

Forced, because evaluations are committed: where training gives the committed models again, DVC
would not run them. The last row is the whole `dvc repro`: its wall time, DVC's own share included,
and the largest peak of any stage.
"""

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.arms import clone_checkout, environment_of
from posttrain.provenance.costs import read_costs


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder:
        copy = clone_checkout(Path(folder) / "copy")
        started_s = time.monotonic()
        subprocess.run(
            ["dvc", "repro", "--force"], cwd=copy, env=environment_of(copy), check=True, stdout=subprocess.DEVNULL
        )
        total_s = time.monotonic() - started_s
        costs = read_costs(copy)
    print(f"{'stage':22} {'seconds':>8} {'peak MiB':>9}")
    for cost in costs:
        print(f"{cost.stage:22} {cost.seconds:8.1f} {cost.peak_mib:9.0f}")
    print(f"{'dvc repro':22} {total_s:8.1f} {max(cost.peak_mib for cost in costs):9.0f}")


if __name__ == "__main__":
    main()
