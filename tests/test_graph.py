"""The graph agrees with itself: stage ⇔ `dvc.yaml` ⇔ section of `params.yaml` ⇔ file in `stages/`,
and what a stage uses is what it declares.

A stage that imports a module or reads a knob that it does not declare would not run again when that
changes, and nobody would notice.
"""

import ast
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.params import Params
from posttrain.pipeline.graph import StageNode, read_graph
from posttrain.provenance.import_graph import all_imports, imports_of, is_empty

REPOSITORY = Path(__file__).resolve().parents[1]
STAGES: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
SHARED_SECTIONS = {"seed", "world", "agent", "model", "reward"}
LOADED_BY_NAME = ("posttrain/rollout/agents",)  # a task names its agent, as module:name


@pytest.fixture(scope="module")
def graph() -> tuple[StageNode, ...]:
    return read_graph(REPOSITORY)


def declared(name: str) -> dict[str, Any]:
    return STAGES[name].get("do", STAGES[name])


def own_deps(name: str) -> list[str]:
    """Deps of one item of a stage that the others have not: the teacher's code, a model's
    folder."""
    return list(STAGES[name].get("foreach", {}).values())


def declared_code(name: str) -> list[str]:
    return [dep for dep in (*declared(name).get("deps", []), *own_deps(name)) if dep.startswith("posttrain/")]


def declared_sections(name: str) -> set[str]:
    return {key.split(".")[0] for key in declared(name).get("params", [])}


def stage_file(name: str) -> str:
    return f"stages/{name}.py"


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))


def is_covered(file: str, deps: list[str]) -> bool:
    return any(file == dep or file.startswith(f"{dep.rstrip('/')}/") for dep in deps)


def sections_used(path: str) -> set[str]:
    """X of every `params.X` and `….params.X` that is a key of the whole `params.yaml`."""
    attributes = [
        node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute) and node.attr in Params.model_fields
    ]
    return {node.attr for node in attributes if ast.unparse(node.value).split(".")[-1] == "params"}


def test_every_stage_has_a_file_and_every_file_is_a_stage():
    assert {path.stem for path in (REPOSITORY / "stages").glob("*.py")} - {"__init__"} == set(STAGES)


def test_every_section_of_the_knobs_belongs_to_a_stage_or_is_shared():
    sections = set(yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8")))
    assert sections == set(Params.model_fields)
    assert sections - SHARED_SECTIONS == set(STAGES) - {
        "check_params",
        "select_edits",
        "import_preferences",
        "select_policy_inputs",
    }


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_runs_the_function_of_its_own_name_and_depends_on_its_file(name):
    assert declared(name)["cmd"].split()[:4] == ["python", "-m", "posttrain.provenance.run_stage", name]
    assert stage_file(name) in declared(name)["deps"]
    assert declared(name).get("desc"), "a person reads the graph before the code"
    functions = {node.name for node in tree_of(stage_file(name)).body if isinstance(node, ast.FunctionDef)}
    assert name in functions
    assert f"run_stage({name}" in (REPOSITORY / stage_file(name)).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_all_the_code_that_it_imports(name):
    deps, imported = declared_code(name), sorted(all_imports(REPOSITORY, stage_file(name)))
    assert [file for file in imported if not is_covered(file, deps) and not is_empty(REPOSITORY, file)] == []


@pytest.mark.parametrize("name", sorted(set(STAGES) - {"check_params"}))
def test_a_stage_declares_no_code_that_it_does_not_import(name):
    imported = all_imports(REPOSITORY, stage_file(name))
    deps = [dep for dep in declared_code(name) if dep not in LOADED_BY_NAME]
    assert [dep for dep in deps if not any(is_covered(file, [dep]) for file in imported)] == []


def test_the_check_of_the_knobs_runs_again_when_the_reading_of_them_is_edited():
    """Deps that no other stage declares, because it retrains nothing."""
    read_with = {
        file
        for path in (stage_file("check_params"), "posttrain/config/params.py")
        for file in imports_of(REPOSITORY, path)
    }
    around = {
        "posttrain/__init__.py",
        "posttrain/runtime/exits.py",
        "posttrain/provenance/fingerprint.py",
        "posttrain/provenance/runner.py",
    }
    undeclared = {file for file in read_with - around if not is_covered(file, declared_code("check_params"))}
    assert [file for file in undeclared if not is_empty(REPOSITORY, file)] == []


def test_what_an_item_declares_for_itself_is_no_dep_of_all_items():
    """Otherwise it would stand there only because the template wants a value."""
    stand_ins = [dep for name in STAGES for dep in own_deps(name) if is_covered(dep, declared(name)["deps"])]
    assert (stand_ins, len(own_deps("evaluate"))) == ([], 4)


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_the_sections_of_the_knobs_that_it_reads(name):
    is_whole_file_declared = "params.yaml" in declared(name)["deps"]
    assert is_whole_file_declared or sections_used(stage_file(name)) <= declared_sections(name)


@pytest.mark.parametrize("name", sorted(STAGES))
def test_a_stage_declares_no_section_that_it_does_not_read(name):
    assert sorted(declared_sections(name) - sections_used(stage_file(name))) == []


def test_every_stage_waits_for_the_check_of_the_knobs(graph):
    assert [node.name for node in graph if node.name != "check_params" and "check_params" not in node.upstream] == []


def test_whatever_a_stage_reads_is_written_by_another_or_kept_in_git(graph):
    outs = {out for node in graph for out in node.outs}
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    files = listed.stdout.splitlines()
    deps = {dep for node in graph for dep in node.deps} - outs
    assert sorted(dep for dep in deps if not any(file == dep or file.startswith(f"{dep}/") for file in files)) == []


def test_the_policies_are_evaluated_side_by_side_and_the_report_comes_last(graph):
    evaluated = {node.name for node in graph if node.stage == "evaluate"}
    assert evaluated == {f"evaluate@{name}" for name in ("teacher", "base", "sft", "policy")}
    assert graph[-1].name == "report"
