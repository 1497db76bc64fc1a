"""Digests of what this processor computes, under several settings and beside another processor's.

Every setting computes in a process of its own, since libraries look at their environment when they
are loaded; of several rounds the settings take turns, and the seconds are medians. With `--emulate`
the processes run in QEMU's user mode on a processor of that name (`qemu-x86_64 -cpu help` lists
them): it rounds as IEEE 754 says, has AVX2 and FMA, and no AVX-512. Its `rsqrtps` is exact, which
no maker's is: a square root that begins with one differs there and need not between two processors.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bytes.settings import Setting, settings

# what of the shell's own environment would be a setting beside the one that is measured
_OURS = ("MKL_", "OMP_", "ATEN_", "ONEDNN_", "DNNL_", "OPENBLAS_", "NPY_")
Table = dict[str, dict[str, str]]  # digest of each setting and operation or training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, for an emulator")
    parser.add_argument("--only", choices=["operations", "trainings"])
    parser.add_argument("--settings", nargs="+", metavar="SETTING", help=f"of {', '.join(settings(''))}")
    parser.add_argument("--rounds", type=int, default=1, help="of the trainings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--emulate", metavar="CPU", help="such as EPYC, Haswell or Skylake-Client")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the digests and seconds there")
    parser.add_argument("--against", type=Path, nargs="+", default=[], metavar="FILE", help="of another processor")
    arguments = parser.parse_args()
    run = _Runner(arguments.emulate, arguments.quick, arguments.threads)
    processor = run.child("processor", Setting())
    chosen = _chosen(parser, arguments.settings, processor["cpu_name"])
    print(f"{_called(processor, arguments.emulate)}: {', '.join(processor['instruction_sets'])}")
    for name, setting in chosen.items():
        pairs = [f"{key}={value}" for key, value in setting.environment.items()]
        print(f"  {name:12} {' '.join([*pairs, *['Intel branch'] * setting.takes_intel_branch]) or '-'}")
    digests, seconds = _measured(run, chosen, arguments.only, arguments.rounds)
    if arguments.json:
        found = {
            "processor": processor,
            "emulated": arguments.emulate,
            "threads": arguments.threads,
            "settings": {name: asdict(setting) for name, setting in chosen.items()},
            "digests": digests,
            "seconds": seconds,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(render(digests, seconds))
    for file in arguments.against:
        other = json.loads(file.read_text(encoding="utf-8"))
        print(f"against {_called(other['processor'], other['emulated'])}, {other['threads']} thread(s)")
        print("\n".join(compare(digests, other["digests"])))


def compare(ours: Table, theirs: Table) -> list[str]:
    """A line for each setting that both have: what of the rows of both is equal, and what is
    not."""
    lines = []
    for setting in (name for name in ours if name in theirs):
        both = [row for row in ours[setting] if row in theirs[setting]]
        other = [row for row in both if ours[setting][row] != theirs[setting][row]]
        named = f"; not {', '.join(other)}" if other else ""
        lines.append(f"  {setting:12} {len(both) - len(other)} of {len(both)} equal{named}")
    return lines


def render(digests: Table, seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A row for each operation or training, a column for each setting; medians of seconds below."""
    names = list(digests)
    lines = [f"  {'':24}" + "".join(f"{name:>15}" for name in names)]
    for row in digests[names[0]]:
        lines.append(f"  {row:24}" + "".join(f"{digests[name][row]:>15}" for name in names))
    for row in seconds[names[0]]:
        medians = "".join(f"{statistics.median(seconds[name][row]):15.2f}" for name in names)
        lines.append(f"  {row + ', s':24}{medians}")
    return "\n".join(lines)


class _Runner:
    """Starts the processes that compute: on this processor, or on one that is emulated."""

    def __init__(self, emulated: str | None, is_quick: bool, num_threads: int) -> None:
        self._emulator = ["qemu-x86_64", "-cpu", emulated] if emulated else []
        self._options = ["--threads", str(num_threads), *["--quick"] * is_quick]
        self._num_threads = str(num_threads)

    def child(self, part: str, setting: Setting) -> dict[str, Any]:
        options = [*self._options, *["--intel-branch"] * setting.takes_intel_branch]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), self._num_threads)
        done = subprocess.run(
            [*self._emulator, sys.executable, "-m", "benchmarks.bytes.child", part, *options],
            env={**inherited, **threads, "TOKENIZERS_PARALLELISM": "false", **setting.environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def _called(processor: Mapping[str, Any], emulated: str | None) -> str:
    return f"{processor['cpu_name']}{f' (QEMU, {emulated})' if emulated else ''}"


def _chosen(parser: argparse.ArgumentParser, names: Sequence[str] | None, cpu_name: str) -> dict[str, Setting]:
    known = settings(cpu_name)
    if unknown := set(names or ()) - set(known):
        parser.error(f"no setting {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return {name: known[name] for name in names or known}


def _measured(
    run: _Runner,
    chosen: Mapping[str, Setting],
    only: str | None,
    num_rounds: int,
) -> tuple[Table, dict[str, dict[str, list[float]]]]:
    """The digests, and the seconds of every round; where a round made other bytes, it says so."""
    digests: Table = {name: {} for name in chosen}
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in chosen}
    for part in ("operations", "trainings"):
        for _ in range(0 if only not in (None, part) else num_rounds if part == "trainings" else 1):
            for name, setting in chosen.items():
                result = run.child(part, setting)
                for row, made in result["digests"].items():
                    if digests[name].setdefault(row, made) != made:
                        digests[name][row] = "varies"
                for row, taken_s in result["seconds"].items():
                    seconds[name].setdefault(row, []).append(taken_s)
    return digests, seconds


if __name__ == "__main__":
    main()
