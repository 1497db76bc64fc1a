"""A model is judged as it is served: exported, behind vLLM's chat endpoint, with its template and
the parser of its calls, it does as it does in this process."""

from contextlib import closing

import pytest

from benchmarks.vllm_process import VllmProcess
from posttrain.export.model_folder import vllm_settings, write_exported
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.types import StopReason
from tests.limits import endless
from tests.real.experiment import success
from tests.real.vllm_fixtures import SFT

pytest_plugins = ["tests.real.vllm_fixtures"]
pytestmark = pytest.mark.needs_vllm
NUM_TASKS = 128


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "mine"
    write_exported(SFT, folder, card="", dtype="float32")
    flags, settings = vllm_settings(folder)
    with closing(VllmProcess(folder, 8615, tmp_path_factory.mktemp("vllm"), flags=flags, **settings)) as server:
        server.wait()
        yield f"{server.url}/v1"


def test_an_exported_model_plays_behind_an_endpoint_as_in_this_process(monkeypatch, experiment, endpoint):
    tasks = experiment.tasks("dev")[:NUM_TASKS]
    assert len(tasks) == NUM_TASKS
    here = experiment.greedy(experiment.model(), tasks)
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    policy = OpenAiPolicy("mine", temperature=0.0, max_new_tokens=experiment.params.agent.max_new_tokens)
    served = experiment.played(policy, tasks)
    won_here, won_served = (round(success(plays) * NUM_TASKS) for plays in (here, served))
    num_equal = sum(calls_of(a) == calls_of(b) for a, b in zip(here, served, strict=True))
    print(f"\n{won_served} of {NUM_TASKS} behind vLLM, {won_here} in this process; the same calls in {num_equal}")
    assert not any(one.failure for one in served)
    assert abs(won_served - won_here) <= 2


def test_a_conversation_that_does_not_fit_ends_its_episode_alone(monkeypatch, experiment, endpoint):
    """By vLLM's own words, which change."""
    tasks = experiment.tasks("dev")[:2]
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    policy = OpenAiPolicy("mine", temperature=0.0, max_new_tokens=experiment.params.agent.max_new_tokens)
    long, usual = experiment.played(policy, [endless(tasks[0]), tasks[1]])
    assert (long.stop_reason, long.failure) == (StopReason.TOKEN_LIMIT, "")
    assert (usual.stop_reason == StopReason.TOKEN_LIMIT, usual.failure) == (False, "")


def calls_of(played):
    """The texts but for spaces: the server's parser has put some in."""
    return [(call.name, call.arguments.replace(" ", "")) for one in played.messages for call in one.tool_calls]
