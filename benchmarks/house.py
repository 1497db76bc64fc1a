"""Measures the house: lines, words, rooms, and the way from a task to its loss.

`python -m benchmarks.house [--trace] [--seconds]`. Reads the tracked files; `--trace` runs one step
of GRPO and lists the files from a task to its loss; `--seconds` adds the seconds of the last run of
every stage (`reports/runs.jsonl`). The aims stand beside each figure.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from posttrain.provenance.run_records import read_records

# how a module or a class must not introduce itself, and a function
RIDDLES = re.compile(r"(What|Who|How|Which|Where|When|Whether|Of|As `|The reverse|Unless)\b")
FUNCTION_RIDDLES = re.compile(r"(Of|As `|The reverse|Unless|Who|Where|When)\b")
SHORT, ONE_OF_EACH = 40, ("Verdict", "Run", "Group", "Turn")
ONE_STEP: dict[str, Any] = {
    "world.num_sft_tasks": 48,
    "world.num_rl_tasks": 16,
    "world.num_dev_tasks": 4,
    "prepare_model.warmup_steps": 2,
    "sample_preferences.num_tasks": 16,
    "train_sft.max_steps": 2,
    "train_sft.eval_every_steps": 2,
    "train_policy.begin_with": None,
    "train_policy.algorithm.max_steps": 1,
    "train_policy.algorithm.dev": {"every_steps": 1, "num_tasks": 2, "keep": "last"},
    "train_policy.checkpoint_every_steps": 1,
}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    found: str
    aim: str


def tracked(*folders: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--", *folders], capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name.endswith(".py") and Path(name).is_file()]


def parsed(files: Iterable[Path]) -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def num_lines(*folders: str) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in tracked(*folders))


def riddles(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """`path:line: opening` of each docstring that begins as none should."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                opening = (ast.get_docstring(node) or "").split("\n")[0]
                pattern = RIDDLES if isinstance(node, ast.Module | ast.ClassDef) else FUNCTION_RIDDLES
                if pattern.match(opening):
                    yield f"{path}:{getattr(node, 'lineno', 1)}: {opening[:70]}"


def comments_per_100(files: Iterable[Path]) -> float:
    """Comments, in lines, per 100 lines of code; docstrings and blank lines are neither."""
    num_comments = num_code = 0
    for file in files:
        tokens = list(tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline))
        num_comments += sum(token.type == tokenize.COMMENT for token in tokens)
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.STRING)
        num_code += len({token.start[0] for token in tokens if token.type not in skipped})
    return 100 * num_comments / num_code


def importers(trees: Mapping[Path, ast.Module]) -> Counter[str]:
    """Number of modules that import each module of the library."""
    names = {".".join(path.with_suffix("").parts) for path in trees}
    found = Counter[str]()
    for tree in trees.values():
        imported = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        }
        found.update(imported & names)
    return found


def task_to_loss() -> list[str]:
    """Files of the library whose functions run between the choice of a task and its loss, in one
    step of GRPO in the toy world; without those of worlds, knobs and the runtime."""
    from posttrain import demonstrate, load_world, sft, train_policy

    found, is_on = set[str](), [False]

    def look(frame: FrameType, event: str, _: object) -> None:
        name, file = frame.f_code.co_qualname, frame.f_code.co_filename
        is_on[0] |= event == "call" and name == "RolloutCollector.collect"
        if is_on[0] and "/posttrain/" in file and not file.endswith("params.py"):
            found.add(f"posttrain/{file.rpartition('/posttrain/')[2]}")
        if event == "return" and name == "learn":
            is_on[0] = False

    with tempfile.TemporaryDirectory() as folder:
        world = load_world("toy", ONE_STEP)
        model = sft(demonstrate(world), world, to=Path(folder) / "sft")
        threading.setprofile(look)
        sys.setprofile(look)
        train_policy(model, world, to=Path(folder) / "policy")
        sys.setprofile(None)
    rooms = ("posttrain/rollout/", "posttrain/train/", "posttrain/models/", "posttrain/rewards/")
    return sorted(file for file in found if file.startswith(rooms))


def rows(root: Path) -> list[Row]:
    library, others = parsed(tracked("posttrain")), parsed(tracked("stages", "flows"))
    modules = {path: tree for path, tree in {**library, **others}.items() if path.name != "__init__.py"}
    found = list(riddles({**library, **others}))
    of_modules = sum(":1: " in one for one in found)
    top = [path for path in (root / "posttrain").iterdir() if path.name not in ("__init__.py", "__pycache__")]
    used = importers({**library, **others, **parsed(tracked("benchmarks", "tests"))})
    lonely = sum(used[".".join(path.with_suffix("").parts)] == 1 for path in library)
    short = [path for path in modules if len(path.read_bytes().splitlines()) < SHORT]
    classes = Counter(
        node.name for tree in library.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    twice = {name: classes[name] for name in ONE_OF_EACH if classes[name] > 1}
    maths = [path for path in library if path.parts[1] in ("train", "provenance", "runtime", "dispatch")]
    return [
        Row("docstrings that begin with a riddle", f"{len(found)}, {of_modules} of modules", "0"),
        Row("comments per 100 lines of code", f"{comments_per_100(library):.1f}", ""),
        Row("… in train, provenance, runtime, dispatch", f"{comments_per_100(maths):.1f}", "5 to 10"),
        Row("library lines", f"{num_lines('posttrain'):,}", "≤ 41,000"),
        Row("test lines", f"{num_lines('tests'):,}", "≤ 37,000"),
        Row("benchmark lines", f"{num_lines('benchmarks'):,}", "≤ 5,500"),
        Row("stages, flows", f"{num_lines('stages'):,}, {num_lines('flows'):,}", ""),
        Row("folders, modules at the top", f"{sum(map(Path.is_dir, top))}, {sum(map(Path.is_file, top))}", ""),
        Row("modules; with one importer", f"{len(modules)}; {lonely}", ""),
        Row(f"modules below {SHORT} lines", f"{len(short)} ({len(short) / len(modules):.0%})", ""),
        Row("classes of one name", ", ".join(f"{name} {num}" for name, num in twice.items()) or "none", "none"),
    ]


def seconds(root: Path) -> list[Row]:
    found = {name: cost.seconds for name, cost in read_records(root).items()}
    total = Row("all stages, seconds", f"{sum(found.values()):.0f}", "≤ 600")
    return [*(Row(f"  {name}", f"{took:.0f} s", "") for name, took in found.items()), total]


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.house", description="Lines, words and rooms of this repository.")
    parser.add_argument("--trace", action="store_true", help="list the files from a task to its loss (half a minute)")
    parser.add_argument("--seconds", action="store_true", help="add the seconds of each stage's last run")
    given = parser.parse_args()
    for row in [*rows(Path()), *(seconds(Path()) if given.seconds else [])]:
        print(f"{row.name:44} {row.found:>26}   {row.aim}")
    if given.trace:
        files = task_to_loss()
        num = sum(len(Path(file).read_bytes().splitlines()) for file in files)
        print(f"{'task → loss: files, lines':44} {f'{len(files)}, {num:,}':>26}   ≤ 20")
        print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    main()
