"""Two stages called as functions on the toy world, in an empty folder: what they write, twice the
same, and what they refuse."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.params import parse_params
from posttrain.data.files import read_jsonl
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.provenance.runner import StageRun
from posttrain.runtime.exits import ConfigurationError, DataError
from stages.evaluate import evaluate
from stages.generate_data import generate_data
from tests.rollout.openai_endpoint import Endpoint, answer_of
from tests.worlds_of import TOY_FLAWS

WORLD = {
    "type": "toy",
    "seed": 7,
    "max_difficulty": 2,
    "num_sft_tasks": 60,
    "num_rl_tasks": 300,
    "num_dev_tasks": 8,
    "num_test_tasks": 12,
    "flaw_rates": TOY_FLAWS,
}
TASKS, DEMONSTRATIONS = Path("data/raw/tasks.parquet"), Path("data/raw/demonstrations.parquet")


@pytest.fixture
def stage(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`stage(item, section=…)` is a run in an empty folder with some sections of params.yaml
    replaced."""
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")

    def make(item: str = "", **sections: Any) -> StageRun:
        return StageRun(
            "stage", item, parse_params({**content, "world": WORLD, **sections}, source="params.yaml"), tmp_path
        )

    return make, content["generate_data"]


def test_every_split_has_its_tasks_and_every_sft_task_its_demonstration(stage):
    make, _ = stage
    generate_data(make())
    tasks, rows = read_tasks(TASKS), read_trajectories(DEMONSTRATIONS)
    assert Counter(task.split for task in tasks) == {"sft": 60, "rl": 300, "dev": 8, "test": 12, "test_paraphrase": 12}
    assert [row.trajectory.task_id for row in rows] == [task.task_id for task in tasks if task.split == "sft"]


def test_demonstrations_have_flaws_and_no_reward(stage):
    make, _ = stage
    generate_data(make())
    rows = read_trajectories(DEMONSTRATIONS)
    successes = [row.trajectory.is_success for row in rows]
    assert 0 < sum(successes) < len(rows)
    assert all(row.trajectory.reward is None and not row.trajectory.scores for row in rows)
    assert not any(row.trajectory.outcome.feedback for row in rows), "it may tell the answer"


def test_two_runs_write_the_same_bytes(stage):
    make, _ = stage
    written = []
    for _ in range(2):
        generate_data(make())
        written.append((TASKS.read_bytes(), DEMONSTRATIONS.read_bytes()))
    assert written[0] == written[1]


def test_a_world_too_small_for_the_knob_is_a_wrong_configuration(stage):
    make, _ = stage
    with pytest.raises(ConfigurationError, match=r"world\.num_sft_tasks is 60000"):
        generate_data(make(world={**WORLD, "num_sft_tasks": 60000}))


def imported(path: Path | str, **changes: Any) -> dict[str, Any]:
    return {"type": "import", "path": str(path), "stop_tools": [], "dev_frac": 0.0, **changes}


def test_trajectories_of_another_world_are_refused_with_their_tools(stage, shared_data):
    make, settings = stage
    source = imported(shared_data / "tau_bench/gpt-4o-airline.json")
    with pytest.raises(DataError, match=r"182 of 200 imported rows use .*, which the world toy has not"):
        generate_data(make(generate_data={**settings, "source": source}))
    assert not DEMONSTRATIONS.exists()


def test_the_teacher_succeeds_on_every_held_out_task(stage):
    make, _ = stage
    generate_data(make())
    evaluate(
        make(
            "teacher",
            evaluate={"teacher": {"type": "expert"}, "num_samples": 4, "by": ["kind"], "beside": ["test_paraphrase"]},
        )
    )
    report = json.loads(Path("reports/evaluate/teacher.json").read_text(encoding="utf-8"))
    assert (report["success_rate"], report["num_tasks"], report["pass_hat_4"], report["reward_mean"]) == (
        1.0,
        12,
        1.0,
        1.0,
    )
    assert report["paraphrase"]["success_rate"] == 1.0
    records = read_jsonl(Path("reports/evaluate/teacher.tasks.jsonl"))
    assert [record["task_id"] for record in records] == [
        task.task_id for split in ("test", "test_paraphrase") for task in read_tasks(TASKS, split)
    ]
    assert {len(record["samples"]) for record in records} == {0, 4}


@pytest.fixture
def endpoint(monkeypatch):
    """Says `ANSWER: done` to everything."""
    server = Endpoint(lambda *_: answer_of("ANSWER: done"))
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key")
    yield server
    server.stop()


def test_a_model_behind_an_endpoint_demonstrates_and_is_asked_once(stage, endpoint, tmp_path):
    make, params = stage
    source = {"type": "openai", "model": "big", "temperature": 0.7, "max_new_tokens": 200}
    for _ in range(2):
        generate_data(make(generate_data={**params, "source": source}))
    rows = read_trajectories(DEMONSTRATIONS)
    assert [row.trajectory.messages[-1].content for row in rows] == ["ANSWER: done"] * 60
    assert len(endpoint.bodies) == 60
    assert not any("planted-key" in file.read_text(errors="ignore") for file in tmp_path.rglob("*") if file.is_file())


def test_a_model_behind_an_endpoint_is_the_bar_to_reach(stage, endpoint):
    make, _ = stage
    generate_data(make())
    settings = {
        "teacher": {"type": "openai", "model": "big", "max_new_tokens": 200},
        "num_samples": 4,
        "by": ["kind"],
        "beside": ["test_paraphrase"],
    }
    evaluate(make("teacher", evaluate=settings))
    report = json.loads(Path("reports/evaluate/teacher.json").read_text(encoding="utf-8"))
    assert report["success_rate"] < 0.5
    assert {body["temperature"] for body in endpoint.bodies} == {0.0, 1.0}
