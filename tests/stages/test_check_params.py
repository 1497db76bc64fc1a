"""The first stage, called as a function in a folder: it looks up every name, writes one constant,
and refuses the rest with what to do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.arms import SMALL
from posttrain.config.params import ParamsError, parse_params
from posttrain.models.params import PretrainedModel, ScratchModel
from posttrain.pipeline.plan import CONSTANT
from posttrain.provenance.runner import StageRun
from posttrain.runtime.exits import Problem
from stages.check_params import check_params
from tests.tiny import ONLINE

SCORE = """
from posttrain.types import Score

def brevity(trajectory, task):
    return Score(1.0)

def of_one(trajectory): ...

LENGTH = 3
"""
WORLD = """
from posttrain.types import Task
from ours.depth import DEPTH

class Harbour:
    name, tools = "harbour", {}

    def __init__(self, world): ...

    def open(self, task): ...

    def expert(self, task, *, seed, is_flawless, reasoning_frac): ...

    def regenerate(self, task, *, seed): ...

    def tasks(self, split, count):
        return [Task("t", split, (), (), {"kind": "tool_selection", "language": "en"})]

def harbour(): ...
"""
LORA = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_prj", "v_proj"]}
SOURCE = {"type": "import", "format": "openai", "path": "data/imported/ours.jsonl", "stop_tools": [], "dev_frac": 0.0}
SCORE_STAGES = {"sample_preferences", "train_process_model", "train_policy", "evaluate"}
WORLD_STAGES = {"train_retriever", "generate_data", "resample_data", "train_sft"} | SCORE_STAGES
OUTPUT = "params.yaml has known keys, values in range and no contradiction.\n"

Check = Callable[..., list[Problem]]


@pytest.fixture
def graph(repository: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((repository / "dvc.yaml").read_text(encoding="utf-8"))
    return content


def declare(graph: dict[str, Any], dep: str, stages: set[str]) -> None:
    for name in stages:
        stage = graph["stages"][name]
        stage.get("do", stage)["deps"].append(dep)


@pytest.fixture
def check(repository: Path, tmp_path: Path, graph: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """`check(**sections)` gives the refusal of params.yaml with these sections in it, and nothing
    where all is well; `graph` is dvc.yaml."""
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["world"], content["reward"]["extra"] = SMALL["world"], []  # made in a tenth of the stocks' time
    content["generate_data"]["source"] = {"type": "scripted"}
    content["train_sft"] |= {"batch_size": 16, "label_weights": {}}
    content["resample_data"]["cells"] = content["evaluate"]["by"] = ["kind", "language"]
    content["sample_preferences"] |= {"num_tasks": 8, "num_samples": 4}
    content["train_policy"] |= {"begin_with": None, "algorithm": ONLINE, "checkpoint_every_steps": 1}
    content["reward"] |= {"weights": {"completion": 0.8, "strictness": 0.2}, "penalties": {}}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "data").mkdir()

    def problems(**sections: Any) -> list[Problem]:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ours"]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(graph, sort_keys=False), encoding="utf-8")
        merged = {
            name: {**content[name], **section} if name != "model" else section for name, section in sections.items()
        }
        run = StageRun("check_params", "", parse_params(content | merged, source="params.yaml"), tmp_path)
        output = tmp_path / "data" / "params.checked"
        output.unlink(missing_ok=True)
        try:
            check_params(run)
        except ParamsError as error:
            assert not output.exists()
            return list(error.problems)
        assert output.read_text() == OUTPUT, "another output runs every stage again"
        return []

    return problems


def kinds(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(one.key, one.kind) for one in problems]


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def extra(*names: str) -> dict[str, Any]:
    return {"extra": [{"name": name, "weight": 0.001} for name in names]}


def test_names_of_the_library_are_found(check: Check):
    assert check(world={"type": "toy"}, reward=extra("accuracy", "length_penalty", "step")) == []


@pytest.mark.parametrize(
    ("knob", "order"),
    [
        ("label", lambda name: {"type": "horizon", "label": name, "promote_at": 0.7, "decay": 0.5}),
        ("labels", lambda name: {"type": "spread", "labels": ["kind", name], "floor": 0.1, "decay": 0.5}),
    ],
    ids=["horizon", "spread"],
)
def test_tasks_are_ordered_by_labels_that_they_have(check: Check, knob: str, order: Any):
    def ordered_by(name: str) -> list[Problem]:
        return check(train_policy={"algorithm": ONLINE | {"sampling": {"order": order(name), "max_refills": 0}}})

    assert ordered_by("difficulty") == []
    (problem,) = ordered_by("dificulty")
    assert (problem.key, problem.kind) == (f"train_policy.algorithm.sampling.order.{knob}", "no_such_label")
    assert problem.remedy == "Did you mean 'difficulty'?"
    before = ONLINE | {"sampling": {"order": order("dificulty"), "max_refills": 0}}
    (problem,) = check(train_policy={"begin_with": before})
    assert problem.key == f"train_policy.begin_with.sampling.order.{knob}"


def test_code_of_ones_own_is_a_dep_of_every_stage_that_would_run_it_and_of_the_check(
    check: Check, graph: dict[str, Any]
):
    write("ours/scores.py", SCORE)
    (problem,) = check(reward=extra("ours.scores:brevity"))
    assert (problem.key, problem.kind) == ("reward.extra", "undeclared")
    stages = "check_params, sample_preferences, train_process_model, train_policy, evaluate"
    wanted = f"ours/scores.py, which is not among the deps of {stages}"
    assert wanted in problem.reason
    declare(graph, "ours", SCORE_STAGES)
    (problem,) = check(reward=extra("ours.scores:brevity"))
    assert "not among the deps of check_params in dvc.yaml" in problem.reason
    declare(graph, "ours", {"check_params"})
    assert check(reward=extra("ours.scores:brevity")) == []


@pytest.mark.parametrize("forgotten", sorted(WORLD_STAGES))
def test_one_stage_that_lacks_a_dep_is_named_before_the_first_one_runs(
    check: Check, graph: dict[str, Any], forgotten: str
):
    write("ours/worlds.py", WORLD)
    write("ours/depth.py", "DEPTH = 3\n")
    declare(graph, "ours/worlds.py", {"check_params", *WORLD_STAGES})
    declare(graph, "ours/depth.py", {"check_params", *WORLD_STAGES} - {forgotten})
    (problem,) = check(world={"type": "ours.worlds:Harbour"})
    assert (problem.key, problem.kind) == ("world.type", "undeclared")
    assert f"ours/depth.py, which is not among the deps of {forgotten} in dvc.yaml" in problem.reason
    declare(graph, "ours/depth.py", {forgotten})
    assert check(world={"type": "ours.worlds:Harbour"}) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ours.scores:brevitty", "'brevitty' is not there (did you mean 'brevity'?)"),
        ("ours.scores:LENGTH", "'LENGTH' is a int"),
        ("ours.scorse:brevity", "ours.scorse cannot be imported (No module named 'ours.scorse')"),
        ("ours.scores:of_one", "must take (trajectory, task) and return a Score"),
        ("ours.raises:score", "ours.raises cannot be imported (ZeroDivisionError: division by zero)"),
        ("ours.exits:score", "ours.exits cannot be imported (SystemExit: 0)"),
    ],
)
def test_a_score_of_ones_own_that_cannot_score_is_refused(check: Check, graph: dict[str, Any], name: str, reason: str):
    write("ours/scores.py", SCORE)
    write("ours/raises.py", "1 / 0\n")
    write("ours/exits.py", "raise SystemExit(0)\n")
    declare(graph, "ours", {"check_params", *SCORE_STAGES})
    (problem,) = check(reward=extra(name))
    assert (problem.key, reason in problem.reason, repr(name) in problem.reason) == ("reward", True, True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ours.worlds:Harbor", "not_found"),
        ("ours.worlds:harbour", "not_made"),
        ("builtins:object", "not_made"),
        ("builtins:str", "no_domain"),
        ("no_such_module:World", "not_found"),
    ],
)
def test_a_world_of_ones_own_that_cannot_be_made_is_refused(check: Check, graph: dict[str, Any], name: str, kind: str):
    write("ours/worlds.py", WORLD)
    write("ours/depth.py", "DEPTH = 3\n")
    declare(graph, "ours", {"check_params", *WORLD_STAGES})
    (problem,) = check(world={"type": name})
    assert (problem.key, problem.kind, repr(name) in str(problem)) == ("world.type", kind, True)


def test_an_undeclared_file_is_named_first_and_all_else_that_is_wrong_at_once(check: Check, graph: dict[str, Any]):
    write("ours/scores.py", SCORE)
    wrong = {
        "reward": extra("ours.scores:brevitty"),
        "generate_data": {"source": SOURCE | {"path": "data/imported/not_there.jsonl"}},
    }
    assert kinds(check(**wrong)) == [("reward.extra", "undeclared")]
    declare(graph, "ours", {"check_params", *SCORE_STAGES})
    assert kinds(check(**wrong)) == [("reward", "not_found"), ("generate_data.source.path", "not_importable")]


def conversation(number: int) -> str:
    return (
        json.dumps(
            {"messages": [{"role": "user", "content": f"Ask {number}"}, {"role": "assistant", "content": "ANSWER: 3"}]}
        )
        + "\n"
    )


def test_an_import_in_another_format_or_outside_of_the_deps_is_refused(check: Check):
    write("data/imported/ours.jsonl", conversation(1))
    write("elsewhere/ours.jsonl", conversation(1))
    (problem,) = check(generate_data={"source": SOURCE | {"format": "tau_bench"}})
    assert problem.kind == "not_importable"
    assert "looks like openai (messages of role and content), and generate_data.source.format says" in problem.reason
    (problem,) = check(generate_data={"source": SOURCE | {"path": "elsewhere/ours.jsonl"}})
    assert problem.kind == "undeclared"
    assert "elsewhere/ours.jsonl, which is not among the deps of check_params, generate_data in" in problem.reason


def test_preferences_that_say_nothing_or_lie_outside_of_the_deps_are_refused(check: Check):
    pair = {"prompt": "Why?", "chosen": "So.", "rejected": "No."}
    write("data/feedback/ours.jsonl", f"{json.dumps(pair)}\n")
    write("elsewhere/ours.jsonl", f"{json.dumps(pair)}\n")
    assert check(sample_preferences={"source": {"type": "import", "path": "data/feedback"}}) == []
    (problem,) = check(sample_preferences={"source": {"type": "import", "path": "elsewhere/ours.jsonl"}})
    assert problem.kind == "undeclared"
    assert "not among the deps of check_params, import_preferences in" in problem.reason
    (problem,) = check(sample_preferences={"source": {"type": "import", "path": "data/feedback/none"}})
    assert (problem.key, problem.kind) == ("sample_preferences.source.path", "not_importable")
    write("data/feedback/ours.jsonl", '{"a": 1}\n')
    (problem,) = check(sample_preferences={"source": {"type": "both", "path": "data/feedback", "import_frac": 0.5}})
    assert "1 of 1 records say nothing that is understood" in problem.reason


def pretrained(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "type": "pretrained",
        "name": name,
        "adapter": LORA,
        "gradient_checkpointing": False,
        "dtype": "bfloat16",
        **changes,
    }


def test_an_adapter_of_a_model_that_lies_here_names_layers_that_it_has(
    check: Check, tmp_path: Path, graph: dict[str, Any]
):
    config = json.dumps({"model_type": "qwen2", "num_hidden_layers": 2})
    write("models/ours/config.json", config)
    declare(graph, "models/ours", {"prepare_model"})
    for name in ("models/ours", str(tmp_path / "models" / "ours")):
        (problem,) = check(model=pretrained(name))
        assert (problem.key, problem.kind) == ("model", "no_such_layer")
        assert "adapter.target_modules has q_prj" in problem.reason
        assert check(model=pretrained(name, adapter={**LORA, "target_modules": ["q_proj", "v_proj"]})) == []
    write("models/ours/config.json", config.replace("qwen2", "of a kind that nobody here knows"))
    assert check(model=pretrained("models/ours")) == []  # the training says it


def test_a_model_in_the_hubs_cache_is_looked_at_as_well(repository: Path, tmp_path: Path):
    """In a process of its own: the hub's client reads where its cache is once."""
    revision = "0" * 40
    folder = tmp_path / "hub" / "models--ours--model"
    write(
        str(folder / "snapshots" / revision / "config.json"),
        json.dumps({"model_type": "llama", "num_hidden_layers": 1}),
    )
    write(str(folder / "refs" / "main"), revision)
    program = (
        "import sys; from stages.check_params import _model; from posttrain.config.params import *\n"
        "model = PretrainedModel.model_validate_json(sys.argv[1])\n"
        "print(list(_model(Params.model_construct(model=model))))\n"
    )
    model = PretrainedModel.model_validate(pretrained("ours/model")).model_dump_json()
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "PYTHONPATH": str(repository)}
    said = subprocess.run(
        [sys.executable, "-c", program, model], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "adapter.target_modules has q_prj" in said


@pytest.mark.parametrize("name", ["no/such/folder", "Qwen Qwen2.5", "~/models/ours", "", "/no/such/folder"])
def test_a_name_that_can_be_no_models_is_refused(check: Check, name: str):
    problem = check(model=pretrained(name))[-1]
    assert (problem.key, problem.kind, problem.value) == ("model.name", "not_found", repr(name))


def test_a_folder_that_is_no_models_or_is_not_declared_is_refused(check: Check, graph: dict[str, Any]):
    write("models/ours/weights", "")
    problems = check(model=pretrained("models/ours"))
    assert kinds(problems) == [("model.name", "undeclared"), ("model.name", "not_found")]
    assert "config.json" in problems[1].remedy
    declare(graph, "models/ours", {"prepare_model"})
    for damaged, reason in (
        ("[1", "Expecting"),
        ("[1]", "its config.json is no object"),
        ("\xff", ""),
    ):
        Path("models/ours/config.json").write_bytes(damaged.encode("latin-1"))
        (problem,) = check(model=pretrained("models/ours"))
        assert (problem.kind, reason in problem.reason) == ("not_found", True)
    write("models/ours/config.json", '{"model_type": "llama", "num_hidden_layers": null}')
    assert check(model=pretrained("models/ours")) == []


def test_a_stage_that_has_no_room_on_the_gpu_reserved_for_it_is_refused(check: Check, monkeypatch: pytest.MonkeyPatch):
    model = {"type": "scratch", **yaml.safe_load(ScratchModel.example), "hidden_size": 512, "mlp_size": 2048}
    monkeypatch.setenv("POSTTRAIN_CARDS", "default=24")
    assert check(model=model) == []
    monkeypatch.setenv("POSTTRAIN_CARDS", "train_sft=0.95,default=24")
    (problem,) = check(model=model)
    assert problem.kind == "no_room"
    wanted = r"train_sft takes 0\.\d GiB, and a GPU of 0\.95 is reserved: it would fit with model\."
    assert re.search(wanted, problem.reason)
    assert "evaluate" not in problem.reason


def test_a_model_of_the_hub_that_is_not_here_is_not_reckoned(check: Check, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSTTRAIN_CARDS", "default=0.1")
    assert check(model=pretrained("Qwen/Qwen2.5-7B-Instruct")) == []


def test_a_model_that_cannot_be_reckoned_is_not_refused(check: Check, graph: dict[str, Any], monkeypatch: Any):
    monkeypatch.setenv("POSTTRAIN_CARDS", "default=24")
    write("models/ours/config.json", '{"model_type": "bert", "num_hidden_layers": 2}')
    declare(graph, "models/ours", {"prepare_model", "check_params"})
    assert check(model=pretrained("models/ours", adapter={"type": "full"})) == []


def test_the_check_loads_neither_torch_nor_tables(repository: Path):
    program = (
        "import stages.check_params, sys; print([name for name in ('torch', 'pyarrow', 'transformers', "
        "'dvc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_other_stage_is_called_constant(graph: dict[str, Any]):
    """`posttrain plan` counts on it; every check above finds one and the same output."""
    assert [name for name, stage in graph["stages"].items() if stage.get("meta", {}).get(CONSTANT)] == ["check_params"]
