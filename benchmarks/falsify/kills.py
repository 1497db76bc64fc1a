"""Kills processes at random moments of the whole graph; the next run must reach the same bytes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.arms import environment_of, make_small_copy
from benchmarks.falsify.trials import COMMANDS, POLL_S, show
from posttrain.dispatch.backends.local import END
from posttrain.provenance.lockfile import read_entries


def try_kills(num: int, seed: int) -> list[dict[str, Any]]:
    """Run the graph from nothing, kill something at a random moment, run it again, until it is
    done; then again from nothing.

    Two in five moments are while `dvc.lock` is written or a result recorded, one is right at a
    checkpoint, the rest anywhere. `same`: once the round was done, `dvc.lock` had the bytes of an
    undisturbed run.
    """
    draw, results = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as name:
        root = make_small_copy(Path(name) / "copy")
        done = subprocess.run(
            [*COMMANDS["repro"]], cwd=root, env=_kill_environment(root), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        wanted = (root / "dvc.lock").read_text()
        stages = list(read_entries(wanted) or {})
        killed: Counter[str] = Counter()
        round_number = 0
        while len(results) < num:
            way = "flow" if round_number % 3 == 2 else "repro"
            round_number += 1
            _forget_everything(root)
            left = list(stages)  # of this round, in the order in which they run
            try:
                while (trial := _kill_once(root, way, draw, left if len(results) < num else [])) is not None:
                    left = left[left.index(trial["stage"]) + 1 :]
                    killed[f"{way} {trial['stage']}"] += 1
                    results.append(trial)
                    show(len(results), trial)
                is_same = (root / "dvc.lock").read_text() == wanted
                verdict = "same bytes" if is_same else "OTHER BYTES"
            except AssertionError as error:
                is_same, verdict = False, f"ENDED BADLY\n{error}"
            for trial in results:
                trial.setdefault("same", is_same)
            print(f"round {round_number} by {way}: {verdict}", flush=True)
    print(json.dumps(killed, indent=1))
    return results


def _kill_environment(root: Path) -> dict[str, str]:
    return {
        **environment_of(root),
        "WANDB_MODE": "disabled",
        "POSTTRAIN_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
        "SHELL": "/bin/sh",
    }


def _forget_everything(root: Path) -> None:
    """But what git keeps."""
    for path in (".posttrain", ".dvc/cache", ".dvc/tmp", "dvc.lock"):
        subprocess.run(["rm", "-rf", str(root / path)], check=True)
    subprocess.run(["git", "clean", "-fdxq", "data", "reports"], cwd=root, check=True)


def _kill_once(root: Path, way: str, draw: random.Random, stages: Sequence[str]) -> dict[str, Any] | None:
    """Start the command and kill one of its processes in the first of `stages` that gives an
    occasion; None where it ended before.

    Raises AssertionError where it ends badly by itself.
    """
    log = (root.parent / "log").open("w+")
    process = subprocess.Popen(
        COMMANDS[way],
        cwd=root,
        env=_kill_environment(root),
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    draws = {stage: draw.choice(["running", "running", "checkpoint", "dvc.lock", "recording"]) for stage in stages}
    largest, deadline_s, found = 0, time.monotonic() + 600, ""
    while process.poll() is None and not found and time.monotonic() < deadline_s:
        size = (root / "dvc.lock").stat().st_size if (root / "dvc.lock").exists() else 0
        largest = max(largest, size)
        found = next(
            (stage for stage in stages if _is_at(root, way, stage, draws[stage], is_being_written=size < largest)), ""
        )
        time.sleep(POLL_S)
    if found:
        time.sleep(
            draw.uniform(0.0, {"running": 5.0, "checkpoint": 0.3, "dvc.lock": 0.2, "recording": 0.6}[draws[found]])
        )
    if process.poll() is not None:
        log.seek(0)
        assert process.returncode == 0, log.read()[-4000:]
        return None
    victims = _below(process.pid)
    victim = draw.choice([*victims[:2], *victims])
    name = _name_of(victim)
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()
    if draw.random() < 0.5 and "watchdog" not in name:  # and the command itself with it
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    code = process.wait(300)
    return {"way": way, "stage": found, "moment": draws[found], "killed": name, "code": code}


def _is_at(root: Path, way: str, goal: str, moment: str, *, is_being_written: bool) -> bool:
    state = root / ".posttrain"
    if way == "flow" and moment == "recording":
        return any(state.glob(f"local/jobs/{goal.replace('@', '-')}-*/{END}"))
    if way == "flow":
        return any(state.glob(f"snapshots/{goal}-*"))
    match moment:
        case "running":
            return (state / f"frozen/{goal}").exists()
        case "checkpoint":
            return any(state.glob(f"checkpoints/{goal}/*/checkpoint-*"))
        case "dvc.lock":
            return (state / f"receipts/{goal}.json").exists() and is_being_written
        case _:
            return (state / f"receipts/{goal}.json").exists()


def _below(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return " ".join(words[words.index("-m") + 1 :][:2]) if "-m" in words else " ".join(words[:2])
    return "gone"
