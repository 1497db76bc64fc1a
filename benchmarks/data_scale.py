"""How seconds and memory of the data stages grow with the demonstrations: validation, features,
coreset and the planning of new rows, each in a process of its own.

The rows are the raw demonstrations of this checkout again and again, each copy with ids, digits and
words of its own, about 5 kB each: `python -m benchmarks.data_scale --rows 10000 100000 1000000
--json out.json`. Up to `--peer-rows` named peers do the same job in the same run: validation and
features with the whole file as one batch, a coreset by NumPy's greedy k-centre over all rows (and
by submodlib's facility location, where `--submodlib` names a Python that has it), new rows by
imbalanced-learn's SMOTE and scikit-learn's search through all rows. `ratio` is the peer's figure
through ours.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY
from posttrain.provenance.costs import processor_kind

# Of each step: what is measured, and its peers.
STEPS = {
    "validation": ("validation whole",),
    "features": ("features whole",),
    "coreset of 0.9": ("coreset of 0.9 numpy",),
    "coreset of 1 in 20": ("coreset of 1 in 20 numpy", "coreset of 1 in 20 submodlib"),
    "smote": ("smote whole",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--peer-rows", type=int, default=10_000, help="peers do the job up to so many rows")
    parser.add_argument("--submodlib", default="", help="a Python that has submodlib, in an environment of its own")
    parser.add_argument("--folder", type=Path, help="for the files, 1 GB a million rows; a temporary one otherwise")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    chosen = parser.parse_args()
    results: dict[str, Any] = {"processor": processor_kind(), "cores": os.cpu_count(), "commit": _commit(), "rows": {}}
    print(f"{results['processor']}, {results['cores']} cores, commit {results['commit']}")
    print(f"{'rows':>9}  {'step':30} {'seconds':>8} {'peak MiB':>9}", flush=True)
    for num_rows in chosen.rows:
        with tempfile.TemporaryDirectory(prefix="posttrain-scale-", dir=chosen.folder) as folder:
            found = results["rows"][str(num_rows)] = {"file": _run("file", num_rows, folder)}
            for step, peers in STEPS.items():
                found[step] = _run(step, num_rows, folder)
                for peer in peers if num_rows <= chosen.peer_rows else ():
                    if not peer.endswith("submodlib") or chosen.submodlib:
                        found[peer] = _run(peer, num_rows, folder, chosen.submodlib)
                        _tell_ratio(found[step], found[peer])
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _run(step: str, num_rows: int, folder: str, submodlib: str = "") -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.data_scale_step", step, str(num_rows), folder, submodlib]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    more = "  ".join(f"{name} {value:.6g}" for name, value in found.items() if name not in ("seconds", "peak_mib"))
    print(f"{num_rows:9,}  {step:30} {found['seconds']:8.1f} {found['peak_mib']:9.0f}  {more}", flush=True)
    return found


def _tell_ratio(ours: dict[str, float], peers: dict[str, float]) -> None:
    ratios = {name: peers[name] / ours[name] for name in ours if name in peers and ours[name]}
    peers["ratio"] = ratios["seconds"]
    print(f"{'':9}  {'ratio':30} {'  '.join(f'{name} {value:.3f}' for name, value in ratios.items())}", flush=True)


def _commit() -> str:
    """The short name of the last one; with `+` where the tree has changed since."""
    name, changes = (
        subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
        for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain"))
    )
    return name + "+" * bool(changes)


if __name__ == "__main__":
    main()
