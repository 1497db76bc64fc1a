"""The graph that a flow builds on is DVC's own: matrices, parameters, upstream, order."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from posttrain.pipeline.graph import read_graph
from posttrain.runtime.exits import ConfigurationError
from tests.dvc_trees import init_dvc

DVC_YAML = """
stages:
  report:
    cmd: cat scores/sft scores/base > report.html
    deps: [scores/sft, scores/base]
    outs: [report.html]
  evaluate:
    matrix:
      policy: [sft, base]
    desc: how good is it
    cmd: wc -c < models/weights > scores/${item.policy}
    deps: [models, code/evaluate.py]
    params: [seed, evaluate.n, other.yaml: [depth]]
    metrics:
      - scores/${item.policy}: {cache: false}
  train:
    cmd: mkdir models && echo 1 > models/weights
    params: [seed]
    outs: [models]
  check:
    cmd: echo ok > checked
    outs: [checked]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    init_dvc(tmp_path, has_git=False)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("seed: 1\nevaluate: {n: 3}\n")
    (tmp_path / "other.yaml").write_text("depth: 2\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/evaluate.py").write_text("")
    return tmp_path


def test_every_stage_comes_after_what_it_reads_and_otherwise_in_the_order_of_the_file(root):
    # report and evaluate wait for train; train is written before check, so it goes first, and
    # report as soon as it can.
    assert [node.name for node in read_graph(root)] == ["train", "evaluate@sft", "evaluate@base", "report", "check"]


def test_a_matrix_item_is_a_node_with_its_own_command_outs_and_parameters(root):
    node = next(node for node in read_graph(root) if node.name == "evaluate@sft")
    assert (node.stage, node.description) == ("evaluate", "how good is it")
    assert node.command == "wc -c < models/weights > scores/sft"
    assert node.deps == ("models", "code/evaluate.py")
    assert node.outs == ("scores/sft",)
    assert sorted(node.params) == ["evaluate.n", "other.yaml:depth", "seed"]
    assert node.upstream == ("train",)


def test_a_stage_without_items_and_without_upstream_says_so(root):
    node = next(node for node in read_graph(root) if node.name == "check")
    assert (node.stage, node.deps, node.params, node.upstream) == ("check", (), (), ())


def test_reading_the_graph_from_a_relative_path_gives_the_same_graph(root, monkeypatch):
    absolute = read_graph(root)
    monkeypatch.chdir(root)
    assert read_graph(Path()) == absolute


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            "stages:\n  a: {cmd: x, deps: [two], outs: [one]}\n  b: {cmd: x, deps: [one], outs: [two]}\n",
            "both a dependency and an output",
        ),
        ("stages:\n  a: {cmd: x, outs: [same]}\n  b: {cmd: x, outs: [same]}\n", "same"),
        ("stages: [", "dvc.yaml"),
    ],
)
def test_a_graph_that_dvc_refuses_is_a_wrong_configuration_with_its_reason(root, broken, said):
    (root / "dvc.yaml").write_text(broken)
    with pytest.raises(ConfigurationError, match=said):
        read_graph(root)


def test_dvc_is_pinned_to_the_minor_version_whose_private_names_are_used(repository: Path):
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [dvc] = [one for one in map(Requirement, project["dependencies"]) if one.name == "dvc"]
    [locked] = re.findall(r"^dvc==(\S+)$", (repository / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    major, minor = Version(locked).release[:2]
    asked = [f"{major}.{minor}.99", f"{major}.{minor + 1}.0", f"{major + 1}.0"]
    assert [locked in dvc.specifier, *(version in dvc.specifier for version in asked)] == [True, True, False, False]
