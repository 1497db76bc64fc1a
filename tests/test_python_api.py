"""The Python API as docs/python-api.md shows it, on tiny sizes, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from posttrain.train.reward_ensemble import write_scale
from posttrain.train.reward_model import load_reward_model
from tests.console import posttrain

TINY = {
    "world.num_sft_tasks": 24,
    "world.num_rl_tasks": 8,
    "world.num_dev_tasks": 4,
    "world.num_test_tasks": 4,
    "model.hidden_size": 32,
    "model.num_layers": 1,
    "model.mlp_size": 32,
    "model.head_dim": 16,
    "prepare_model.warmup_steps": 2,
    "prepare_model.warmup_batch_size": 4,
    "train_sft.max_steps": 4,
    "train_sft.batch_size": 4,
    "train_sft.eval_every_steps": 2,
    "sample_preferences.num_tasks": 8,
    "train_policy.begin_with": None,
    "train_policy.algorithm.max_steps": 1,
    "train_policy.algorithm.tasks_per_step": 2,
    "train_policy.algorithm.group_size": 2,
    "train_policy.algorithm.dev": {"every_steps": 1, "num_tasks": 2, "keep": "last"},
    "train_policy.checkpoint_every_steps": 1,
}
DPO = {"type": "dpo", "max_steps": 2, "batch_size": 4, "beta": 0.5, "loss": "sigmoid"}


def settings(knobs: dict[str, object]) -> list[str]:
    """Knobs in the form that the command line takes."""
    return [part for key, value in knobs.items() for part in ("--set", f"{key}={json.dumps(value)}")]


@pytest.fixture(scope="module")
def ran(repository: Path, tmp_path_factory: pytest.TempPathFactory):
    """Results of the page's example: its names, and the folder that it ran in."""
    page = (repository / "docs/python-api.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(from posttrain .*?)```", page, re.DOTALL)
    assert code.count('load_world("toy")') == 1
    names: dict[str, object] = {"TINY": TINY}
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.set_num_threads(1)
        exec(code.replace('load_world("toy")', 'load_world("toy", TINY)'), names)
    return names, folder


def test_the_example_trains_evaluates_and_plays(ran):
    names, folder = ran
    assert {file.name for file in (folder / "out/policy").iterdir()} >= {"config.json", "metrics.jsonl"}
    steps = [json.loads(line) for line in (folder / "out/sft/metrics.jsonl").open()]
    assert [step["step"] for step in steps if "loss" in step] == [1, 2, 3, 4]
    assert names["after"].summary["num_tasks"] == len(names["after"].records) == 4
    assert re.search(r"strict success +\d+\.\d %", str(names["after"]))
    assert "points: the choice of tasks may explain that" in names["after"].compared_with(names["before"])


def test_an_episode_is_printed_as_its_conversation(ran):
    names, _ = ran
    told = str(sys.modules["posttrain"].play(ran[1] / "out/policy", names["world"], number=1))
    asked = names["world"].tasks("test", 2)[1].messages[-1].content
    assert f"user\n  {asked}" in told
    assert re.search(r"reward -?\d", told)


def test_a_name_is_imported_only_when_it_is_asked_for():
    code = "import sys, posttrain; print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_dpo_and_evaluation_say_the_same_on_the_command_line(ran, monkeypatch):
    names, folder = ran
    monkeypatch.chdir(folder)
    where = ["--world", "toy", "--quick"]
    ended = posttrain("evaluate", "out/policy", *where, *settings(TINY), "--num-tasks", 4, "--json")
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout) == {**names["after"].summary, "model": "out/policy"}
    model = load_reward_model(Path("out/sft"))
    model.save_pretrained("out/reward")
    write_scale(Path("out/reward"), (0.0, 1.0))
    picking = ("--reward-model", "out/reward", "--num-tasks", 4, "--num-samples", 2, "--json")
    ended = posttrain("evaluate", "out/policy", *where, *settings(TINY), *picking)
    assert ended.exit_code == 0, ended.stderr
    picked = json.loads(ended.stdout)["best_of"]
    assert (picked["num_groups"], picked["picked"]) == (4, picked["first"])  # a head of zeros prefers none
    # episodes of a model that knows nothing earn the same, so that no pair can be made of them
    knobs = TINY | {"train_policy.algorithm": DPO}
    knobs = {key: value for key, value in knobs.items() if not key.startswith("train_policy.algorithm.")}
    ended = posttrain("train", "dpo", "out/sft", *where, *settings(knobs), "--to", "out/dpo")
    assert ended.exit_code == 0 or (ended.exit_code == 65 and "there is nothing to prefer" in ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "sft", "--world", "toyy", "--quick"), "there is no world 'toyy'"),
        (("train", "online", "--world", "toy", "--quick"), "name its folder, such as out/sft"),
        (("train", "online", "out/nothing", "--quick"), "there is no folder 'out/nothing'"),
        (("train", "sft", "--quick", "--set", "train_sft.max_stepz=3"), "Did you mean 'max_steps'"),
        (("train", "sft", "--quick", "--set", "nowhere.lr=3"), "params.yaml has no section 'nowhere'"),
        (("train", "sft", "--quick", "--set", "seed"), "write KEY=VALUE"),
        (("train", "sft", "--quick", "--to", "empty", *settings(TINY)), "empty is there and is no model"),
        (("evaluate", "empty", "--world", "toy"), "empty has no *.safetensors"),
        (("evaluate", "/no/such", "--world", "toy"), "there is no folder '/no/such'"),
        (("evaluate", "empty", "--world", "toy", "--num-tasks", 0), "--num-tasks"),
        (("evaluate", "empty", "--world", "toy", "--reward-model", "x", "--num-samples", 0), "needs --num-samples"),
        (("evaluate", "empty", "--world", "toy", "--max-new-tokens", 9), "--max-new-tokens is of an endpoint"),
    ],
)
def test_a_wrong_input_ends_with_78_and_says_what_to_do(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").mkdir()
    ended = posttrain(*arguments)
    assert (ended.exit_code, ended.stdout) == (78, "")
    assert told in ended.stderr
