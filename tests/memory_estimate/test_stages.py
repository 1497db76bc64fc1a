"""Tests of the estimates of stages' memory, against sums by hand and against real tensors."""

import resource
from pathlib import Path

import bitsandbytes
import pytest
import torch
import yaml
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config

from benchmarks.arms import REPOSITORY
from posttrain.config.params import Params
from posttrain.memory_estimate import stages
from posttrain.memory_estimate.advice import with_knobs
from posttrain.memory_estimate.model import QuantisedShape, model_config
from posttrain.memory_estimate.stages import STAGES, stage_memory
from posttrain.memory_estimate.tracker import ACTIVATIONS, CACHE, ENGINE, GRADIENTS, LOGITS, OPTIMIZER, OTHERS, WEIGHTS
from posttrain.train.advantages.gae import GaeCredit
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams

LORA = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "down_proj"]}
CONFIG = Qwen2Config(
    vocab_size=700,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    tie_word_embeddings=False,
)
SEVEN_BILLION = Qwen2Config(
    vocab_size=152064,
    hidden_size=3584,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    intermediate_size=18944,
    tie_word_embeddings=False,
)
LONG = {"validate_data.max_tokens": 1024, "agent.max_context_tokens": 1024}
ALGORITHM = "train_policy.algorithm"
BARE = {f"{ALGORITHM}.kl": {"type": "none", "is_measured": False}, "train_policy.alarms.kl": None}


def knobs(changes=(), **model):
    content = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    own = {"adapter": {"type": "full"}, "gradient_checkpointing": False, "dtype": "float32", **model}
    content["model"] = {"type": "pretrained", "name": "any/model", **own}
    content["train_sft"]["optimizer"] = content["train_policy"]["optimizer"] = "adamw"
    # rows so short that the weights are the most of it
    content["validate_data"]["max_tokens"], content["agent"]["max_context_tokens"] = 16, 32
    content["agent"]["max_new_tokens"] = 8
    content["train_policy"]["algorithm"]["tasks_per_step"], content["train_sft"]["batch_size"] = 1, 1
    return with_knobs(Params.model_validate(content), dict(changes))


def parts_of(stage, params, **more):
    return stage_memory(stage, params, CONFIG, **more).parts


def sizes(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return [weight.numel() for weight in model.parameters()]


@pytest.mark.parametrize("stage", ["train_sft", "train_policy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_weight_that_is_trained_by_adamw_takes_sixteen_bytes(stage, dtype):
    """The known sum: 7 billion weights are 112 GB."""
    weights = sizes(CONFIG)
    parts = parts_of(stage, knobs(dtype=dtype, gradient_checkpointing=True), num_slots=1)
    kept = 8 * sum(weights) + 4 * len(weights)  # and the number of steps of each tensor
    assert parts[GRADIENTS] == 4 * sum(weights)
    assert kept <= parts[OPTIMIZER] <= kept + 2 * 4 * max(weights) + 1024  # what the step of one tensor takes
    assert 4 * sum(weights) <= parts[WEIGHTS] < 4 * sum(weights) + 4096  # and the rotary embedding's frequencies


def test_of_adapters_only_these_are_trained_and_the_rest_is_as_it_is_computed_in():
    num_adapters = 3 * (4 * (64 + 64) + 4 * (96 + 64))
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        # in two parts: with the second there are gradients of the first
        parts = parts_of("train_sft", knobs({"train_sft.batch_size": 2}, adapter=LORA, dtype=dtype, rows_at_once=1))
        assert parts[GRADIENTS] == 4 * num_adapters
        frozen = parts[WEIGHTS] - 4 * num_adapters
        assert size * sum(sizes(CONFIG)) <= frozen < size * sum(sizes(CONFIG)) + 4096


def test_a_step_in_one_part_has_no_gradients_until_it_has_lost_its_activations():
    long = {"validate_data.max_tokens": 1024, "train_sft.batch_size": 2}
    whole, cut = (parts_of("train_sft", knobs(long, rows_at_once=rows)) for rows in (2, 1))
    assert whole.get(GRADIENTS, 0) < cut[GRADIENTS] == 4 * sum(sizes(CONFIG))
    assert whole[ACTIVATIONS] > 1.9 * cut[ACTIVATIONS]


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_quantised_matrix_takes_what_that_of_bitsandbytes_does(kind):
    linear = nn.Linear(512, 256, bias=False)
    ours = QuantisedShape(linear, kind, torch.float32)
    if kind == "nf4":
        theirs = bitsandbytes.nn.LinearNF4(512, 256, bias=False, compress_statistics=False)
        theirs.load_state_dict(linear.state_dict())
        theirs.to("cpu")
        scales = theirs.weight.quant_state.absmax
    else:
        theirs = bitsandbytes.nn.Linear8bitLt(512, 256, bias=False, has_fp16_weights=False)
        theirs.load_state_dict(linear.state_dict())
        theirs.to("cpu")
        scales = theirs.weight.SCB
    assert ours.weight.nbytes == theirs.weight.nbytes
    assert ours.scales.nbytes == scales.nbytes


def test_an_engine_takes_its_own_weights_and_a_cache_of_as_many_slots_as_there_is_room_for(monkeypatch):
    a_slot = 3 * 2 * 2 * 16 * 32 * 4
    parts = parts_of("evaluate", knobs(), num_slots=128)
    assert parts[WEIGHTS] < 0.3 * parts[ENGINE]  # the embedding and head of the last moment
    assert parts[CACHE] == 128 * a_slot
    assert parts[ENGINE] == pytest.approx(4 * sum(sizes(CONFIG)), rel=0.1)
    fewer = parts_of("evaluate", knobs(), num_slots=128, gpu_bytes=parts[WEIGHTS] + parts[ENGINE] + 3 * 10 * a_slot)
    assert fewer[CACHE] == pytest.approx(10 * a_slot, abs=a_slot)
    monkeypatch.setenv("POSTTRAIN_ENGINE", "vllm")
    assert not {CACHE, ENGINE} & parts_of("evaluate", knobs()).keys()


def test_what_stands_beside_the_policy_is_there_only_where_knobs_ask_for_it():
    kl, measured = {"type": "loss", "weight": 0.1}, {"type": "none", "is_measured": True}
    whole = 4 * sum(sizes(CONFIG))
    for spelt in (kl, measured):
        assert parts_of("train_policy", knobs({"train_policy.algorithm.kl": spelt}))[OTHERS] == pytest.approx(
            whole, rel=0.01
        )
    assert OTHERS not in parts_of("train_policy", knobs(BARE))
    assert OTHERS not in parts_of("train_policy", knobs(adapter=LORA))
    scored = parts_of("train_policy", knobs(BARE | {"train_policy.reward_model_weight": 0.5}))
    assert scored[OTHERS] == pytest.approx(whole - 4 * 64 * 700, rel=0.01)  # without the head of words


def test_checkpointing_keeps_a_layers_input_and_not_what_it_computes():
    kept, again = (parts_of("train_sft", knobs(LONG, gradient_checkpointing=on))[ACTIVATIONS] for on in (False, True))
    assert again < 0.6 * kept


def test_a_large_vocabularys_logits_are_never_there_at_once():
    """Four rows of 1,024 tokens and 152,064 words would be 2.3 GiB in single precision."""
    params = knobs({**LONG, "agent.max_new_tokens": 170}, dtype="bfloat16", adapter=LORA)
    wide = Qwen2Config.from_dict(CONFIG.to_dict() | {"vocab_size": SEVEN_BILLION.vocab_size})
    parts = stage_memory("resample_data", params, wide).parts
    assert 0 < parts[LOGITS] <= 3 << 28


@pytest.mark.needs_large
def test_seven_billion_weights_are_reckoned_and_none_is_made():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = stage_memory("train_sft", knobs(dtype="bfloat16", gradient_checkpointing=True), SEVEN_BILLION)
    assert 16 * 7.6e9 < found.total < 16 * 7.6e9 + 8e9
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 400  # MiB


@pytest.mark.parametrize(("kind", "knobs_of"), [("dpo", DpoParams), ("kto", KtoParams), ("orpo", OrpoParams)])
def test_learning_from_pairs_keeps_no_second_model(kind, knobs_of):
    algorithm = {"type": kind, **yaml.safe_load(knobs_of.example), "batch_size": 4}
    parts = parts_of("train_policy", knobs({"train_policy.algorithm": algorithm}))
    assert parts[OPTIMIZER] >= 8 * sum(sizes(CONFIG))
    assert OTHERS not in parts


def test_a_critic_apart_is_reckoned():
    credit = {"type": "gae", **yaml.safe_load(GaeCredit.example)}
    assert credit["critic"]["trunk"] == "apart"
    found = parts_of("train_policy", knobs(BARE | {"train_policy.algorithm.credit": credit}))
    assert found[OTHERS] >= 4 * (sum(sizes(CONFIG)) - 64 * 700)


def test_the_committed_knobs_are_reckoned_for_every_stage():
    content = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    params = Params.model_validate(content)
    config = model_config(params)
    assert set(STAGES) <= {path.stem for path in (Path(REPOSITORY) / "stages").glob("*.py")}
    for stage in STAGES:
        assert 0 < stage_memory(stage, params, config).total < 1 << 30


def test_a_policys_metrics_take_no_more_rows_than_may_go_through_at_once(monkeypatch):
    """Their passes are of a row for each task, and so wider than a micro-batch of few episodes."""
    passes = []
    monkeypatch.setattr(
        stages, "_scores", lambda _, rows, *__, **___: passes.append(rows) or torch.zeros(1).requires_grad_()
    )
    for at_once, minibatches, expected in ((None, 1, {12, 16}), (None, 4, {3, 16}), (2, 4, {2})):
        changes = {"tasks_per_step": 16, "group_size": 6, "minibatches": minibatches, "kl": BARE[f"{ALGORITHM}.kl"]}
        own = {f"{ALGORITHM}.{name}": value for name, value in changes.items()} | {"train_policy.alarms.kl": None}
        passes.clear()
        parts_of("train_policy", knobs(own, rows_at_once=at_once))
        assert set(passes) == expected
