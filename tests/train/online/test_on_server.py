"""Training on a Tinker server against a small one of its contract: the same steps as on this
machine, a policy that evaluation loads, a run that goes on after it died, and what is refused."""

import copy
import json

import pytest
import torch
import yaml

pytest.importorskip("tinker")

import tiny_runs
from tiny import tiny_config
from transformers import Qwen3ForCausalLM

from benchmarks.arms import REPOSITORY, SMALL, apply_overrides
from posttrain.config.params import load_params
from posttrain.data.schemas import conversations, tool_names
from posttrain.models.base import write_base
from posttrain.models.loading import load_codec, load_model, load_on_cpu, save_model
from posttrain.models.lora import add_lora
from posttrain.models.params import LoraAdapter
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, labels_of, pad_right
from posttrain.rollout.engines import tinker_engine
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.online import updates
from posttrain.train.online.learning import PolicyInputs
from posttrain.train.online.on_server import fetch_adapter, open_policy, train_on_server
from posttrain.train.online.trainer_choice import ATTENTION, MLP, is_on_server, refuse_for_server
from posttrain.train.policy import learn_policy
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.worlds.catalog import require_expert
from tests.rollout.tinker_server import TinkerServer

ADAPTER = LoraAdapter(type="lora", r=4, alpha=8, dropout=0.0, target_modules=sorted(ATTENTION | MLP))
KEY = "tml-a-key-of-nobody-0123456789"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in {"POSTTRAIN_TRAINER": "tinker", "POSTTRAIN_TINKER_MODEL": "tiny", "TINKER_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def serve(monkeypatch):
    """Starts a server of a base model."""
    started = []

    def start(base, adapter=ADAPTER):
        started.append(TinkerServer(base, adapter))
        monkeypatch.setenv("TINKER_BASE_URL", started[-1].url)
        return started[-1]

    yield start
    for one in started:
        one.stop()


# The same steps as on this machine


def tiny_base():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(tiny_config()).eval()


class ServersWords(tiny_runs.WordEpisodes):
    """Plays by the weights that the server has."""

    def __init__(self, server):
        super().__init__(server.live)
        self.server = server

    def refresh(self):
        self.model = self.server.live
        super().refresh()


def run_words_on(server, monkeypatch, folder, **changes):
    """`run_online` with the server as its trainer; returns the adapter."""
    model = add_lora(tiny_base(), ADAPTER, seed=1)
    with open_run(folder) as run, open_policy(model, seed=1, checkpoint=run.checkpoint) as policy:

        def train(_, tokenizer, inputs, **how):
            train_on_server(policy, tokenizer, inputs, **how)

        monkeypatch.setattr(tiny_runs, "train_online", train)
        run.progress = changes.pop("progress", run.progress)
        tiny_runs.run_online(run, None, source=ServersWords(server), **changes)
        fetch_adapter(policy, model, name="policy")
    return trained_of(model)


def trained_of(model):
    return {name: one.detach().clone() for name, one in model.named_parameters() if "lora_" in name}


LARGER = {"optimizer": "adamw", "lr": 1e-3, "tasks_per_step": 6, "group_size": 8}  # some word is right
CLIP = {"objective": {"type": "clip", "low": 0.001, "high": 0.001}, "updates_per_step": 2, "minibatches": 2}
CHOICES = [
    {},
    {"average": "episodes", "weight_decay": 0.1, "importance_cap": 1.0005, "max_staleness": 1},
    {**CLIP, "max_grad_norm": 0.05},
]


@pytest.mark.parametrize("changes", CHOICES, ids=["policy_gradient", "older_weights", "clip"])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_losses_and_weights_are_those_of_the_local_loop(serve, monkeypatch, tmp_path, changes, num_steps):
    knobs = {**LARGER, "max_steps": num_steps, **changes}
    losses, batch_loss = [], updates.batch_loss

    def observed(*args, **kwargs):
        losses.append(batch_loss(*args, **kwargs))
        return losses[-1]

    monkeypatch.setattr(updates, "batch_loss", observed)
    local = add_lora(tiny_base(), ADAPTER, seed=1)
    before = trained_of(local)
    with open_run(tmp_path / "local") as run:
        tiny_runs.run_online(run, local, **copy.deepcopy(knobs))
    server = serve(tiny_base())
    found = run_words_on(server, monkeypatch, tmp_path / "server", **knobs)

    assert sum(server.losses) == pytest.approx(float(sum(losses).detach()), abs=1e-5)
    expected = trained_of(local)
    assert max(float((expected[name] - before[name]).abs().max()) for name in before) > 5e-4
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=0, atol=1e-5)
    if num_steps == 3:  # the choice is one that has an effect
        last = read_metrics(tmp_path / "server" / METRICS)[-1]
        assert bool(last["clip_low"] + last["clip_high"]) == ("objective" in changes)
        assert bool(last["importance_capped_frac"]) == ("importance_cap" in changes)
    ours, theirs = (read_metrics(tmp_path / name / METRICS) for name in ("local", "server"))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() - other.keys() <= {"kl", "grad_norm", "skipped_updates"}
        assert {key: other[key] for key in mine.keys() & other.keys()} == pytest.approx(
            {key: mine[key] for key in mine.keys() & other.keys()}, abs=1e-5
        )


def test_a_run_that_died_goes_on_from_what_the_server_saved(serve, monkeypatch, tmp_path):
    knobs = {**LARGER, "max_steps": 7}
    undisturbed = run_words_on(serve(tiny_base()), monkeypatch, tmp_path / "undisturbed", **copy.deepcopy(knobs))
    server = serve(tiny_base())

    def die(step, *_):
        if step == 6:  # two steps behind the checkpoint
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_words_on(server, monkeypatch, tmp_path / "died", progress=die, **copy.deepcopy(knobs))
    saved = json.loads((tmp_path / "died/checkpoint-4/online.json").read_text())
    assert saved["server"] in server.saved
    resumed = run_words_on(server, monkeypatch, tmp_path / "died", **knobs)

    assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)
    assert (tmp_path / "died" / METRICS).read_text() == (tmp_path / "undisturbed" / METRICS).read_text()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


# From episodes of a world to a policy's folder


@pytest.fixture(scope="module")
def params(tmp_path_factory):
    file = tmp_path_factory.mktemp("params") / "params.yaml"
    file.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    adapter = ADAPTER.model_dump()
    changes = {"model.adapter": adapter, "train_policy.optimizer": "adamw", "train_policy.alarms.kl": None}
    apply_overrides(file, {**SMALL, **changes, "prepare_model.warmup_steps": 30, "train_policy.algorithm": algorithm()})
    return load_params(file)


def algorithm(**changes):
    return {**SMALL["train_policy.algorithm"], "kl": {"type": "none", "is_measured": False}, **changes}


@pytest.fixture(scope="module")
def world(params):
    return ScoredWorld.of(params.world, params.reward, params.agent)


@pytest.fixture(scope="module")
def start(params, world, tmp_path_factory):
    """The folder of a model that ends its messages and makes calls, as SFT on the expert's episodes
    leaves it, from which training begins."""
    folder = tmp_path_factory.mktemp("models") / "sft"
    expert, tasks = require_expert(world.domain, needed_by="a test"), world.domain.tasks("sft", 48)
    rows = demonstrate(expert, tasks, limits=world.limits, seed=1, reasoning_frac=0.5, is_flawless=True)
    how = {"warmup": params.prepare_model, "max_context_tokens": params.agent.max_context_tokens, "seed": 1}
    write_base(folder, conversations(rows), tool_names(rows), params=params.model, **how)
    model, codec = load_on_cpu(folder), load_codec(folder)
    taught = list(codec.encode_rows(row.conversation for row in rows))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(120):
        part = [taught[place % len(taught)] for place in range(8 * step, 8 * step + 8)]
        ids_N_T = pad_right([row.input_ids for row in part], 0)
        labels_N_T = pad_right([labels_of(row.input_ids, row.mask) for row in part], IGNORED)
        (-agent_logprobs(model, ids_N_T, labels_N_T).sum() / 200).backward()
        optimizer.step()
        optimizer.zero_grad()
    save_model(model, codec.tokenizer, folder)
    return folder


def learn(params, world, start, folder, **changes):
    """What the stage does, on 2 tasks a step of the toy world; returns the trained model."""
    knobs = params.train_policy.model_copy(update=changes)
    refuse_for_server(knobs, params.model)
    model, codec = load_trainable(start, params.model, seed=1), load_codec(start)
    tasks = {split: world.domain.tasks(split, 8) for split in ("rl", "dev")}
    inputs = PolicyInputs(world=world, tasks=tasks["rl"], dev_tasks=tasks["dev"], reasoning_frac=0.5)
    with open_run(folder) as run:
        learn_policy(model, codec, inputs, params=knobs, seed=1, run=run)
    return model, codec


def test_a_run_ends_with_a_policy_that_evaluation_loads(params, world, start, serve, tmp_path):
    server = serve(load_on_cpu(start))
    model, codec = learn(params, world, start, tmp_path / "run")
    save_trained(model, codec.tokenizer, tmp_path / "policy")

    trained, merged = load_model(tmp_path / "policy"), copy.deepcopy(server.live).merge_and_unload()
    ids = torch.arange(5, 45)[None]
    torch.testing.assert_close(trained(ids).logits, merged(ids).logits, rtol=0, atol=1e-4)
    play = world.player(trained, load_codec(tmp_path / "policy"), seed=1)
    assert not any(one.is_aborted for one in play(world.domain.tasks("test", 4), 0.0))
    lines = read_metrics(tmp_path / "run" / METRICS)
    assert [line["step"] for line in lines] == [1, 2]
    assert all({"reward_std", "frac_reward_zero_std", "entropy", "demonstration_loss"} <= line.keys() for line in lines)
    # samples were scored by the trainer as by the sampler
    assert max(line["logprob_gap_max"] for line in lines) < 1e-4
    assert server.requests.count("optim_step") == sum(line["updates"] for line in lines)


# What is refused


REFUSED = {
    "kl is loss": {"kl": {"type": "loss", "weight": 0.1}},
    "kl is none or measured": {"kl": {"type": "none"}},
    "entropy_bonus is 0.01": {"entropy_bonus": 0.01},
    "temperature is 1.5": {"temperature": 1.5},
    "credit is gae": {"credit": yaml.safe_load(GaeCredit.example) | {"type": "gae"}},
    "objective is sapo": {"objective": {"type": "sapo", "positive": 1.0, "negative": 1.05}, "updates_per_step": 2},
    "max_staleness is 4": {"max_staleness": 4},
    "dev.keep is best": {"dev": {"every_steps": 1, "num_tasks": 4, "keep": "best"}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_server_cannot_do_is_refused_before_anything_is_asked(params, words):
    online = type(params.train_policy.algorithm).model_validate(algorithm(**REFUSED[words]))
    with pytest.raises(ConfigurationError, match=f"cannot do this: algorithm.{words}.* \\((set|take) "):
        refuse_for_server(params.train_policy.model_copy(update={"algorithm": online}), params.model)


def test_an_adapter_or_optimizer_of_ours_alone_is_refused(params):
    model = params.model.model_copy(update={"adapter": ADAPTER.model_copy(update={"target_modules": ["q_proj"]})})
    with pytest.raises(ConfigurationError, match=r"optimizer is muon \(set adamw\); model.adapter.target_modules is q"):
        refuse_for_server(params.train_policy.model_copy(update={"optimizer": "muon"}), model)


def test_an_unknown_trainer_is_refused(monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TRAINER", "verl")
    with pytest.raises(ConfigurationError, match="'verl'; there are local and tinker"):
        is_on_server()


@pytest.mark.parametrize("name", ["TINKER_API_KEY", "POSTTRAIN_TINKER_MODEL"])
def test_a_missing_name_or_key_is_refused(params, world, start, tmp_path, monkeypatch, name):
    monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=f"{name} is not set"):
        learn(params, world, start, tmp_path)


def test_a_key_that_is_none_is_refused_without_its_text(params, world, start, serve, tmp_path, monkeypatch):
    serve(load_on_cpu(start))
    monkeypatch.setenv("TINKER_API_KEY", "not-one-0123456789")
    with pytest.raises(ConfigurationError, match="must start with the 'tml-' prefix") as refused:
        learn(params, world, start, tmp_path)
    assert "not-one" not in str(refused.value)


def test_a_server_that_is_down_is_named_within_seconds(params, world, start, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(Interrupted, match=r"no Tinker server answers at http://127.0.0.1:9 .*start it"):
        learn(params, world, start, tmp_path)


MOODS = {
    "no_logprobs": "gave 1 tokens with 0 log-probabilities",
    "pickles": "exports adapter_model.bin, and adapter_config.json and adapter_model.safetensors are needed",
    "refuses": r"asked to learn \(forward_backward by importance_sampling\), the Tinker server refuses: .*400.* mask",
    "no_stop": "leaves the stop token out of a sample",
}


@pytest.mark.parametrize("mood", MOODS)
def test_a_server_that_cannot_do_its_part_ends_the_run_with_its_words(params, world, start, serve, tmp_path, mood):
    server = serve(load_on_cpu(start))
    server.mood = mood
    with pytest.raises(ConfigurationError, match=MOODS[mood]):
        learn(params, world, start, tmp_path)
    assert "optim_step" not in server.requests
    assert server.requests.count("forward_backward") < 10  # nothing is asked for ever


@pytest.mark.parametrize(("what", "words"), [("weights", "nats a token apart"), ("alpha", "has lora_alpha 16")])
def test_another_model_or_adapter_on_the_server_is_refused(params, world, start, serve, tmp_path, what, words):
    base = load_on_cpu(start)
    if what == "weights":
        with torch.no_grad():
            base.model.norm.weight.mul_(1.5)
    server = serve(base, ADAPTER.model_copy(update={"alpha": 16} if what == "alpha" else {}))
    with pytest.raises((ConfigurationError, tinker_engine.DataError), match=words):
        learn(params, world, start, tmp_path)
    assert "optim_step" not in server.requests
