"""Edits inputs at random moments of a run; an oracle knows the true inputs of each result."""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY
from benchmarks.falsify.trials import COMMANDS, POLL_S, show
from benchmarks.toy_tree import Oracle, dvc, environment, make_tree, without_receipts
from posttrain.provenance.lockfile import lock_entries, read_entries
from posttrain.provenance.run_cache import read_runs

READERS = {
    "lr": ("judge@first", "judge@second"),
    "data/made/one": ("refine",),
    "data/refined": ("judge@first", "judge@second"),
}  # others: make


class Edits:
    """Trials on one toy tree, one after the other; each begins with everything up to date."""

    def __init__(self, folder: Path, seed: int, *, has_receipts: bool = True) -> None:
        self._path = [str(REPOSITORY)] if has_receipts else [str(without_receipts(folder / "without")), str(REPOSITORY)]
        self._random = random.Random(seed)
        self._root, self._oracle = make_tree(folder / "tree"), Oracle()
        for path in ("stages/make.py", "stages/refine.py", "stages/judge.py", "data/source"):
            self._oracle.learn((self._root / path).read_text())
        self._oracle.learn_words("word")
        self._number = seed * 100_000
        assert dvc(self._root, "repro").returncode == 0
        self._false()  # else the oracle would not know the first outputs of `make` once these have changed

    def trial(self, way: str) -> dict[str, Any]:
        """Edit an input so that there is something to run, start the command, edit at a random
        moment, and run the command again."""
        self._change(
            self._random.choice(["seed", "data/source", "ours/words.py", "stages/make.py"])
        )()  # so that all stages run
        what, manner = (
            self._any_input(may_be_out=True),
            self._random.choice(["write", "rename", "write and back", "swap and back"]),
        )
        moment, name = self._moment(way, self._random.choice(READERS.get(what, ("make",))))
        edit = self._manner(what, manner)
        process = self._start(way)
        while process.poll() is None and not moment():
            time.sleep(POLL_S)
        is_in_time = process.poll() is None
        edit()
        said, _ = process.communicate(timeout=120)
        after_first = self._false()
        again = [self._run(way) for _ in range(2)]  # the first may be refused for what was edited back under it
        return {
            "way": way,
            "what": what,
            "manner": manner,
            "moment": name,
            "in_time": is_in_time,
            "first": process.returncode,
            "corrected": "dvc.lock said that" in said,
            "refused": "changed while the stage ran" in said or "superseded" in said,
            "false_after_first": after_first,
            "false_after_next": self._false(),
            "again": [one.returncode for one in again],
            "said": ""
            if again[-1].returncode == 0 and not self._false()
            else said + "".join(one.stdout for one in again),
        }

    def _any_input(self, *, may_be_out: bool = False) -> str:
        return self._random.choice(
            [
                "seed",
                "lr",
                "data/source",
                "ours/words.py",
                "stages/make.py",
                *(["data/made/one", "data/refined"] * may_be_out),
            ]
        )

    def _change(self, what: str) -> Callable[[], str]:
        """Writes a content that was never there before; gives the one before."""
        self._number += 1
        path = self._root / ("params.yaml" if what in ("seed", "lr") else what)

        def new(old: str) -> str:
            match what:
                case "seed":
                    return (
                        "".join([f"seed: {self._number}", old[old.index(" ", old.index("seed: ") + 6) :]])
                        if old.startswith("seed")
                        else _with(old, "\nseed: ", self._number)
                    )
                case "lr":
                    place = old.index("\ntrain_sft:")
                    return old[:place] + _with(old[place:], "\n  lr: ", f"{self._number}.0e-9")
                case "ours/words.py":
                    return self._oracle.learn_words(f"word{self._number}")
                case "stages/make.py":
                    return old + "# edited\n" * (1 + self._number % 3)
                case _:
                    return f"{what} {self._number}\n"

        def change() -> str:
            try:
                old = path.read_text()
            except FileNotFoundError:  # an output that is being made again
                return ""
            text = new(old)
            self._oracle.learn(text)
            if what == "data/made/one":
                self._oracle.learn_one(text)
            path.write_text(text)
            return old

        return change

    def _manner(self, what: str, manner: str) -> Callable[[], None]:
        path = self._root / ("params.yaml" if what in ("seed", "lr") else what)
        change, delay_s = self._change(what), self._random.uniform(0.0, 1.5)

        def act() -> None:
            aside = Path(tempfile.mkdtemp(dir=self._root.parent))  # no input lies there
            with contextlib.suppress(FileNotFoundError):
                if manner in ("write", "write and back"):
                    old = change()
                else:  # the old file is another's by now, with its time and its name's inode kept
                    shutil.copy2(path, aside / "copy")
                    path.rename(aside / "old")
                    (aside / "copy").rename(path)
                    old = change()
                if manner.endswith("back"):
                    time.sleep(delay_s)
                    if manner == "write and back" and old:
                        path.write_text(old)
                    elif manner == "swap and back":
                        (aside / "old").replace(path)
            shutil.rmtree(aside)

        return act

    def _moment(self, way: str, stage: str) -> tuple[Callable[[], bool], str]:
        """One in which something goes on with `stage`, or any."""
        started = time.monotonic()
        after_s = self._random.uniform(0.0, 4.0 if way == "repro" else 7.0)
        extra_s = self._random.choice([0.0, 0.0, 0.02, 0.1, 0.3, 0.6])
        seen: list[float] = []

        def once(pattern: str) -> Callable[[], bool]:
            def is_time() -> bool:
                if not seen and any((self._root / ".posttrain").glob(pattern)):
                    seen.append(time.monotonic())
                return bool(seen) and time.monotonic() >= seen[0] + extra_s

            return is_time

        anytime = (lambda: time.monotonic() > started + after_s, "any time")
        if way == "flow":
            return self._random.choice(
                [anytime, (once(f"snapshots/{stage}-*"), "in a job"), (once("snapshots/.*"), "while it is frozen")]
            )
        look = (once(f"receipts/{stage}.json"), "after the last look")
        copied = (once(f"frozen/{stage}"), "while it is frozen")
        return self._random.choice(
            [anytime, look, look, copied, (once(f"frozen/{stage}/params.yaml"), "while it is imported")]
        )

    def _start(self, way: str) -> subprocess.Popen[str]:
        variables = environment(PYTHONPATH=os.pathsep.join(self._path))
        return subprocess.Popen(
            COMMANDS[way], cwd=self._root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _run(self, way: str) -> subprocess.CompletedProcess[str]:
        process = self._start(way)
        said, _ = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, said)

    def _false(self) -> list[str]:
        text = (self._root / "dvc.lock").read_text()
        assert read_entries(text) is not None, "dvc.lock is not whole"
        false = self._oracle.false_entries(lock_entries(self._root))
        for run in read_runs(self._root):
            stage = run["cmd"].split()[3:]
            if stage[0] in ("make", "refine"):
                false += [f"run cache: {name}" for name in self._oracle.false_entries({stage[0]: run})]
        return false


def _with(text: str, before: str, value: object) -> str:
    """The first value that stands behind `before`, replaced."""
    start = text.index(before) + len(before)
    end = min(place for place in (text.find(" ", start), text.find("\n", start)) if place >= 0)
    return f"{text[:start]}{value}{text[end:]}"


def try_edits(num: int, seed: int, jobs: int, *, has_receipts: bool = True) -> list[dict[str, Any]]:
    def some(job: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as folder:
            edits = Edits(Path(folder), seed * 100 + job, has_receipts=has_receipts)
            for number in range(job, num, jobs):
                found.append(edits.trial("flow" if number % 4 == 3 else "repro"))
                show(number, found[-1])
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return [one for found in pool.map(some, range(jobs)) for one in found]
