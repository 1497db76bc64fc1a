"""The four training stages called as functions on the toy world: a pretrained model with its own
chat template, adapters folded in after each."""

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from posttrain.cli.models import adopt_model
from posttrain.config.params import ParamsError, parse_params
from posttrain.data.edits import VerifiedEdit, add_edits
from posttrain.data.preferences import Pair, Said, Verdict, read_pairs, write_pairs
from posttrain.data.schemas import read_tasks, read_trajectories, write_trajectories
from posttrain.models.loading import load_codec, load_model, save_model
from posttrain.provenance.runner import StageRun
from posttrain.report.run_reader import GrpoLine, read_policy_lines
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.plain_yaml import load_yaml
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.on_pairs import learn_from_pairs
from posttrain.train.policy_params import KtoParams
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.resumable_trainer import METRICS
from posttrain.train.reward_ensemble import load_reward_models
from posttrain.worlds.catalog import make_domain, world_params
from posttrain.worlds.grading import GENERAL_SCORES
from posttrain.worlds.lookups.grade import SCORES
from posttrain.worlds.lookups.matching import read
from posttrain.worlds.lookups.scores import completion
from stages.generate_data import generate_data
from stages.import_preferences import import_preferences
from stages.sample_preferences import _thumbs, sample_preferences
from stages.select_edits import select_edits
from stages.select_policy_inputs import select_policy_inputs
from stages.train_policy import train_policy
from stages.train_process_model import train_process_model
from stages.train_reward_model import train_reward_model
from stages.train_sft import train_sft
from tests.data.hostile import line
from tests.data.test_preferences import PAIRS, THUMB
from tests.dvc_trees import init_dvc
from tests.limits import limits_of
from tests.models.conftest import write_qwen_folder
from tests.tiny import ONLINE
from tests.worlds_of import TOY_FLAWS

pytestmark = pytest.mark.xdist_group("training stages")  # one worker makes what they share

LORA = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.05, "target_modules": ["q_proj", "v_proj", "down_proj"]}
CHANGES = {
    "world": {
        "type": "toy",
        "seed": 7,
        "max_difficulty": 1,
        "num_sft_tasks": 16,
        "num_rl_tasks": 6,
        "num_dev_tasks": 2,
        "num_test_tasks": 2,
        "flaw_rates": TOY_FLAWS,
    },
    "agent": limits_of(2, 24, 4096).model_dump(),
    "sample_preferences": {
        "source": {"type": "sampled"},
        "num_tasks": 6,
        "num_samples": 8,
        "temperature": 1.0,
        "pairs": "closest",
        "edit_pairs": False,
    },
}
SMALL = {
    "train_sft": {"max_steps": 4, "batch_size": 4, "eval_every_steps": 2},
    "train_reward_model": {"max_steps": 2, "batch_size": 4, "checkpoint_every_steps": 2, "holdout_frac": 0.5},
    "train_process_model": {
        "num_tasks": 6,
        "samples_per_task": 2,
        "branches_per_turn": 2,
        "max_steps": 2,
        "batch_size": 4,
        "checkpoint_every_steps": 2,
        "holdout_frac": 0.5,
    },
    "train_policy": {"checkpoint_every_steps": 1},
}
ON_PAIRS = {  # each with its loss before the first step, where nobody has gained: -log(1/2), 1 - sigmoid(0)
    "dpo": ({"loss": "sigmoid"}, 0.693147),
    "kto": ({"desirable_weight": 1.0, "undesirable_weight": 1.0}, 0.5),
    "orpo": ({}, None),
}


@pytest.fixture(scope="module")
def content(repository):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content |= CHANGES
    content["model"] = {
        "type": "pretrained",
        "name": "tiny",
        "adapter": LORA,
        "gradient_checkpointing": False,
        "dtype": "float32",
    }
    for section, knobs in SMALL.items():
        content[section] |= knobs
    content["train_policy"] |= {"begin_with": None, "algorithm": ONLINE, "reward_model_weight": 0.1}
    return content


@pytest.fixture(scope="module")
def trained(content, tmp_path_factory):
    """A folder in which data was generated and every training stage has run, the policy online."""
    folder, tools = tmp_path_factory.mktemp("pipeline"), make_domain(world_params(CHANGES["world"])).tools
    # with the tools' words as tokens an episode is a fifth as long as in bytes
    texts = [json.dumps(tool.schema()) for tool in tools.values()]
    qwen_folder = write_qwen_folder(tmp_path_factory.mktemp("qwen"), texts)
    params = parse_params(content, source="params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "disabled")
        torch.set_num_threads(1)
        generate_data(StageRun("generate_data", "", params, folder))
        Path("data/resampled").mkdir()
        Path("data/raw/demonstrations.parquet").rename("data/resampled/demonstrations.parquet")
        save_model(load_model(qwen_folder), load_codec(qwen_folder).tokenizer, Path("data/models/base"))
        for stage in (
            select_edits,
            import_preferences,
            train_sft,
            sample_preferences,
            train_reward_model,
            train_process_model,
            select_policy_inputs,
            train_policy,
        ):
            stage(StageRun(stage.__name__, "", params, folder / "checkpoints" / stage.__name__))
    return folder


def weights(folder):
    return load_model(folder).state_dict()


def test_every_stage_leaves_a_plain_model_of_the_same_architecture(trained):
    base = weights(trained / "data/models/base")
    for name in ("sft", "policy"):
        assert {key: value.shape for key, value in weights(trained / "data/models" / name).items()} == {
            key: value.shape for key, value in base.items()
        }
        assert not list((trained / "data/models" / name).glob("adapter*"))


def test_only_the_layers_that_have_adapters_change(trained):
    base, sft, policy = (weights(trained / "data/models" / name) for name in ("base", "sft", "policy"))
    for before, after in ((base, sft), (sft, policy)):
        changed = {
            key.rpartition(".weight")[0].rpartition(".")[2]
            for key in before
            if not torch.equal(before[key], after[key])
        }
        assert changed == {"q_proj", "v_proj", "down_proj"}


def test_the_reward_model_is_judged_beside_two_baselines_on_tasks_it_did_not_see(trained):
    summary = json.loads((trained / "reports/train_reward_model/summary.json").read_text())

    assert {
        "accuracy",
        "accuracy_by_length",
        "accuracy_by_turns",
        "calibration_error",
        "best_of_4",
        "num_held_out_pairs",
    } <= set(summary)
    assert summary["num_held_out_tasks"] == 3


def test_a_process_model_is_trained_where_credit_asks_for_it_and_else_nothing_is_played(
    trained, content, tmp_path, monkeypatch
):
    summary, model = Path("reports/train_process_model/summary.json"), Path("data/models/process")
    assert json.loads((trained / summary).read_text()) == {"is_asked": False}
    assert [file.name for file in (trained / model).iterdir()] == ["not_asked.txt"]
    assert not (trained / "data/policy_inputs/process_model").exists()
    assert traced_of(trained, "train_process_model") == []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data")
    credit = {"type": "process_model", "weight": 1.0, "scale": {"type": "none"}}
    knobs = content["train_policy"] | {"algorithm": ONLINE | {"credit": credit}, "reward_model_weight": 0.0}
    params = parse_params(content | {"train_policy": knobs}, source="params.yaml")
    for stage in (train_process_model, select_policy_inputs, train_policy):
        stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints" / stage.__name__))

    found = json.loads(summary.read_text())
    assert (found["is_asked"], found["num_held_out_tasks"], found["num_episodes"]) == (True, 3, 12)
    assert 0 < found["brier"] < 1
    assert {"model", "labels", "first_call"} <= set(found["localisation"]) & set(found["error_propagation"])
    copied = Path("data/policy_inputs/process_model/model.safetensors")
    assert (model / "model.safetensors").read_bytes() == copied.read_bytes()
    assert len(read_metrics(Path("reports/train_policy/metrics.jsonl"))) == 2


def test_reward_models_learn_on_from_the_policys_episodes(trained, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data")
    refresh = {"every_steps": 1, "max_steps": 2, "batch_size": 4, "lr": 1e-3}
    knobs = content["train_policy"] | {"reward_model_weight": 1.0, "reward_model_refresh": refresh}
    params = parse_params(content | {"train_policy": knobs}, source="params.yaml")
    checkpoints = tmp_path / "checkpoints"
    train_policy(StageRun("train_policy", "", params, checkpoints))
    lines = read_metrics(Path("reports/train_policy/metrics.jsonl"))
    assert any("reward_model_accuracy" in one for one in lines)
    last = max(checkpoints.glob("checkpoint-*"), key=lambda one: int(one.name.partition("-")[2]))
    learnt = load_file(last / "reward-1.safetensors")
    before = load_file(Path("data/policy_inputs/reward_model/model.safetensors"))
    assert any(not torch.equal(learnt[name], before[name]) for name in before)


def test_heads_by_score_are_written_as_one_and_judged_each(trained, content, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    monkeypatch.setenv("WANDB_MODE", "disabled")

    def marked(row):
        kind = 1 / (1 + np.exp(-row.trajectory.reward))
        return replace(row, trajectory=replace(row.trajectory, scores={"kind": kind, "curt": 1 - kind}))

    def learn(**heads):
        knobs = content["train_reward_model"] | {"heads": heads}
        params = parse_params(content | {"train_reward_model": knobs}, source="params.yaml")
        train_reward_model(StageRun("train_reward_model", "", params, Path(f"checkpoints/{len(heads)}")))
        return json.loads(Path("reports/train_reward_model/summary.json").read_text())

    samples, pairs = (Path("data/preferences", f"{name}.parquet") for name in ("samples", "pairs"))
    write_trajectories(samples, map(marked, read_trajectories(samples)))
    write_pairs(pairs, [Pair(marked(one.chosen), marked(one.rejected)) for one in read_pairs(pairs)])
    summary = learn(kind=0.7, curt=0.3)
    assert [one["num_pairs"] for one in summary["heads"].values()] == [summary["num_held_out_pairs"]] * 2
    assert all(one["accuracy_low"] <= one["accuracy"] <= one["accuracy_high"] for one in summary["heads"].values())
    head = load_file(Path("data/models/reward/model.safetensors"))["score.weight"]
    assert head.shape[0] == 1
    assert head.any()
    with pytest.raises(ConfigurationError, match=r"heads has brave, and no pair of .* differs in it: .* curt, kind"):
        learn(brave=1.0)


def test_an_ensemble_alone_rewards_the_policy(trained, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data")
    knobs = content["train_policy"] | {"reward_model_weight": 1.0, "world_reward_weight": 0.0}
    knobs |= {"reward_model_bound": {"type": "less_variance", "weight": 0.5}}
    of_model = content["train_reward_model"] | {"num_members": 3}
    params = parse_params(content | {"train_policy": knobs, "train_reward_model": of_model}, source="params.yaml")
    for stage in (train_reward_model, select_policy_inputs, train_policy):
        stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints" / stage.__name__))

    read = load_reward_models(Path("data/policy_inputs/reward_model"), params.train_policy.reward_model_bound)
    weights_of = [one.score.weight.detach().numpy().tobytes() for one in read.members]
    assert len({*weights_of}) > 1  # of so few pairs two draws may be equal
    for one in traced_of(tmp_path, "train_policy"):
        played = one.trajectory
        expected = 1 / (1 + np.exp(-read.score([played.token_ids])[0]))
        assert played.reward == pytest.approx(expected, abs=1e-5)


PAIR_SHAPES = ("trl", "openai", "anthropic", "ultrafeedback")


def run_on_feedback(trained, content, folder, monkeypatch, records, source, name, changes=None, *, num_stages=5):
    """The stages from the import to the policy, or the first of these, on a file of `records`."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data", dirs_exist_ok=True)
    Path("data/feedback").mkdir(exist_ok=True)
    Path("data/feedback/ours.jsonl").write_bytes(b"\n".join(map(line, records)))
    knobs, _ = ON_PAIRS[name]
    algorithm = {"type": name, "max_steps": 2, "batch_size": 2, "beta": 0.5, **knobs}
    params = parse_params(
        content
        | {
            "sample_preferences": content["sample_preferences"] | {"source": source},
            "train_policy": content["train_policy"]
            | {"algorithm": algorithm, "reward_model_weight": 0.0}
            | (changes or {}),
        },
        source="params.yaml",
    )
    stages = (import_preferences, sample_preferences, train_reward_model, select_policy_inputs, train_policy)
    for stage in stages[:num_stages]:
        stage(StageRun(stage.__name__, "", params, folder / "checkpoints" / stage.__name__))


def reported():
    """The summaries of the import and of the reward model, and the metrics of the policy."""
    imported, reward_model = (
        json.loads(Path(f"reports/{stage}/summary.json").read_text())
        for stage in ("import_preferences", "train_reward_model")
    )
    return imported, reward_model, read_metrics(Path("reports/train_policy/metrics.jsonl"))


def test_ties_end_no_run_but_one_that_learns_from_pairs_or_a_reward_model(trained, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data")
    monkeypatch.setattr("stages.sample_preferences.pairs_of", lambda *_: [])
    reward_model = {"reward_model_weight": 0.5}
    by_pairs = {"algorithm": {"type": "dpo", "max_steps": 2, "batch_size": 2, "beta": 0.5, "loss": "sigmoid"}}
    for changes, refusal in (
        ({"reward_model_weight": 0.0}, None),
        (
            reward_model,
            "wants data/models/reward, and none was trained: .*no two episodes of a task earned differently",
        ),
        ({"reward_model_weight": 0.0, **by_pairs}, "no two episodes of a task earned differently"),
    ):
        params = parse_params(content | {"train_policy": content["train_policy"] | changes}, source="params.yaml")
        expected = contextlib.nullcontext() if refusal is None else pytest.raises(DataError, match=refusal)
        with expected:
            for stage in (sample_preferences, train_reward_model, select_policy_inputs, train_policy):
                stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints" / f"{stage.__name__}{changes}"))
    assert [file.name for file in Path("data/models/reward").iterdir()] == ["not_asked.txt"]


@pytest.mark.parametrize("name", ["dpo", pytest.param("kto", marks=pytest.mark.needs_large)])
def test_what_people_preferred_trains_a_reward_model_and_a_policy(trained, content, tmp_path, monkeypatch, name):
    asked = ({**PAIRS[shape], "task_id": f"{shape}{number}"} for number in range(3) for shape in PAIR_SHAPES)
    source = {"type": "import", "path": "data/feedback"}
    run_on_feedback(trained, content, tmp_path, monkeypatch, asked, source, name)
    imported, reward_model, steps = reported()
    assert (imported["num_pairs"], imported["num_quarantined"]) == (12, 0)
    counts = ("num_pairs", "num_held_out_pairs", "num_held_out_tasks")
    assert [reward_model[count] for count in counts] == [6, 6, 6]
    assert "best_of_4" not in reward_model  # nothing was sampled
    assert steps[0]["loss"] == pytest.approx(ON_PAIRS[name][1], abs=1e-4)
    kinds = json.loads(Path("reports/sample_preferences/summary.json").read_text())
    assert (kinds["num_said"], kinds["num_pairs"]) == (12, 12)


def test_imported_pairs_have_the_share_that_the_knob_says(trained, content, tmp_path, monkeypatch):
    asked = ({**PAIRS["trl"], "task_id": f"t{number}"} for number in range(8))
    source = {"type": "both", "path": "data/feedback/ours.jsonl", "import_frac": 0.25}
    run_on_feedback(trained, content, tmp_path, monkeypatch, asked, source, "dpo", num_stages=2)
    pairs = read_pairs(Path("data/preferences/pairs.parquet"))
    weights = {
        source: sum(pair.weight for pair in pairs if pair.said.source == source) for source in ("sampled", "import")
    }
    assert weights == pytest.approx({"sampled": 0.75, "import": 0.25})


def test_kto_learns_from_thumbs_alone_and_nothing_else_does(trained, content, tmp_path, monkeypatch):
    records = [{**THUMB, "label": number % 3 == 0, "task_id": f"t{number}"} for number in range(6)]
    source, how = {"type": "import", "path": "data/feedback"}, (trained, content, tmp_path, monkeypatch, records)
    run_on_feedback(*how, source, "kto")
    imported, reward_model, steps = reported()
    assert (imported["num_thumbs_up"], imported["num_thumbs_down"], imported["num_people"]) == (2, 4, 1)
    assert reward_model == {"num_pairs": 0, "num_held_out_pairs": 0}
    assert len(steps) == 2
    with pytest.raises(DataError, match="kto learns from these"):
        run_on_feedback(*how, source, "dpo")
    with pytest.raises(DataError, match="no pairs"):
        run_on_feedback(*how, source, "kto", {"algorithm": ONLINE, "reward_model_weight": 0.1})


@pytest.mark.parametrize(("which", "count"), [("none", 0), ("one", 6), ("all", 6 * 8)])
def test_thumbs_are_of_one_or_of_every_sampled_episode(trained, which, count):
    rows = read_trajectories(trained / "data/preferences/samples.parquet")
    thumbs = _thumbs(rows, which)
    assert [one.is_desirable for one in thumbs] == [one.row.trajectory.is_success for one in thumbs]
    assert len(thumbs) == count
    assert len({one.row.trajectory.task_id for one in thumbs}) == min(count, 6)


def test_kto_takes_sampled_thumbs_in_place_of_sampled_pairs(trained, monkeypatch):
    rows = read_trajectories(trained / "data/preferences/samples.parquet")[:4]
    pairs = [Pair(rows[0], rows[1]), Pair(rows[0], rows[1], Said("import"))]
    codec, seen = load_codec(trained / "data/models/sft"), []
    monkeypatch.setattr("posttrain.train.on_pairs.train_on_pairs", lambda training, _: seen.append(training))
    kto = KtoParams.model_validate({"type": "kto", **load_yaml(KtoParams.example, "example")})
    for thumbs in ([], [Verdict(rows[2], True)], [Verdict(rows[2], True, said=Said("import"))]):
        knobs = SimpleNamespace(checkpoint_every_steps=1)
        learn_from_pairs(None, codec, pairs, kto, thumbs, params=knobs, seed=1, run=None)
    assert [(len(one.pairs), len(one.verdicts)) for one in seen] == [(2, 0), (1, 1), (2, 1)]


def test_a_file_that_says_too_little_stops_the_import_and_leaves_the_reasons(trained, content, tmp_path, monkeypatch):
    source = {"type": "import", "path": "data/feedback"}
    with pytest.raises(DataError, match="2 of 3 records say nothing"):
        run_on_feedback(trained, content, tmp_path, monkeypatch, [PAIRS["trl"], {}, {"a": 1}], source, "dpo")
    assert len(Path("data/imported_preferences/quarantine.jsonl").read_text().splitlines()) == 2


def traced_of(trained, stage, steps=None):
    """Newest first."""
    with contextlib.closing(open_to_read(trained / ".posttrain" / "traces.db")) as connection:
        found = matching(connection, EpisodeFilter(stage=stage, steps=steps))
        return [episode.traced for episode in read_episodes(connection, found)]


def test_every_episode_of_every_stage_is_traced(trained):
    stages = ("generate_data", "train_sft", "sample_preferences", "train_policy")
    assert [len(traced_of(trained, stage)) for stage in stages] == [16, 2, 6 * 8, 2 * 2 * 4]
    assert [len(traced_of(trained, "train_policy", (step, step))) for step in (1, 2, 3)] == [8, 8, 0]


def test_what_was_learnt_from_is_traced_with_its_tokens_reward_and_advantage(trained, content):
    learnt = traced_of(trained, "train_policy")
    rules = load_reward(parse_params(content, source="params.yaml").reward, (*GENERAL_SCORES, *SCORES))
    for one in learnt:
        played = one.trajectory
        assert len(played.token_ids) == len(played.mask) == len(played.logprobs) > 0
        assert one.is_success == (completion(read(played, one.task)).value == 1)
        assert played.reward == pytest.approx(rules.score(played, one.task).reward + played.scores["bonus"])
    for group in (learnt[start : start + 4] for start in range(0, 16, 4)):
        assert len({one.task.task_id for one in group}) == 1
        assert sum(one.advantage for one in group) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "name", ["dpo", *(pytest.param(name, marks=pytest.mark.needs_large) for name in ("kto", "orpo"))]
)
def test_the_policy_can_be_trained_on_the_pairs_instead(name, trained, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Path("data").symlink_to(trained / "data")
    sft = weights(trained / "data/models/sft")
    more, loss = ON_PAIRS[name]
    algorithm = {"type": name, "max_steps": 2, "batch_size": 4, "beta": 0.1, **more}
    knobs = content["train_policy"] | {"algorithm": algorithm, "reward_model_weight": 0.0}
    params = parse_params(content | {"train_policy": knobs}, source="params.yaml")

    for stage in (select_policy_inputs, train_policy):
        stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints"))

    policy = weights(Path("data/models/policy"))
    assert {key.split(".")[-2] for key in sft if not torch.equal(sft[key], policy[key])} == {
        "q_proj",
        "v_proj",
        "down_proj",
    }
    found = read_metrics(Path("reports/train_policy/metrics.jsonl"))[0]["loss"]
    assert found > 0 if loss is None else found == pytest.approx(loss, abs=1e-4)


def test_a_policy_learns_its_own_episodes_and_then_online_where_begin_with_asks(
    trained, content, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Path("data").symlink_to(trained / "data")
    accept = {"accept": {"type": "by_reward", "temperature": 0.2}}
    size = {"rounds": 1, "max_generated_tokens": 20, "tasks_per_step": 4, "max_steps": 2, "batch_size": 4}
    begin_with = yaml.safe_load(RejectionSamplingParams.example) | {"type": "rejection_sampling", **accept, **size}
    knobs = content["train_policy"] | {"begin_with": begin_with}
    params = parse_params(content | {"train_policy": knobs}, source="params.yaml")

    for stage in (select_policy_inputs, train_policy):
        stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints"))

    lines = read_metrics(Path("reports/train_policy/metrics.jsonl"))
    assert [line["step"] for line in lines if "accepted" in line or "loss" in line] == [0, 1, 2]
    assert [line["step"] for line in lines if "reward_std" in line] == [3, 4]
    assert isinstance(read_policy_lines(Path("reports/train_policy/metrics.jsonl"))[-1], GrpoLine)


def edits_of(trained, content):
    """A right branch of each rl task, as a person's edit of the model's first turn."""
    params = parse_params(content, source="params.yaml")
    tasks = {task.task_id: task for task in read_tasks(trained / "data/raw/tasks.parquet", "rl")}
    samples = {row.trajectory.task_id: row for row in read_trajectories(trained / "data/preferences/samples.parquet")}
    limits = params.agent.model_copy(update={"max_turns": 6, "max_new_tokens": 200})
    right = demonstrate(
        make_domain(params.world), list(tasks.values()), limits=limits, seed=1, is_flawless=True, reasoning_frac=0.0
    )
    return [
        VerifiedEdit(
            tasks[row.trajectory.task_id],
            samples[row.trajectory.task_id].trajectory,
            1,
            row.trajectory.turn_messages[0],
            "a person",
            (False,),
            (True,),
            row.trajectory,
        )
        for row in right
    ]


def test_a_model_that_another_trainer_trained_is_the_policy_with_its_own_weights(
    trained, content, tmp_path, monkeypatch
):
    init_dvc(tmp_path, has_git=False)
    shutil.copytree(trained / "data", tmp_path / "data", ignore=shutil.ignore_patterns("policy*"))
    monkeypatch.chdir(tmp_path)
    adopt_model(trained / "data/models/policy", "TRL")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    adopted = {"start": "earlier_run", "algorithm": {"type": "none", "trained_by": "TRL"}, "reward_model_weight": 0.0}
    params = parse_params(content | {"train_policy": content["train_policy"] | adopted}, source="params.yaml")
    for stage in (select_policy_inputs, train_policy):
        stage(StageRun(stage.__name__, "", params, tmp_path / "checkpoints" / stage.__name__))
    theirs, ours = weights(trained / "data/models/policy"), weights(tmp_path / "data/models/policy")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert not Path("reports/train_policy/metrics.jsonl").read_text(encoding="utf-8")
    assert (tmp_path / "data/earlier_run/policy.dvc").exists()

    del adopted["start"]
    with pytest.raises(ParamsError, match="posttrain adopt-model"):
        parse_params(content | {"train_policy": content["train_policy"] | adopted}, source="params.yaml")


def test_what_is_no_model_or_is_pickled_is_not_adopted(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="safetensors"):
        adopt_model(tmp_path, "TRL")
    shutil.copytree(trained / "data/models/policy", tmp_path / "model")
    (tmp_path / "model/pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="pickle"):
        adopt_model(tmp_path / "model", "TRL")
    assert not (tmp_path / "data").exists()


def test_verified_edits_are_rows_pairs_and_members_of_groups_where_their_knobs_ask(
    trained, content, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    shutil.copytree(trained / "data", "data")
    edits = edits_of(trained, content)
    assert len(edits) == 6
    add_edits(edits)
    algorithm = ONLINE | {"join": {"type": "edits", "gamma": 0.1}}
    asked = {
        "train_sft": content["train_sft"] | {"edit_copies": 2},
        "sample_preferences": content["sample_preferences"] | {"edit_pairs": True},
        "train_policy": content["train_policy"] | {"algorithm": algorithm, "reward_model_weight": 0.0},
    }
    told = []

    def fine_tune(_model, _codec, rows, _dev, *, run, **_):
        told.append(rows)
        (run.folder / METRICS).touch()

    monkeypatch.setattr("stages.train_sft.fine_tune", fine_tune)
    for knobs in ({"train_policy": content["train_policy"] | {"reward_model_weight": 0.0}}, asked):
        params = parse_params(content | knobs, source="params.yaml")
        for stage in (select_edits, train_sft, sample_preferences, select_policy_inputs, train_policy):
            stage(StageRun(stage.__name__, "", params, tmp_path / f"checkpoints{len(told)}" / stage.__name__))
        told.append(read_pairs(Path("data/preferences/pairs.parquet")))
        told.append([line["joined"] for line in read_metrics(Path("reports/train_policy/metrics.jsonl"))])
    rows, pairs, joined, more_rows, more_pairs, more_joined = told
    assert [row.trajectory.task_id for row in more_rows[len(rows) :]] == [edit.task.task_id for edit in edits] * 2
    assert len(more_pairs) == len(pairs) + 6
    assert {one.chosen.trajectory.is_strict_success for one in more_pairs[len(pairs) :]} == {True}
    assert (set(joined), set(more_joined)) == ({0}, {2})  # each step's two tasks have one
