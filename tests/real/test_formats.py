"""A team's file of each format goes from its import to a model that is trained on it and evaluated
on the world it came from: all stages, with a tiny model and two steps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.config.params import parse_params
from posttrain.data.files import read_jsonl
from posttrain.data.schemas import read_trajectories
from posttrain.provenance.runner import StageRun
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import example_params, make_domain, world_params
from posttrain.worlds.protocol import Domain, ExpertDomain
from posttrain.worlds.scripts import ScriptedExpert, say
from stages.evaluate import evaluate
from stages.generate_data import generate_data
from stages.prepare_model import prepare_model
from stages.resample_data import resample_data
from stages.train_sft import train_sft
from stages.validate_data import validate_data
from tests.data import written_formats as formats
from tests.data.written_formats import Writer
from tests.limits import limits_of
from tests.tiny import KNOBS
from tests.worlds_of import TOY_FLAWS

pytestmark = pytest.mark.needs_worlds

TOY = {"type": "toy", "seed": 7, "max_difficulty": 2, "flaw_rates": TOY_FLAWS, "num_sft_tasks": 60}
TAU2 = {"type": "tau2", "num_sft_tasks": 12, "num_rl_tasks": 12, "num_dev_tasks": 6, "num_test_tasks": 4}
BFCL = {"type": "bfcl", "num_sft_tasks": 60, "sets": ["base", "miss_func"], "system": "Call functions."}
CARDS = {
    "type": "gymnasium",
    "num_sft_tasks": 60,
    "env": "Blackjack-v1",
    "kwargs": {},
    "actions": ["stick", "hit"],
    "observation": "text",
    "action_format": "react",
}
COUNTS = {"num_sft_tasks": 60, "num_rl_tasks": 16, "num_dev_tasks": 4, "num_test_tasks": 4}
REWARD = {
    "weights": {"completion": 0.6, "strictness": 0.25, "format": 0.15},
    "penalties": {"redundant_call": -0.01, "format_error": -0.01, "timeout": -0.01},
    "extra": [],
}
WIDE = limits_of(40, 4096, 100_000, max_result_chars=100_000)


def stick(task: Task, seed: int) -> ScriptedExpert:
    """A player of cards, for a world without an expert."""

    def script():
        yield say(f"Thought:\nHand {seed} will do.\n\nAction:\nstick")

    return ScriptedExpert(script())


def section_of(world: dict[str, Any]) -> dict[str, Any]:
    """The example's knobs, with these instead."""
    return {**example_params(world["type"]).model_dump(mode="json"), **COUNTS, **world}


def demonstrations(domain: Domain, tasks: Sequence[Task]) -> list[Trajectory]:
    if isinstance(domain, ExpertDomain):
        policy = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    else:
        policy = ScriptedPolicy(stick)
    return run_episodes(policy, tasks, domain=domain, limits=WIDE, seeds=range(len(tasks)))


@pytest.mark.parametrize(
    ("writer", "world"),
    [
        (formats.openai, TOY),
        (formats.anthropic, TOY),
        (formats.trl, TOY),
        (formats.sharegpt, TOY),
        (formats.agentgym, CARDS),
        (formats.tau_bench, TAU2),
        (formats.tau2, TAU2),
        (formats.bfcl, BFCL),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_file_of_the_format_is_learnt_and_the_model_evaluated_on_its_world(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer, world: dict[str, Any]
) -> None:
    run = written(repository, tmp_path, monkeypatch, writer, world)
    generate_data(run("generate_data"))
    assert read_jsonl(Path("data/raw/quarantine.jsonl")) == []
    validate_data(run("validate_data"))
    assert read_jsonl(Path("data/validated/quarantine.jsonl")) == []
    prepare_model(run("prepare_model"))
    resample_data(run("resample_data"))
    kept = read_trajectories(Path("data/resampled/demonstrations.parquet"))
    assert {row.split for row in kept} == {"sft", "dev"}
    train_sft(run("train_sft"))
    evaluate(run("evaluate", "sft"))
    assert json.loads(Path("reports/evaluate/sft.json").read_text())["num_tasks"] == 4


def written(
    repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer, world: dict[str, Any]
) -> Callable[..., StageRun]:
    """Runs of stages in `folder`, where mine.jsonl has demonstrations of the world in the writer's
    format."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    section = section_of(world)
    domain = make_domain(world_params(section))
    tasks = domain.tasks("sft", section["num_sft_tasks"])
    played = zip(demonstrations(domain, tasks), tasks, strict=True)
    records = [writer(one, [domain.tools[name].schema() for name in task.tools]) for one, task in played]
    Path("mine.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return _runs(repository, folder, section)


def _runs(repository: Path, folder: Path, world: dict[str, Any]) -> Callable[..., StageRun]:
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content |= {"world": world, "reward": REWARD}
    content["agent"] = limits_of(3, 8, 32_768).model_dump() | {"max_turns": 40}
    content["model"] |= {**KNOBS, "vocab_size": 700}
    content["generate_data"]["source"] = {"type": "import", "path": "mine.jsonl", "stop_tools": [], "dev_frac": 0.3}
    content["validate_data"]["max_tokens"] = 32_000
    content["prepare_model"] |= {"warmup_steps": 1, "warmup_batch_size": 4}
    content["resample_data"]["oversample"]["type"] = "none"
    content["train_sft"] |= {"max_steps": 2, "eval_every_steps": 1, "batch_size": 2, "label_weights": {}}
    content["sample_preferences"]["num_tasks"] = 8
    content["train_policy"]["algorithm"]["tasks_per_step"] = 4
    content["evaluate"] |= {"by": ["kind"], "num_samples": 4}

    def run(name: str, item: str = "") -> StageRun:
        checkpoints = folder / ".checkpoints" / name
        checkpoints.mkdir(parents=True, exist_ok=True)
        return StageRun(name, item, parse_params(content, source="params.yaml"), checkpoints)

    return run
