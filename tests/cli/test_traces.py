"""`posttrain traces` over a store that two stages of the toy world left."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from posttrain.config.params import parse_params
from posttrain.data.importing.importer import import_trajectories
from posttrain.data.schemas import message_columns
from posttrain.provenance.runner import StageRun
from stages.evaluate import evaluate
from stages.generate_data import generate_data
from tests.console import posttrain
from tests.traces.episodes import opened, record
from tests.worlds_of import TOY_FLAWS

pytestmark = pytest.mark.xdist_group("traces of stages")

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
NUM_SFT, NUM_GREEDY, NUM_SAMPLED = 60, 24, 48


@pytest.fixture(scope="module")
def content(repository):
    return yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8")) | {
        "world": WORLD,
        "evaluate": {"teacher": {"type": "expert"}, "num_samples": 4, "by": ["kind"]},
    }


@pytest.fixture(scope="module")
def played(content, tmp_path_factory):
    """The folder in which the demonstrations were made and the teacher evaluated."""
    folder = tmp_path_factory.mktemp("stages")
    params = parse_params(content, source="params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        generate_data(StageRun("generate_data", "", params, folder / "0123456789abcdef"))
        evaluate(StageRun("evaluate", "teacher", params, folder / "fedcba9876543210"))
    return folder


@pytest.fixture
def traces(played, monkeypatch):
    monkeypatch.chdir(played)

    def run(*arguments: object):
        return posttrain("traces", *arguments)

    return run


def test_every_episode_of_every_stage_is_there(traces):
    listed = [line.split()[1] for line in traces("runs").stdout.splitlines()]
    assert listed == ["stage", "evaluate@teacher", "generate_data"]
    assert traces("list").stdout.splitlines()[-1] == f"20 of {NUM_SFT + NUM_GREEDY + NUM_SAMPLED} episodes that match"
    assert (
        traces("list", "--stage", "evaluate", "--part", "greedy", "--limit", 3).stdout.splitlines()[-1]
        == f"3 of {NUM_GREEDY} episodes that match"
    )
    assert traces("list", "--stage", "evaluate", "--failed").stdout == "0 of 0 episodes that match\n"


def test_a_list_shows_what_show_then_tells_whole(traces):
    _, line, _ = traces("list", "--stage", "generate_data", "--tool-outcome", "error", "--limit", 1).stdout.splitlines()
    shown = traces("show", line.split()[0]).stdout
    assert shown.startswith(f"episode {line.split()[0]} of generate_data, run 0123456789abcdef\n")
    assert "]: error in " in shown


def test_a_misspelt_tool_is_answered_with_the_right_one(traces):
    result = traces("list", "--tool", "get_south_shelv")
    assert (result.exit_code, result.stdout) == (0, "0 of 0 episodes that match\n")
    assert result.stderr == "no episode called 'get_south_shelv'; did you mean 'get_south_shelf'?\n"


def test_an_export_is_what_the_other_commands_read(traces, tmp_path):
    result = traces("export", "--stage", "evaluate", "--part", "sampled")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) == NUM_SAMPLED
    assert {(row["stage"], row["part"], row["is_success"], row["reward"], row["run_key"]) for row in rows} == {
        ("evaluate@teacher", "sampled", True, 1.0, "fedcba9876543210")
    }
    assert sum(run["outcome"] == "ok" for row in rows for turn in row["turns"] for run in turn["tool_runs"]) > 0
    (tmp_path / "sampled.jsonl").write_text(result.stdout)
    health = posttrain("health", tmp_path / "sampled.jsonl", "--json")
    assert json.loads(health.stdout)["success_rate"] == 1.0


def test_an_export_holds_tokens_and_mask(traces, tmp_path, monkeypatch):
    episode = opened()
    tokens = replace(episode.trajectory, token_ids=(5, 6, 7), mask=(0, 1, 1), logprobs=(0.0, -0.5, float("-inf")))
    monkeypatch.setenv("POSTTRAIN_TRACES", str(tmp_path / "traces.db"))
    record(tmp_path / "traces.db", "train_policy", [replace(episode, trajectory=tokens, advantage=-0.25, step=3)])
    [row] = [json.loads(line) for line in traces("export").stdout.splitlines()]
    assert (row["token_ids"], row["mask"], row["logprobs"]) == ([5, 6, 7], [0, 1, 1], [0.0, -0.5, None])
    assert (row["advantage"], row["step"], row["stop_reason"], row["seed"]) == (-0.25, 3, "done", 5)
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]


def test_a_replay_in_the_runs_own_world_is_the_same_again(traces):
    result = traces("replay", NUM_SFT + 1)
    assert (result.exit_code, result.stdout) == (0, f"episode {NUM_SFT + 1}: 0 differences; messages were repeated\n")


def test_a_replay_in_another_world_shows_the_differences_and_exits_with_1(traces, content, tmp_path):
    other = tmp_path / "params.yaml"
    other.write_text(yaml.safe_dump(content | {"world": WORLD | {"seed": 8}}))
    number = (
        traces("list", "--stage", "evaluate", "--tool", "get_shelf", "--limit", 1).stdout.splitlines()[1].split()[0]
    )
    result = traces("replay", number, "--params", other)
    assert result.exit_code == 1
    assert "tool get_shelf [call_1] (- recorded, + replayed)" in result.stdout
    assert "no such code in the north shop" in result.stdout


def test_a_replay_of_a_run_with_other_knobs_names_the_way_out(traces, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TRACES", str(tmp_path / "traces.db"))
    record(tmp_path / "traces.db", "train_policy", [opened()])
    result = traces("replay", 1)
    assert result.exit_code == 78
    assert "--params params.yaml" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", 10**6], 65, "there is no episode 1000000"),
        (["replay", 10**6], 65, "there is no episode 1000000"),
        (
            ["list", "--step", "20-30"],
            78,
            "--step is '20-30'; it is one step (20), or the first and the last of several (20..30)",
        ),
        (["export", "--step", "x"], 78, "--step is 'x'"),
    ],
)
def test_what_is_not_there_or_not_meant_is_said_with_its_code(traces, arguments, code, message):
    result = traces(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize("arguments", [["list"], ["runs"], ["show", 1], ["export"], ["replay", 1]])
def test_no_store_and_no_whole_store_are_bad_data(traces, arguments, tmp_path, monkeypatch):
    path = tmp_path / "traces.db"
    monkeypatch.setenv("POSTTRAIN_TRACES", str(path))
    result = traces(*arguments)
    assert (result.exit_code, path.exists()) == (65, False)
    assert "no stage has run an episode here yet" in result.stderr
    record(path, "train_policy", [opened()] * 200)
    os.truncate(path, 5000)
    result = traces(*arguments)
    assert result.exit_code == 65
    assert "damaged, cut off or no trace store" in result.stderr


def test_traces_that_are_off_cannot_be_read(traces, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TRACES", "off")
    assert traces("list").exit_code == 78


def test_a_list_loads_no_library_that_a_person_would_wait_for(played, repository):
    program = "import sys; from posttrain.cli.main import app; app(['traces', 'list']); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=played, env=environment, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in result.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint(
        {"torch", "transformers", "numpy", "pyarrow", "pandas", "yaml", "psutil", "pydantic", "typer"}
    )


def test_the_outputs_of_a_stage_are_the_same_without_traces(played, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_TRACES", "off")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    params = parse_params(content, source="params.yaml")
    generate_data(StageRun("generate_data", "", params, tmp_path))
    evaluate(StageRun("evaluate", "teacher", params, tmp_path))
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 5
    assert all((played / path).read_bytes() == path.read_bytes() for path in written)


@pytest.mark.parametrize("file_format", ["otel", "atif"])
def test_an_export_in_another_format_is_imported_with_the_worlds_tools(traces, tmp_path, file_format):
    wanted = ("export", "--stage", "generate_data", "--limit", 20)
    (tmp_path / "a.jsonl").write_text(traces(*wanted, "--format", file_format).stdout)
    imported = import_trajectories(tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in traces(*wanted).stdout.splitlines()]
    assert (imported.file_format, imported.bad) == (file_format, [])
    assert [message_columns(row.trajectory.messages) for row in imported.rows] == [row["messages"] for row in rows]
    assert all("description" in tool["function"] for row in imported.rows for tool in row.tools)
    assert {row.trajectory.task_id for row in imported.rows} == {row["task_id"] for row in rows}


def test_tools_of_a_world_that_is_gone_are_exported_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TRACES", str(tmp_path / "traces.db"))
    record(tmp_path / "traces.db", "train_policy", [opened()])
    result = posttrain("traces", "export", "--format", "atif")
    assert result.stderr.startswith("a run's tools are exported by name only: ")
    assert [tool["function"] for tool in json.loads(result.stdout)["agent"]["tool_definitions"]] == [
        {"name": "try_code"},
        {"name": "jam"},
    ]
