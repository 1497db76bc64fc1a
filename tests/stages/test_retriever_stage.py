"""The stage `train_retriever` and what follows from it, in the toy world with six other tools."""

from pathlib import Path

import pytest
import yaml

from posttrain.config.params import parse_params
from posttrain.data.files import NOT_ASKED, read_jsonl
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.provenance.runner import StageRun
from posttrain.retrieval.catalogue import write_catalogue
from posttrain.retrieval.params import idle_deps
from posttrain.retrieval.retriever import FOLDER as RETRIEVER
from posttrain.rollout.offers import SEARCH
from stages.generate_data import generate_data
from stages.train_retriever import SUMMARY, train_retriever
from tests.retrieval.catalogues import small_catalogue
from tests.retrieval.tiny_encoder import write_tiny_encoder
from tests.stages.test_generate_and_evaluate import WORLD


@pytest.fixture
def run(repository, tmp_path, monkeypatch):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    write_catalogue(small_catalogue())

    def make(tools, **knobs) -> StageRun:
        agent = content["agent"] | {"tools": tools, "max_turns": 12}
        sections = {"world": WORLD, "agent": agent, "train_retriever": content["train_retriever"] | knobs}
        return StageRun("stage", "", parse_params(content | sections, source="params.yaml"), tmp_path)

    return make


def test_nothing_is_trained_where_tasks_offer_their_own_tools(run):
    train_retriever(run({"type": "offered"}, encoder="nothing"))
    assert [file.name for file in RETRIEVER.iterdir()] == [NOT_ASKED]
    assert SUMMARY.read_text() == '{\n  "is_asked": false\n}\n'
    assert idle_deps({"agent": {"tools": {"type": "offered"}}}) == {"data/tools"}
    assert idle_deps({"agent": {"tools": {"type": "search", "k": 8}}}) == frozenset()


def test_tasks_and_demonstrations_have_the_tools_that_were_retrieved(run):
    params = run({"type": "retrieved", "k": 5}, method="words")
    train_retriever(params)
    [summary] = [yaml.safe_load(SUMMARY.read_text())]
    assert (summary["num_tools"], summary["num_world_tools"]) == (14, 8)
    assert summary["found"]["words"]["recall_at_1"] == 1
    generate_data(params)
    tasks, rows = (
        read_tasks(Path("data/raw/tasks.parquet"), "sft"),
        read_trajectories(Path("data/raw/demonstrations.parquet")),
    )
    assert {len(task.tools) for task in tasks} == {5}
    offered = [tuple(schema["function"]["name"] for schema in row.tools) for row in rows]
    assert offered == [task.tools for task in tasks]
    assert {name for names in offered for name in names} & {"get_weather", "send_mail", "area.circle"}


def test_demonstrations_search_for_what_they_call(run):
    params = run({"type": "search", "k": 5}, method="words")
    train_retriever(params)
    generate_data(params)
    rows = read_trajectories(Path("data/raw/demonstrations.parquet"))
    called = [[call.name for one in row.trajectory.messages for call in one.tool_calls] for row in rows]
    assert {names[0] for names in called if names} == {SEARCH}
    assert {schema["function"]["name"] for row in rows for schema in row.tools} == {SEARCH}
    assert sum(row.trajectory.is_success for row in rows) > len(rows) / 4


def test_a_trained_retriever_knows_the_questions_of_the_world_and_is_the_same_again(run, tmp_path):
    encoder = write_tiny_encoder(small_catalogue(), tmp_path / "tiny")
    knobs = {"encoder": str(encoder), "max_steps": 3, "batch_size": 6, "num_world_tasks": 6, "method": "both"}
    written = []
    for _ in range(2):
        train_retriever(run({"type": "retrieved", "k": 5}, **knobs))
        written.append({str(file): file.read_bytes() for file in sorted(RETRIEVER.rglob("*")) if file.is_file()})
    assert written[0] == written[1]
    [summary] = [yaml.safe_load(SUMMARY.read_text())]
    assert summary["num_world_questions"] > 0 < summary["num_held_out_tools"]
    assert set(summary["found_of_held_out"]) == {
        *("words", "untrained vectors", "untrained both"),
        *("trained vectors", "trained both"),
    }
    assert len(read_jsonl(RETRIEVER / "catalogue.jsonl")) == 14
