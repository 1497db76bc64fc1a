"""Runs the parts one after the other, each in a process of its own with a bound on its time, and
writes `reports/gpu/<device>.json` after each, so that a machine that is taken away leaves what was
found.

    python -m benchmarks.gpu [--parts tokens,memory] [--seconds 60] [--small] [--to FOLDER]

Other parts of an earlier run on the same device stay in the file. `--small` is for trying the
parts on a machine without a GPU: tiny models, figures without worth, under `cpu.json`.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import Any

import accelerate
import torch
import transformers
import trl

from benchmarks.gpu.parts import FOUND, PARTS, Part

ROOT = Path(__file__).resolve().parents[2]
NUM_LAST_LINES = 15


def main() -> None:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        "benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(names), help="some of them, in this order")
    parser.add_argument("--seconds", type=float, help="for each part, instead of its own")
    parser.add_argument("--small", action="store_true", help="to try the parts themselves")
    parser.add_argument("--to", type=Path, default=ROOT / "reports" / "gpu", help="the folder of the record")
    given = parser.parse_args()
    if unknown := set(given.parts.split(",")) - set(names):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not torch.cuda.is_available() and not given.small:
        parser.error("PyTorch sees no CUDA device: this is for a machine that has one (--small tries the parts)")
    chosen = [part for part in PARTS if part.name in given.parts.split(",")]
    print(f"record: {run(chosen, given.to, is_small=given.small, seconds=given.seconds)}")


def run(parts: Sequence[Part], folder: Path, *, is_small: bool, seconds: float | None = None) -> Path:
    """The record, a file in `folder`. A part that fails or outlasts its time ends no other."""
    device = _device()
    record = folder / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    known = json.loads(record.read_text(encoding="utf-8"))["parts"] if record.exists() else {}
    with tempfile.TemporaryDirectory(prefix="posttrain-gpu-") as ground:
        for part in parts:
            print(f"== {part.name}: {part.shows}", flush=True)
            known[part.name] = {**_run(part, Path(ground), is_small=is_small, seconds=seconds), **_origin()}
            told = {"device": device, "is_small": is_small, "parts": known}
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            print(f"   {known[part.name]['ended']}, {known[part.name]['seconds']} s", flush=True)
    return record


def _run(part: Part, ground: Path, *, is_small: bool, seconds: float | None) -> dict[str, Any]:
    limit = part.seconds if seconds is None else seconds
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.part", part.name, str(ground)]
    command += ["--small"] if is_small else []
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    began, found, others = time.monotonic(), [], []
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams) as process:
        watch = Timer(limit, os.killpg, (process.pid, signal.SIGKILL))  # with what it has started
        watch.start()
        for line in process.stdout or ():
            if line.startswith(FOUND):
                found.append(json.loads(line.removeprefix(FOUND)))
                print(f"   {line.removeprefix(FOUND)}", end="", flush=True)
            else:
                others.append(line.rstrip())
        process.wait()
        watch.cancel()
    ended = {0: "in time", -signal.SIGKILL: "at its limit"}.get(
        process.returncode, f"with exit code {process.returncode}"
    )
    result = {"ended": ended, "seconds": round(time.monotonic() - began, 1), "limit_s": limit, "found": found}
    return result if ended == "in time" else result | {"last_lines": others[-NUM_LAST_LINES:]}


def _device() -> str:
    """Asked in another process: a context of this one's would count as memory that parts take."""
    if not torch.cuda.is_available():
        return "cpu"
    command = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _origin() -> dict[str, str]:
    """Origin of a part's figures: when, by which code and versions."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, trl, accelerate)}
    return {
        "commit": head.stdout.strip() or "not in a repository",
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **versions,
    }


if __name__ == "__main__":
    main()
