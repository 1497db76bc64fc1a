"""Makes edits that DVC alone does not see: files replaced by others of the same size, time and
inode, and links in folders; after the documented command nothing false is left, and everything is
current."""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.falsify.trials import show
from benchmarks.toy_tree import Oracle, dvc, environment, make_tree
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import lock_entries

VERIFY = [sys.executable, "-m", "posttrain.cli.main", "verify"]
LINKS: dict[str, dict[str, str]] = {
    "none": {},
    "to a folder": {"far": "../data"},
    "two circles": {"up": ".", "again": "."},
    "a far circle": {"up": "..", "again": "../ours"},
}


def try_unseen(num: int, seed: int) -> list[dict[str, Any]]:
    """Each trial begins with everything up to date. A file is replaced before the command, or while
    it runs a stage for another reason; the folder `ours` may hold links. Then `posttrain verify`
    and `dvc repro`."""
    draw, results = random.Random(seed), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as folder:
        root, oracle = make_tree(Path(folder) / "tree"), Oracle()
        for path in ("stages/make.py", "stages/refine.py", "stages/judge.py", "data/source"):
            oracle.learn((root / path).read_text())
        oracle.learn_words("word")
        assert dvc(root, "repro").returncode == 0
        for number in range(num):
            results.append(_trial(root, oracle, draw, number))
            show(number, results[-1])
    return results


def _trial(root: Path, oracle: Oracle, draw: random.Random, number: int) -> dict[str, Any]:
    what, links = draw.choice(["data/source", "ours/words.py", "stages/refine.py"]), draw.choice(list(LINKS))
    moment = draw.choice(["before", "before", "while it runs"])
    for link in (path for path in (root / "ours").iterdir() if path.is_symlink()):
        link.unlink()
    for name, target in LINKS[links].items():
        (root / "ours" / name).symlink_to(target)
    edit = _unseen_edit(root, oracle, what, number)
    if moment == "before":
        edit()
        code = 0
    else:  # another knob has stages run
        params = (root / "params.yaml").read_text()
        start = params.index("\nseed: ") + len("\nseed: ")
        (root / "params.yaml").write_text(f"{params[:start]}{1000 + number}{params[params.index(' ', start) :]}")
        command = [sys.executable, "-m", "dvc", "repro"]
        process = subprocess.Popen(
            command, cwd=root, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(draw.uniform(0.0, 3.0))
        edit()
        code = process.wait(120)
    started_s = time.monotonic()
    verified = subprocess.run(
        VERIFY, cwd=root, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    again = [dvc(root, "repro") for _ in range(2)]
    entries = lock_entries(root)
    deps = {dep["path"]: dep["md5"] for entry in entries.values() for dep in entry["deps"]}
    stale = [path for path, md5 in deps.items() if (root / path).is_file() and md5 != md5_of(root / path)]
    return {
        "what": what,
        "links": links,
        "moment": moment,
        "first": code,
        "verify": verified.returncode,
        "again": [one.returncode for one in again],
        "seconds": round(time.monotonic() - started_s, 1),
        "is_current": "up to date" in again[-1].stdout,
        "false": oracle.false_entries(entries) + stale,
        "said": "" if again[-1].returncode == 0 and not stale else verified.stderr + again[-1].stdout,
    }


def _unseen_edit(root: Path, oracle: Oracle, what: str, number: int) -> Callable[[], None]:
    """Another content of the same length each time."""

    def edit() -> None:
        path = root / what
        status = path.stat()
        match what:
            case "data/source":
                text = f"source {number % 10}\n"
                text = text if text != path.read_text() else f"source {(number + 1) % 10}\n"
            case "ours/words.py":
                old = path.read_text()
                text = next(one for one in map(oracle.learn_words, ("word", "drow", "dorw")) if one != old)
            case _:
                old = path.read_text()
                comment = f"# {number:05}\n"
                text = old.rpartition("# ")[0] + comment if "# " in old else old + comment
                status = path.stat() if "# " in old else None  # type: ignore[assignment]  # longer by a comment once
        oracle.learn(text)
        path.write_text(text)
        if status is not None:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return edit
