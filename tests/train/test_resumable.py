import signal

import pytest
from tiny_runs import Death, train

pytestmark = [
    pytest.mark.needs_killed,
    pytest.mark.xdist_group("resumable"),  # one worker makes what they share
]

ALGORITHMS = ["sft", "online", "dpo", "kto", "orpo", "reward_model", "process_model"]
LIKE_DPO = {"kto", "orpo"}  # one trainer writes their checkpoints: killed once each, with adapters
DEATHS = [Death(after=2), Death(after=7), Death(in_save=4), Death(in_save=8), Death(asked=6)]
KILLED = -signal.SIGKILL


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "sft_by_adapter"])
def test_adapters_are_trained_alone_and_resume_to_the_same_bytes(algorithm, tmp_path):
    code, expected = train(algorithm, tmp_path / "whole", is_adapted=True)
    train(algorithm, tmp_path / "cut", Death(after=7), is_adapted=True)

    assert code == 0
    assert train(algorithm, tmp_path / "cut", is_adapted=True) == (0, expected)
    assert all("lora" in name or "score" in name for name in expected["changed"])
    assert any("lora_B" in name for name in expected["changed"])
    if algorithm in ("reward_model", "process_model"):
        assert any("score" in name for name in expected["changed"])


@pytest.fixture(scope="module", params=[name for name in ALGORITHMS if name not in LIKE_DPO])
def uninterrupted(request, tmp_path_factory):
    code, result = train(request.param, tmp_path_factory.mktemp(request.param))
    assert code == 0
    return request.param, result


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_run_that_died_reaches_the_same_weights_and_metrics(uninterrupted, death, tmp_path):
    algorithm, expected = uninterrupted

    died, _ = train(algorithm, tmp_path, death)
    ended, result = train(algorithm, tmp_path)

    assert died == (75 if death.asked else KILLED)
    assert ended == 0
    assert result == expected


def test_a_run_that_was_over_is_not_trained_again(uninterrupted, tmp_path):
    algorithm, expected = uninterrupted

    died, _ = train(algorithm, tmp_path, Death(after=12))
    ended, result = train(algorithm, tmp_path, Death(after=1))

    assert (died, ended) == (KILLED, 0)
    assert result == expected
