"""Files that a knob names are deps of the stages that read them."""

from pathlib import Path

import pytest

from posttrain.config.params import load_params
from posttrain.provenance.fingerprint import StageInputs
from posttrain.provenance.undeclared_deps import undeclared

SCORE, WORLD, SOURCE = "extra: []", "type: stocks ", "{type: scripted}"


def imported(path: str) -> str:
    return f"{{type: import, path: {path}, stop_tools: [], dev_frac: 0.0}}"


@pytest.mark.parametrize(
    ("old", "new", "section", "file", "dep"),
    [
        (SCORE, "extra: [{name: 'brave:brave', weight: 0.001}]", "reward", "brave.py", "brave.py"),
        (SCORE, "extra: [{name: 'scores.brave:brave', weight: 0.001}]", "reward", "scores/brave.py", "scores"),
        (SCORE, "extra: [{name: 'json:dumps', weight: 0.001}]", "reward", "", ""),  # installed
        (WORLD, "type: ours.harbour:harbour ", "world", "ours/harbour.py", "ours"),
        (SOURCE, imported("data/imported/ours.jsonl"), "generate_data", "data/imported/ours.jsonl", "data/imported"),
        (SOURCE, imported("data/imported/../ours.jsonl"), "generate_data", "data/imported/../ours.jsonl", "data"),
    ],
)
def test_a_file_that_a_knob_names_is_a_declared_input(
    repository: Path, tmp_path: Path, monkeypatch, old: str, new: str, section: str, file: str, dep: str
):
    monkeypatch.chdir(tmp_path)
    for path in ("brave.py", "scores/brave.py", "ours/harbour.py"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("")
    Path("params.yaml").write_text((repository / "params.yaml").read_text().replace(old, new, 1))
    params, other = load_params(Path("params.yaml")), StageInputs("c", ("other",), (section,))
    lines = [line for _, line in undeclared({"generate_data": other}, params)]
    refusal = f"leads to {file}, which is not among the deps of generate_data"
    assert [refusal in line for line in lines] == [True] * bool(file)
    assert undeclared({"generate_data": StageInputs("c", ("other", dep), (section,))}, params) == []


def test_a_function_that_keeps_demonstrations_is_a_declared_input(repository: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ours.py").write_text("")
    keep = "quality_filter: true\n  keep: {function: 'ours:is_kept'}"
    text = (repository / "params.yaml").read_text().replace("quality_filter: true", keep, 1)
    Path("params.yaml").write_text(text)
    params, stage = load_params(Path("params.yaml")), "resample_data"
    [(knob, line)] = undeclared({stage: StageInputs("c", ("other",), (stage,))}, params)
    assert (knob, "leads to ours.py" in line) == ("resample_data.keep.function: ours:is_kept", True)
    assert undeclared({stage: StageInputs("c", ("ours.py",), (stage,))}, params) == []


def test_the_folder_of_an_encoder_is_a_declared_input_where_it_is_trained(repository: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/pretrained/minilm").mkdir(parents=True)
    text = (repository / "params.yaml").read_text()
    stages = {"train_retriever": StageInputs("c", ("other",), ("train_retriever",))}
    cases = (("both", "retrieved, k: 8", True), ("words", "search, k: 8", False), ("both", "offered", False))
    for method, tools, is_named in cases:
        knobs = text.replace("method: words", f"method: {method}").replace("type: offered}", f"type: {tools}}}")
        Path("params.yaml").write_text(knobs)
        assert ["data/pretrained/minilm" in line for _, line in undeclared(stages, load_params())] == [True] * is_named


def test_the_folder_of_a_role_that_other_weights_play_is_a_declared_input_of_what_plays(
    repository, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = (repository / "params.yaml").read_text()
    text = text.replace("planner: 1.0, worker: 1.0}", "planner: 1.0, worker: 0.0}")
    worker = "worker: {max_turns: 8, planner: {type: own}, worker: {type: folder, path: data/theirs}} #"
    Path("params.yaml").write_text(text.replace("worker: null ", worker, 1))
    stages = {name: StageInputs("c", ("other",), (name,)) for name in ("evaluate@sft", "train_policy", "train_sft")}
    [(knob, line)] = undeclared(stages, load_params())
    assert knob == "agent.worker.worker.path: data/theirs"
    assert "is not among the deps of evaluate@sft, train_policy in dvc.yaml" in line
