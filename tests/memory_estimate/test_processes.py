"""Tests of the memory of one of several processes, against sums by hand."""

import os

import pytest
import torch.distributed as dist

from benchmarks.arms import REPOSITORY
from posttrain.memory_estimate.processes import Processes, server_memory
from posttrain.memory_estimate.tracker import ACTIVATIONS, CACHE, ENGINE, GRADIENTS, OPTIMIZER, OTHERS, WEIGHTS
from posttrain.runtime.exits import ConfigurationError
from tests.memory_estimate.test_stages import CONFIG, knobs, parts_of, sizes

FOUR = {"train_sft.batch_size": 4, "train_policy.algorithm.tasks_per_step": 4}
NUM_WEIGHTS = sum(sizes(CONFIG))


def near(expected):
    return pytest.approx(expected, rel=0.01)  # the rotary embedding's frequencies are not sharded


def test_of_four_processes_one_has_a_quarter_and_a_gathered_layer():
    parts = parts_of("train_policy", knobs(FOUR, gradient_checkpointing=True), processes=Processes(4, True, servers=1))
    for part, bytes_per_weight in {WEIGHTS: 4, GRADIENTS: 4, OPTIMIZER: 8, OTHERS: 4}.items():
        assert parts[part] == near(bytes_per_weight * NUM_WEIGHTS / 4), part
    layer = 4 * (NUM_WEIGHTS - 2 * CONFIG.vocab_size * CONFIG.hidden_size) / CONFIG.num_hidden_layers
    assert parts[ACTIVATIONS] > layer
    assert not {ENGINE, CACHE} & set(parts)
    assert not dist.is_initialized()
    assert "WORLD_SIZE" not in os.environ


def test_with_ddp_each_process_has_all_and_the_gradients_twice():
    parts = parts_of("train_sft", knobs(FOUR), processes=Processes(2))
    assert parts[WEIGHTS] == near(4 * NUM_WEIGHTS)
    assert parts[GRADIENTS] == 8 * NUM_WEIGHTS


def test_a_process_takes_its_share_of_the_rows():
    long = {**FOUR, "agent.max_context_tokens": 1024, "agent.max_new_tokens": 512}
    one, four = (
        parts_of("train_policy", knobs(long), num_slots=1, processes=Processes(count, servers=1)) for count in (1, 4)
    )
    assert 3 * four[ACTIVATIONS] < one[ACTIVATIONS] < 5 * four[ACTIVATIONS]


def test_a_stage_that_one_process_runs_is_as_ever():
    params = knobs(FOUR)
    assert parts_of("evaluate", params, num_slots=2, processes=Processes(4, True)) == parts_of(
        "evaluate", params, num_slots=2
    )


def test_shards_that_play_without_servers_are_refused_as_the_stage_refuses_them():
    with pytest.raises(ConfigurationError, match=r"FSDP leaves no process all weights.*\(--servers\)"):
        parts_of("train_policy", knobs(FOUR), processes=Processes(4, True))


@pytest.mark.parametrize("name", ["fsdp_offload", "zero2"])
def test_what_offloads_or_is_deepspeeds_is_refused(name):
    with pytest.raises(ConfigurationError, match=r"only DDP and FSDP on the GPU are estimated"):
        Processes.of(REPOSITORY / f"infra/accelerate/{name}.yaml", count=2, servers=0)


def test_a_file_says_whether_weights_are_sharded():
    files = {name: REPOSITORY / f"infra/accelerate/{name}.yaml" for name in ("ddp", "fsdp")}
    assert [Processes.of(file, count=2, servers=1).is_sharded for file in files.values()] == [False, True]
    assert Processes.of(files["fsdp"], count=1, servers=0) == Processes()


def test_a_server_has_the_weights_and_two_numbers_of_each_head():
    weights, per_token = server_memory(knobs(dtype="bfloat16"), CONFIG)
    assert weights == 2 * NUM_WEIGHTS
    assert per_token == 2 * 2 * CONFIG.num_hidden_layers * 2 * 16  # heads of keys and values, of 16 numbers
