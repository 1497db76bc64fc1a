"""Toy tree: a small DVC repository with three stages of ours. `make` reads a file, a knob and its
own code, `refine` the output of `make`, `judge` writes a metric that git keeps.
`POSTTRAIN_TEST_HOLD` names a folder: `make` writes `began` there, and waits while `hold` lies
there.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.provenance.fingerprint import folder_md5

REPOSITORY = Path(__file__).resolve().parents[1]
DVC_YAML = """\
stages:
  make:
    cmd: python -m posttrain.provenance.run_stage make
    deps: [stages/make.py, ours, data/source]
    params: [seed]
    outs: [data/made]
  refine:
    cmd: python -m posttrain.provenance.run_stage refine
    deps: [stages/refine.py, data/made]
    outs: [data/refined]
  judge:
    foreach: [first, second]
    do:
      cmd: python -m posttrain.provenance.run_stage judge ${item}
      deps: [stages/judge.py, data/refined]
      params: [train_sft.lr]
      metrics:
        - reports/${item}.json: {cache: false}
"""
MAKE = """
import os, time
from pathlib import Path
from ours.words import WORD
from posttrain.provenance.runner import run_stage

def make(run):
    folder = os.environ.get("POSTTRAIN_TEST_HOLD")
    if folder:
        Path(folder, "began").touch()
        while Path(folder, "hold").exists():
            time.sleep(0.01)
    made = Path("data/made")
    made.mkdir(parents=True)
    version = Path("stages/make.py").read_text().count("# edited")
    text = f"{WORD} {run.params.seed} {version} {Path('data/source').read_text()}"
    (made / "one").write_text(text)
    (made / "two").write_text(text * 2)

if __name__ == "__main__":
    run_stage(make)
"""
REFINE = """
from pathlib import Path
from posttrain.provenance.runner import run_stage

def refine(run):
    Path("data/refined").write_text(Path("data/made/one").read_text() + Path("data/made/two").read_text())

if __name__ == "__main__":
    run_stage(refine)
"""
JUDGE = """
import json
from pathlib import Path
from posttrain.provenance.runner import run_stage

def judge(run):
    Path("reports").mkdir(exist_ok=True)
    made = [run.item, run.params.train_sft.lr, Path("data/refined").read_text()]
    Path(f"reports/{run.item}.json").write_text(json.dumps(made))

if __name__ == "__main__":
    run_stage(judge)
"""


def make_tree(root: Path) -> Path:
    """Committed, with nothing run."""
    files = {
        "dvc.yaml": DVC_YAML,
        "stages/make.py": MAKE,
        "stages/refine.py": REFINE,
        "stages/judge.py": JUDGE,
        "ours/words.py": "WORD = 'word'\n",
        "data/source": "source 0\n",
        ".gitignore": "/.posttrain/\n__pycache__\n",
        ".dvcignore": "__pycache__\n*.pyc\n",
        "params.yaml": (REPOSITORY / "params.yaml").read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for command in (
        ["git", "init", "--quiet"],
        ["git", "config", "user.name", "a"],
        ["git", "config", "user.email", "a@b"],
    ):
        subprocess.run(command, cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=root, check=True)
    commit(root, "start")
    return root


def commit(root: Path, message: str) -> None:
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", message], cwd=root, check=True)


def environment(**more: str) -> dict[str, str]:
    """Environment of `dvc` in the tree: this interpreter's programs, one thread, and nothing of the
    tests' own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTTRAIN_", "PYTEST_", "DVC_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return (
        kept
        | {"PATH": path, "POSTTRAIN_THREADS": "1", "SHELL": "/bin/sh", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
        | more
    )


def dvc(root: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of DVC; both streams are in `stdout`."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(
        command,
        cwd=root,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def without_receipts(folder: Path) -> Path:
    """Make a folder that, on a Python's path, has no receipt compared with `dvc.lock`: the oracle
    must find false entries then."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "from posttrain.provenance import receipts\n\nreceipts.apply_receipts = lambda root, log: []\n"
    )
    return folder


class Oracle:
    """Oracle: knows every content that a file of the tree ever had, and so the true outputs of each
    entry of `dvc.lock`."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._parts: dict[str, dict[str, str]] = {
            "one": {},
            "two": {},
        }  # of data/made: texts that ever lay there, by their MD5
        self._made: dict[str, str] = {}  # both of them together, by the MD5 of the folder

    def learn(self, text: str) -> str:
        """Give a content; returns its MD5."""
        md5 = hashlib.md5(text.encode()).hexdigest()
        self._texts[md5] = text
        return md5

    def learn_words(self, word: str) -> str:
        text = f"WORD = '{word}'\n"
        self._texts[folder_md5({"words.py": self.learn(text)})] = word
        return text

    def learn_one(self, text: str) -> None:
        """Give a text that was written in place of the first file of `make`: `refine` may read
        it."""
        self._learn_part("one", text)

    def false_entries(self, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Stages whose entry binds a result to inputs that it was not made from, in the order in
        which they were made."""
        return [name for name, entry in entries.items() if not self._is_true(name, entry)]

    def _is_true(self, name: str, entry: Mapping[str, Any]) -> bool:
        """A content that never lay in the tree is nothing that a result was made from."""
        stage, _, item = name.partition("@")
        with contextlib.suppress(KeyError):
            return self._is_made_of(stage, item, entry)
        return False

    def _is_made_of(self, stage: str, item: str, entry: Mapping[str, Any]) -> bool:
        deps = {dep["path"]: dep["md5"] for dep in entry["deps"]}
        [out] = entry["outs"]
        knobs = (entry.get("params") or {}).get("params.yaml", {})
        match stage:
            case "make":
                version = self._texts[deps["stages/make.py"]].count("# edited")
                text = f"{self._texts[deps['ours']]} {knobs['seed']} {version} {self._texts[deps['data/source']]}"
                self._learn_part("one", text)
                self._learn_part("two", text * 2)
                return bool(out["md5"] == folder_md5({"one": self.learn(text), "two": self.learn(text * 2)}))
            case "refine":
                made = self._made.get(deps["data/made"])
                return made is not None and bool(out["md5"] == self.learn(made))
            case _:
                refined = self._texts.get(deps["data/refined"])
                return refined is not None and bool(
                    out["md5"] == self.learn(json.dumps([item, knobs["train_sft.lr"], refined]))
                )

    def _learn_part(self, name: str, text: str) -> None:
        """Beside any text that the other part ever had."""
        md5, other = self.learn(text), "two" if name == "one" else "one"
        if md5 in self._parts[name]:
            return
        self._parts[name][md5] = text
        for beside, its in self._parts[other].items():
            self._made[folder_md5({name: md5, other: beside})] = text + its if name == "one" else its + text
