"""The graph agrees with itself: stage ⇔ `dvc.yaml` ⇔ section of `params.yaml` ⇔ file in `stages/`, and what a stage uses is what it declares.

A stage that imports a module or reads a knob that it does not declare would not run again when that changes, and nobody would notice.
"""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.params import Params
from posttrain.provenance.graph import StageNode, read_graph

REPOSITORY = Path(__file__).resolve().parents[1]
STAGES: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
SHARED_SECTIONS = {"seed", "world", "agent", "model", "reward"}
# Around every stage and in none of its results: how it starts and ends, how knobs are read, where its episodes are kept for a person to read. Editing
# these must retrain nothing.
FRAME = ("posttrain/__init__.py", "posttrain/exits.py", "posttrain/named.py", "posttrain/params.py", "posttrain/provenance/", "posttrain/traces/")


@pytest.fixture(scope="module")
def graph() -> tuple[StageNode, ...]:
    return read_graph(REPOSITORY)


def declared(name: str) -> dict[str, Any]:
    return STAGES[name].get("do", STAGES[name])


def declared_code(name: str) -> list[str]:
    return [dep for dep in declared(name).get("deps", []) if dep.startswith("posttrain/")]


def declared_sections(name: str) -> set[str]:
    return {key.split(".")[0] for key in declared(name).get("params", [])}


def stage_file(name: str) -> str:
    return f"stages/{name}.py"


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))


def module_file(dotted: str) -> str | None:
    """The file of a module, None for a name that is none (a function, another distribution)."""
    path = dotted.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if (REPOSITORY / file).is_file()), None)


def imports_of(path: str) -> Iterator[str]:
    """Files of posttrain that a file imports itself, at the top or inside a function."""
    for node in ast.walk(tree_of(path)):
        dotted: list[str] = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not follow"
            dotted = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (file for name in dotted if name.startswith("posttrain") and (file := module_file(name)))


def all_imports(path: str) -> set[str]:
    """Files of posttrain that a file imports through any number of others; those of the frame are neither counted nor followed."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        for file in imports_of(waiting.pop()):
            if file not in found and not file.startswith(FRAME):
                found.add(file)
                waiting.append(file)
    return found


def is_empty(path: str) -> bool:
    """Whether a file holds nothing but, at most, a docstring: such a package file can change no result."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree_of(path).body)


def is_covered(file: str, deps: list[str]) -> bool:
    return any(file == dep or file.startswith(f"{dep.rstrip('/')}/") for dep in deps)


def sections_used(path: str) -> set[str]:
    """X of every `params.X` and `….params.X` that is a key of the whole `params.yaml`."""
    attributes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute) and node.attr in Params.model_fields]
    return {node.attr for node in attributes if ast.unparse(node.value).split(".")[-1] == "params"}


def test_every_stage_has_a_file_and_every_file_is_a_stage():
    assert {path.stem for path in (REPOSITORY / "stages").glob("*.py")} - {"__init__"} == set(STAGES)


def test_every_section_of_the_knobs_belongs_to_a_stage_or_is_shared():
    sections = set(yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8")))
    assert sections == set(Params.model_fields)
    assert sections - SHARED_SECTIONS == set(STAGES) - {"check_params"}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_runs_the_function_of_its_own_name_and_depends_on_its_file(name):
    assert declared(name)["cmd"].split()[:3] == ["python", "-m", f"stages.{name}"]
    assert stage_file(name) in declared(name)["deps"]
    assert declared(name).get("desc"), "a person reads the graph before the code"
    functions = {node.name for node in tree_of(stage_file(name)).body if isinstance(node, ast.FunctionDef)}
    assert name in functions
    assert f"run_stage({name}" in (REPOSITORY / stage_file(name)).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_all_the_code_that_it_imports(name):
    undeclared = sorted(file for file in all_imports(stage_file(name)) if not is_covered(file, declared_code(name)) and not is_empty(file))
    assert undeclared == []


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"check_params"}))
def test_a_stage_declares_no_code_that_it_does_not_import(name):
    imported = all_imports(stage_file(name))
    items = STAGES[name].get("foreach", {})
    deps = [dep for dep in declared_code(name) if dep not in items]
    assert [dep for dep in deps if not any(is_covered(file, [dep]) for file in imported)] == []


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_the_sections_of_the_knobs_that_it_reads(name):
    assert sections_used(stage_file(name)) <= declared_sections(name)


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_no_section_that_it_does_not_read(name):
    assert sorted(declared_sections(name) - sections_used(stage_file(name))) == []


def test_every_stage_waits_for_the_check_of_the_knobs(graph):
    assert [node.name for node in graph if node.name != "check_params" and "check_params" not in node.upstream] == []


def test_whatever_a_stage_reads_is_written_by_another_or_kept_in_git(graph):
    outs = {out for node in graph for out in node.outs}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    files = listed.stdout.splitlines()
    deps = {dep for node in graph for dep in node.deps} - outs
    assert sorted(dep for dep in deps if not any(file == dep or file.startswith(f"{dep}/") for file in files)) == []


def test_the_policies_are_evaluated_side_by_side_and_the_report_comes_last(graph):
    assert {node.item for node in graph if node.stage == "evaluate"} == {"teacher", "base", "sft", "policy"}
    assert graph[-1].name == "report"
