"""Two real vLLM servers on loopback with the SFT model of the default run: evaluation, weight updates, GRPO, and a server that is killed."""

import threading
import time
from pathlib import Path

import pytest
import torch

from posttrain.algorithms.grpo import train_grpo
from posttrain.algorithms.policy_player import PolicyPlayer
from posttrain.algorithms.resumable import open_run
from posttrain.algorithms.sampling import Sampler, episode_seeds
from posttrain.data.schemas import read_tasks
from posttrain.models.loading import load_codec, load_model
from posttrain.params import load_params
from posttrain.rewards.completion import is_success
from posttrain.rewards.total import load_reward
from posttrain.tracking.metrics_log import read_metrics
from posttrain.worlds.domains import make_domain

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_GRPO_STEPS = 20


@pytest.fixture(autouse=True)
def engine(monkeypatch, servers, tmp_path):
    torch.set_num_threads(1)
    monkeypatch.setenv("POSTTRAIN_ENGINE", "vllm")
    monkeypatch.setenv("POSTTRAIN_VLLM_URLS", ",".join(server.url for server in servers))
    monkeypatch.setenv("POSTTRAIN_VLLM_FOLDER", str(tmp_path / "weights"))


@pytest.fixture(scope="module")
def params():
    return load_params(REPOSITORY / "params.yaml")


@pytest.fixture(scope="module")
def domain(params):
    return make_domain(params.world)


def tasks_of(*splits):
    return read_tasks(REPOSITORY / "data/raw/tasks.parquet", *splits)


def sampler_of(model, sft, params, domain, temperature):
    return Sampler(model, load_codec(sft), domain=domain, reward=load_reward(params.reward), limits=params.agent, temperature=temperature)


def greedy(model, sft, params, domain, tasks):
    return sampler_of(model, sft, params, domain, 0.0).play(tasks, episode_seeds(1, count=len(tasks)))


def success(played, tasks):
    return sum(map(is_success, played, tasks)) / len(tasks)


def worst_gap(model, played):
    """Of the log-probabilities in the record, from a full forward of the model."""
    gaps = []
    with torch.no_grad():
        for one in played:
            ids = torch.tensor([one.token_ids])
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[:, 0]
            written = torch.tensor(one.mask[1:]).bool()
            gaps.append(float((logprobs - torch.tensor(one.logprobs[1:]))[written].abs().max()))
    return max(gaps)


def test_evaluation_is_that_of_the_torch_engine(monkeypatch, sft, params, domain):
    tasks = tasks_of("dev")
    model = load_model(sft, dtype="float32")
    by_vllm = greedy(model, sft, params, domain, tasks)
    monkeypatch.setenv("POSTTRAIN_ENGINE", "torch")
    by_torch = greedy(model, sft, params, domain, tasks)
    num_equal = sum(one.token_ids == other.token_ids for one, other in zip(by_vllm, by_torch, strict=True))
    print(
        f"\n{num_equal} of {len(tasks)} greedy episodes have the same tokens; success {success(by_vllm, tasks):.3f}, {success(by_torch, tasks):.3f}"
    )
    assert num_equal >= 0.98 * len(tasks)
    assert worst_gap(model, by_vllm) < 1e-3


def test_after_every_update_tokens_are_drawn_by_the_new_weights(sft, params, domain):
    tasks = tasks_of("dev")[:32]
    model = load_model(sft, dtype="float32")
    sampler = sampler_of(model, sft, params, domain, 1.0)
    torch.manual_seed(0)
    for version in range(5):
        sampler.refresh()
        played = sampler.play(tasks, episode_seeds(version, count=len(tasks)))
        assert {turn.policy_version for one in played for turn in one.turns} == {version}
        gap = worst_gap(model, played)
        print(f"\nversion {version}: log-probs differ by {gap:.1e} at most")
        assert gap < 1e-3
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * parameter.std() * torch.randn_like(parameter))


def test_a_server_killed_in_the_middle_of_a_batch_loses_no_episode(servers, sft, params, domain):
    tasks = tasks_of("dev") * 3
    model = load_model(sft, dtype="float32")
    sampler = sampler_of(model, sft, params, domain, 1.0)
    killer = threading.Timer(3.0, servers[1].kill)
    killer.start()
    played = sampler.play(tasks, episode_seeds(3, count=len(tasks)))
    killer.join()
    assert not servers[1].is_up()
    assert not [one for one in played if one.failure]
    assert worst_gap(model, played) < 1e-3
    print(f"\n{len(played)} episodes, none lost; success {success(played, tasks):.3f}")

    servers[1].start()
    servers[1].wait()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    sampler.refresh(), sampler.refresh()
    wait_until(lambda: len(sampler._engine._router.up) == 2)
    again = sampler.play(tasks_of("dev"), episode_seeds(4, count=len(tasks_of("dev"))))
    assert worst_gap(model, again) < 1e-3


def test_grpo_lifts_dev_success_as_with_the_torch_engine(monkeypatch, sft, params, domain, tmp_path):
    tasks = tasks_of("dev")
    lifted = {}
    for name in ("torch", "vllm"):
        monkeypatch.setenv("POSTTRAIN_ENGINE", name)
        model = load_model(sft, dtype="float32")
        start = time.perf_counter()
        with open_run(tmp_path / name) as run:
            train_grpo(
                model,
                load_codec(sft).tokenizer,
                tasks=tasks_of("rl"),
                player=PolicyPlayer(sampler_of(model, sft, params, domain, 1.0)),
                params=params.train_policy.algorithm.model_copy(update={"max_steps": NUM_GRPO_STEPS}),
                lr=params.train_policy.lr,
                optimizer=params.train_policy.optimizer,
                checkpoint_every_steps=1000,
                seed=params.seed,
                run=run,
            )
        seconds = time.perf_counter() - start
        lines = read_metrics(tmp_path / name / "metrics.jsonl")
        monkeypatch.setenv("POSTTRAIN_ENGINE", "torch")
        lifted[name] = success(greedy(model.eval(), sft, params, domain, tasks), tasks)
        rl_success, gap = sum(line["success"] for line in lines[-5:]) / 5, max(line["logprob_gap_max"] for line in lines)
        print(f"\n{name}: {NUM_GRPO_STEPS} steps in {seconds:.0f} s; success on dev {lifted[name]:.3f}, on rl in the last five {rl_success:.3f}")
        print(f"  largest difference of a log-prob: {gap:.1e}")
        assert gap < 1e-3
        assert all(line["lost"] == 0 for line in lines)
    before = success(greedy(load_model(sft, dtype="float32"), sft, params, domain, tasks), tasks)
    print(f"before: {before:.3f}")
    assert lifted["vllm"] > before + 0.03
    assert abs(lifted["vllm"] - lifted["torch"]) < 0.08


def wait_until(is_so, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)
