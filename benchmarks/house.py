"""Measures the house: lines, words, rooms, and the way from a task to its loss.

`python -m benchmarks.house [--seconds]`. Reads the tracked files; `--seconds` adds the seconds of
the last run of every stage (`reports/runs.jsonl`). The aims stand beside each figure.
"""

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.import_graph import all_imports
from posttrain.provenance.run_records import read_records

# how a module or a class must not introduce itself, and a function
RIDDLES = re.compile(r"(What|Who|How|Which|Where|When|Whether|Of|As `|The reverse|Unless)\b")
FUNCTION_RIDDLES = re.compile(r"(Of|As `|The reverse|Unless|Who|Where|When)\b")
SHORT, ONE_OF_EACH = 40, ("Verdict", "Run", "Group", "Turn")
LOSS = "posttrain/train/losses"


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
    """How many modules import each module of the library."""
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


def task_to_loss(root: Path) -> list[str]:
    """Modules between a task and its loss under the default algorithm: what `train_policy` imports
    of rollout and train, less the methods that are not chosen, the knobs and what it resumes by."""
    imported = all_imports(root, "posttrain/train/online/loop.py")
    rooms = ("posttrain/rollout/", "posttrain/train/")
    return sorted(file for file in imported if file.startswith(rooms) and not file.endswith("__init__.py"))


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
    way = task_to_loss(root)
    lines = sum(len((root / file).read_bytes().splitlines()) for file in way)
    return [
        Row("docstrings that begin with a riddle", f"{len(found)}, {of_modules} of modules", "0"),
        Row("comments per 100 lines of code", f"{comments_per_100(library):.1f}", ""),
        Row("… in train, provenance, runtime, dispatch", f"{comments_per_100(maths):.1f}", "5 to 10"),
        Row("task → loss: modules, lines", f"{len(way)}, {lines:,}", "≤ 20"),
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
    parser.add_argument("--seconds", action="store_true", help="add the seconds of each stage's last run")
    given = parser.parse_args()
    for row in [*rows(Path()), *(seconds(Path()) if given.seconds else [])]:
        print(f"{row.name:44} {row.found:>26}   {row.aim}")


if __name__ == "__main__":
    main()
