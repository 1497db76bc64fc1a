"""Two real vLLM servers on loopback with the SFT model of the default run: evaluation, weight
updates, GRPO, and a server that is killed."""

import time

import pytest
import torch

from posttrain.rollout.episode_sampler import Stream, episode_seeds
from tests.real.experiment import success, worst_gap
from tests.waiting import wait_until

pytest_plugins = ["tests.real.vllm_fixtures"]
pytestmark = [pytest.mark.needs_vllm, pytest.mark.usefixtures("_play_by_vllm")]
NUM_GRPO_STEPS = 20


@pytest.fixture(scope="module")
def servers(serve):
    return serve(8611, 8612)


def test_evaluation_is_that_of_the_torch_engine(monkeypatch, experiment):
    tasks, model = experiment.tasks("dev"), experiment.model()
    by_vllm = experiment.greedy(model, tasks)
    monkeypatch.setenv("POSTTRAIN_ENGINE", "torch")
    by_torch = experiment.greedy(model, tasks)
    num_equal = sum(one.token_ids == other.token_ids for one, other in zip(by_vllm, by_torch, strict=True))
    print(f"\n{num_equal} of {len(tasks)} greedy episodes have the same tokens")
    print(f"  success {success(by_vllm):.3f}, by the torch engine {success(by_torch):.3f}")
    assert num_equal >= 0.98 * len(tasks)
    assert worst_gap(model, by_vllm) < 1e-3


@pytest.mark.parametrize("sync", ["disk", "gloo"])
def test_after_every_update_tokens_are_drawn_by_the_new_weights(monkeypatch, experiment, tmp_path, sync):
    monkeypatch.setenv("POSTTRAIN_VLLM_SYNC", sync)
    tasks, model = experiment.tasks("dev")[:32], experiment.model()
    sampler = experiment.sampler(model)
    torch.manual_seed(0)
    for version in range(5):
        sampler.refresh()
        played = sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, version, count=len(tasks)))
        assert {turn.policy_version for one in played for turn in one.turns} == {version}
        gap = worst_gap(model, played)
        print(f"\nversion {version}: log-probs differ by {gap:.1e} at most")
        assert gap < 1e-3
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * parameter.std() * torch.randn_like(parameter))
    assert bool(list(tmp_path.rglob("*.safetensors"))) == (sync == "disk")


def test_a_server_killed_in_the_middle_of_a_batch_loses_no_episode(servers, experiment):
    tasks, model = experiment.tasks("dev"), experiment.model()
    sampler = experiment.sampler(model)

    def kill_one(num_done, num_episodes):
        if num_done == num_episodes // 4:
            servers[1].kill()

    played = sampler.sample(tasks * 3, episode_seeds(Stream.MEASUREMENT, 3, count=3 * len(tasks)), progress=kill_one)
    assert not servers[1].is_up()
    assert not [one for one in played if one.failure]
    assert worst_gap(model, played) < 1e-3
    print(f"\n{len(played)} episodes, none lost; success {success(played):.3f}")

    servers[1].start()
    servers[1].wait()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    sampler.refresh()
    wait_until(lambda: len(sampler._engine._router.up) == 2)
    assert worst_gap(model, sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, 4, count=len(tasks)))) < 1e-3


def test_grpo_lifts_dev_success_as_with_the_torch_engine(monkeypatch, experiment, tmp_path):
    tasks = experiment.tasks("dev")
    lifted = {}
    for name in ("torch", "vllm"):
        monkeypatch.setenv("POSTTRAIN_ENGINE", name)
        model = experiment.model()
        start = time.perf_counter()
        steps = experiment.train(model, tmp_path / name, num_steps=NUM_GRPO_STEPS, lr=experiment.params.train_policy.lr)
        seconds = time.perf_counter() - start
        monkeypatch.setenv("POSTTRAIN_ENGINE", "torch")
        lifted[name] = success(experiment.greedy(model.eval(), tasks))
        rl_success, gap = (
            sum(step["success"] for step in steps[-5:]) / 5,
            max(step["logprob_gap_max"] for step in steps),
        )
        print(
            f"\n{name}: {NUM_GRPO_STEPS} steps in {seconds:.0f} s; success on dev {lifted[name]:.3f}, "
            f"on rl in the last five {rl_success:.3f}"
        )
        print(f"  largest difference of a log-prob: {gap:.1e}")
        assert gap < 1e-3
        assert all(step["lost"] == 0 for step in steps)
    before = success(experiment.greedy(experiment.model(), tasks))
    print(f"before: {before:.3f}")
    assert lifted["vllm"] > before + 0.03
    assert abs(lifted["vllm"] - lifted["torch"]) < 0.08
