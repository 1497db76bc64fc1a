"""Edits of more than one input: replaces over hidden folders, trees that git restores under a
running stage, two clones with one cache, entries that no run made."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.arms import REPOSITORY
from benchmarks.falsify.trials import POLL_S, show
from benchmarks.toy_tree import Oracle, commit, dvc, environment, make_tree
from posttrain.provenance.cache_integrity import VERIFIED, cache_folder, common_cache
from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.provenance.lockfile import lock_entries

KINDS = ("replace", "replace", "clones", "clones, watchdog killed", "commit", "hand-written")
_REPLACES = {
    "grep | sed": 'grep -rl "= \'{old}" . | xargs sed -i "s/= \'{old}/= \'{new}/"',
    "find -exec": "find . -name '*.py' -exec sed -i \"s/= '{old}/= '{new}/\" {{}} +",
    "git grep | sed": 'git grep -l "= \'{old}" | xargs sed -i "s/= \'{old}/= \'{new}/"',
    "editor": "",  # follows links, writes in place
}


class Reaches:
    """Trials on two clones of a toy tree, which share a cache; each begins with both up to date in
    `make`, the one stage that is run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random, self._oracle, self._number = random.Random(seed), Oracle(), seed * 100_000
        self._here, self._there = make_tree(folder / "a"), folder / "b"
        for path in ("stages/make.py", "data/source"):
            self._oracle.learn((self._here / path).read_text())
        self._oracle.learn_words("word")
        assert dvc(self._here, "cache", "dir", str(folder / "shared")).returncode == 0
        commit(self._here, "shared")
        subprocess.run(["cp", "-a", str(self._here), str(self._there)], check=True)
        self._write(self._here, "word1")
        for root in (self._here, self._there):
            assert dvc(root, "repro", "make").returncode == 0

    def trial(self, kind: str) -> dict[str, Any]:
        began = time.monotonic()
        match kind:
            case "replace":
                found = self._replace()
            case "clones" | "clones, watchdog killed":
                found = self._clones(is_killed=kind != "clones")
            case _:
                found = self._unproven(kind)
        return {"kind": kind, **found, "seconds": round(time.monotonic() - began, 1)}

    def _replace(self) -> dict[str, Any]:
        """A replace at a random moment of the run; git takes it back in the tree, which the copy
        does not see."""
        root, old, new = self._here, f"word{self._next()}", f"edit{self._number}"
        self._write(root, old)
        self._oracle.learn_words(new)
        commit(root, old)
        name = self._random.choice(list(_REPLACES))
        process = self._start(root)
        _wait(process, (root / ".posttrain/frozen/make").exists)
        time.sleep(self._random.uniform(0.0, 1.0))
        is_in_time = process.poll() is None
        if name == "editor":
            _edit_in_place(root, f"= '{old}", f"= '{new}")
        else:
            subprocess.run(_REPLACES[name].format(old=old, new=new), shell=True, cwd=root, check=False)
        time.sleep(self._random.choice([0.0, 0.1, 0.5]))
        subprocess.run(["git", "checkout", "--quiet", "."], cwd=root, check=True)
        said, _ = process.communicate(timeout=120)
        first = self._false(root)
        again = dvc(root, "repro", "make")
        return {
            "what": name,
            "in_time": is_in_time,
            "first": process.returncode,
            "seen": "changed in the copy" in said,
            "false": [*first, *self._false(root), *(["not made again"] if again.returncode else [])],
        }

    def _clones(self, *, is_killed: bool) -> dict[str, Any]:
        """An input of the one clone is edited as soon as its stage has looked for the last time;
        the other, which has that value, runs meanwhile."""
        made, edited = f"word{self._next()}", f"word{self._next()}"
        self._write(self._there, made)
        self._write(self._here, edited)
        _verify(self._there)  # no receipt of an earlier trial
        first = self._start(self._there)
        _wait(first, (self._there / ".posttrain/receipts/make.json").exists)
        self._write(self._there, edited)
        victim = self._kill_watchdog(first) if is_killed else ""
        time.sleep(self._random.choice([0.0, 0.0, 0.05, 0.2, 0.5]))
        second = self._start(self._here)
        for process in (first, second):
            process.communicate(timeout=120)
        after = self._false(self._here)
        code = _verify(self._there).returncode
        return {
            "what": victim,
            "first": [first.returncode, second.returncode],
            "seen": code != 0,
            "false": [*after, *self._false(self._there)],
        }

    def _unproven(self, kind: str) -> dict[str, Any]:
        """An entry that no run made: `posttrain verify` names it, and is content when the stage has
        been run again."""
        root = self._here
        if kind == "commit":
            what = self._random.choice(["ours/words.py", "data/source", "seed"])
            self._edit(root, what)
            dvc(root, "commit", "--force", "make")
        else:
            what = self._random.choice(["data/made/one", "data/made/two"])
            (root / what).write_text(f"forged {self._next()}")
            dvc(root, "commit", "--force", "make")
        verified = _verify(root)
        again = dvc(root, "repro", "--force", "make")
        code = _verify(root).returncode
        is_named = verified.returncode == 65 and "make" in verified.stderr
        return {
            "what": what,
            "first": verified.returncode,
            "seen": is_named,
            "false": [*(["not named"] * (not is_named)), *(["not made again"] if again.returncode or code else [])],
        }

    def _edit(self, root: Path, what: str) -> None:
        if what == "ours/words.py":
            self._write(root, f"word{self._next()}")
        elif what == "seed":
            path = root / "params.yaml"
            lines = path.read_text().splitlines(keepends=True)
            place = next(number for number, line in enumerate(lines) if line.startswith("seed: "))
            lines[place] = f"seed: {self._next()}\n"
            path.write_text("".join(lines))
        else:
            (root / what).write_text(self._text(f"{what} {self._next()}\n"))

    def _text(self, text: str) -> str:
        self._oracle.learn(text)
        return text

    def _write(self, root: Path, word: str) -> None:
        (root / "ours/words.py").write_text(self._oracle.learn_words(word))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _start(self, root: Path, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dvc", "repro", "make"]
        return subprocess.Popen(
            command,
            cwd=root,
            env=environment(PYTHONPATH=str(REPOSITORY), **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _kill_watchdog(self, process: subprocess.Popen[str]) -> str:
        for watchdog in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                words = watchdog.info["cmdline"] or []
                if "posttrain.provenance.lock_watchdog" in words and str(process.pid) in words:
                    watchdog.kill()
                    return "watchdog killed"
        return "no watchdog"

    def _false(self, root: Path) -> list[str]:
        """Entries of `dvc.lock`, of the tree's own run cache, and of what all trees take over."""
        make = {name: entry for name, entry in lock_entries(root).items() if name == "make"}
        cache = cache_folder(root)
        false = self._oracle.false_entries(make)
        for place in (cache / "runs", common_cache(cache) / VERIFIED):
            for run in [load_as_dvc(path.read_text()) for path in place.glob("*/*/*")]:
                false += [f"{place.name}: {name}" for name in self._oracle.false_entries({"make": run})]
        return false


def _wait(process: subprocess.Popen[str], is_time: Callable[[], bool]) -> None:
    while process.poll() is None and not is_time():
        time.sleep(POLL_S)


def _verify(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from posttrain.cli.main import app; app(['verify'])"]
    more = environment(PYTHONPATH=str(REPOSITORY))
    return subprocess.run(command, cwd=root, env=more, capture_output=True, text=True, check=False)


def _edit_in_place(root: Path, old: str, new: str) -> None:
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if name != ".git"]
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if name.endswith(".py") and old in (text := path.read_text()):
                    path.write_text(text.replace(old, new))


def try_reaches(num: int, seed: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as folder:
        reaches = Reaches(Path(folder), seed)
        for number in range(num):
            found.append(reaches.trial(KINDS[number % len(KINDS)]))
            show(number, found[-1])
    return found
