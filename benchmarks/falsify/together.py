"""Kills DVC, its watchdog and the stage in one moment, as a stopped container or a lack of memory
does; the documented command must be all that is needed."""

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.falsify.trials import show
from benchmarks.toy_tree import Oracle, dvc, environment, make_tree
from posttrain.provenance.lockfile import lock_entries, read_entries

RWLOCK = ".dvc/tmp/rwlock"
VERIFY = [sys.executable, "-m", "posttrain.cli.main", "verify"]


def try_together(num: int, seed: int) -> list[dict[str, Any]]:
    """Each trial edits the source, starts `dvc repro` and kills all at a random moment: any, while
    `dvc.lock` is written, or while the list of readers and writers is, where that file is left
    empty or cut off, as DVC leaves it between emptying and filling it. `is_mended`: the documented
    command found something to mend."""
    draw, results = random.Random(seed), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as folder:
        root, oracle = make_tree(Path(folder) / "tree"), Oracle()
        for path in ("stages/make.py", "stages/refine.py", "stages/judge.py"):
            oracle.learn((root / path).read_text())
        oracle.learn_words("word")
        for number in range(num):
            (root / "data/source").write_text(text := f"source {number}\n")
            oracle.learn(text)
            results.append(_trial(root, oracle, draw, text))
            show(number, results[-1])
    return results


def _trial(root: Path, oracle: Oracle, draw: random.Random, text: str) -> dict[str, Any]:
    moment = draw.choice(["any", "dvc.lock", "rwlock", "rwlock"])
    command = [sys.executable, "-m", "dvc", "repro"]
    log = (root.parent / "log").open("w+")
    process = subprocess.Popen(command, cwd=root, env=environment(), stdout=log, stderr=subprocess.STDOUT)
    deadline_s = time.monotonic() + draw.uniform(0.5, 4.0)
    stage = draw.choice(["make", "refine", "judge@first"])
    while process.poll() is None and time.monotonic() < deadline_s:
        if moment == "dvc.lock" and (root / f".posttrain/receipts/{stage}.json").exists():
            time.sleep(draw.uniform(0.0, 0.3))
            break
        time.sleep(0.001)
    killed = _kill_all(process)
    process.wait()
    if moment == "rwlock" and (root / RWLOCK).exists():
        content = (root / RWLOCK).read_text()
        (root / RWLOCK).write_text(content[: draw.choice([0, 0, draw.randrange(len(content) or 1)])])
    verified = subprocess.run(VERIFY, cwd=root, env=environment(), capture_output=True, text=True, check=False)
    again = dvc(root, "repro")
    is_whole = read_entries((root / "dvc.lock").read_text()) is not None if again.returncode == 0 else False
    left = [path.name for path in root.iterdir() if path.name.endswith(".partial")]
    left += [path.name for path in (root / "reports").glob(".*.partial")]
    false = oracle.false_entries(lock_entries(root)) if is_whole else ["dvc.lock is not whole"]
    is_made = is_whole and text in (root / "data/refined").read_text()
    return {
        "moment": moment,
        "killed": killed,
        "verify": verified.returncode,
        "is_mended": bool(verified.stderr),
        "again": again.returncode,
        "left": left,
        "false": false if is_made else [*false, "data/refined is not of the last source"],
        "said": "" if again.returncode == 0 else verified.stderr + again.stdout,
    }


def _kill_all(process: subprocess.Popen[bytes]) -> list[str]:
    """Kill DVC, its processes, and the watchdog that outlives it otherwise; gives their names."""
    victims = list[psutil.Process]()
    with contextlib.suppress(psutil.NoSuchProcess):
        victims += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "posttrain.provenance.lock_watchdog" in words and str(process.pid) in words:
            victims.append(one)
    names = list[str]()
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = victim.cmdline()
            victim.kill()
            names.append(" ".join(words[words.index("-m") + 1 :][:1]) if "-m" in words else words[0] if words else "?")
    for victim in victims:
        with contextlib.suppress(psutil.Error):
            victim.wait(10)
    return names
