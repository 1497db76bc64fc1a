"""A model as a laptop runs it: SmolLM2 as a GGUF file, behind llama.cpp's own server, does as it
does in this process.

It learns eight tasks by heart, in two minutes, so that it calls tools and is sure of what it
writes. What `make pretrained` trains is served the same way.
"""

import json
import shutil
import subprocess
import urllib.request
from contextlib import closing, contextmanager

import pytest
import torch

from benchmarks.gpu.ground import encoded
from benchmarks.vllm_process import REPOSITORY, ServerProcess
from posttrain.export.gguf_file import gguf_of, write_gguf
from posttrain.export.model_folder import write_exported
from posttrain.models.gguf import write_folder
from posttrain.models.loading import load_codec, load_model, save_model
from posttrain.models.scratch import scratch_model
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import StopReason
from posttrain.worlds.catalog import make_domain
from tests.limits import endless
from tests.models.conftest import scratch_tokenizer  # noqa: F401  # a fixture
from tests.models.episodes import SCRATCH_PARAMS
from tests.real.plays import played

pytest_plugins = ["tests.real.smollm2_fixtures"]
pytestmark = pytest.mark.needs_llamacpp
NUM_TASKS = 8
SHORT = {
    "world.num_sft_tasks": NUM_TASKS,
    "train_sft.max_steps": 24,
    "train_sft.batch_size": 8,
    "train_sft.eval_every_steps": 24,
}
TEXTS = [
    "What was the closing price of 0700.HK on 2024-03-05?",
    "  two  spaces,\ttabs\n\n and lines\n",
    "1234567 12.5% -3.75 1e-6 ２０２４",
    "don't we'll I'M THEY'RE snake_case camelCase kebab-case",
    "騰訊控股 收盤價？ 一二三",
    '<tool_call>{"name":"get_quote","arguments":{"code":"0700","days":[1,2]}}</tool_call>',
    "naïve café Ωmega 🙂🚀",
]


@pytest.fixture(scope="module", autouse=True)
def llama_cpp():
    subprocess.run(["make", "infra/llamacpp/build/.installed"], cwd=REPOSITORY, check=True)


@pytest.fixture(scope="module")
def trained(ground, params, base):
    """The folder of a model that knows its tasks, and the tasks."""
    folder, shown, codec = ground.folder / "sft", ground.demonstrations(NUM_TASKS, params=params), load_codec(base)
    model = load_trainable(base, params.model, seed=1)
    ground.sft(model, codec, encoded(codec, shown), params)
    save_trained(model, codec.tokenizer, folder)
    return folder, make_domain(params.world).tasks("sft", NUM_TASKS)


@pytest.fixture(scope="module")
def exported(ground, trained):
    write_exported(trained[0], ground.folder / "exported" / "mine", card="", dtype="float32")
    return ground.folder / "exported" / "mine"


@pytest.fixture(scope="module")
def files(exported):
    """A file of each of some kinds of weights."""
    found = {weights: gguf_of(exported, weights) for weights in ("f32", "q8_0", "q4_k_m")}
    for weights, file in found.items():
        write_gguf(exported, file, weights)
    return found


@contextmanager
def served(file, port, folder):
    """The server's URL, while `posttrain serve` runs it."""
    with closing(ServerProcess(["posttrain", "serve", str(file), "--port", str(port)], port, folder)) as server:
        server.wait()
        yield server.url


def asked(url, path, body):
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def calls_of(play):
    return [(call.name, json.loads(call.arguments)) for message in play.messages for call in message.tool_calls]


def test_weights_and_tokens_of_the_file_are_the_folders(exported, files, tmp_path):
    assert write_folder(files["f32"], tmp_path / "read") > 100e6
    trained, read = (load_model(folder).state_dict() for folder in (exported, tmp_path / "read"))
    assert trained.keys() == read.keys()
    assert all(torch.equal(trained[name], read[name]) for name in trained)
    sizes = [file.stat().st_size for file in files.values()]
    assert sizes[1] < 0.3 * sizes[0]
    assert sizes[2] < 0.8 * sizes[1]
    assert not list(exported.glob(".gguf-*"))


def test_it_plays_behind_llama_cpp_as_in_this_process(ground, params, trained, files, exported, monkeypatch, tmp_path):
    folder, tasks = trained
    codec, domain = load_codec(exported), make_domain(params.world)
    here = ground.sampler(load_model(folder), codec, temperature=0.0, params=params).sample(tasks, [1] * len(tasks))
    num_won = sum(one.is_success for one in here)
    assert num_won >= NUM_TASKS / 2, "it was to know its tasks: two models that do nothing would agree"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for port, (weights, file) in enumerate(files.items(), start=8741):
        with served(file, port, tmp_path) as url:
            for text in TEXTS:
                tokens = asked(url, "/tokenize", {"content": text, "add_special": False, "parse_special": True})
                assert tokens["tokens"] == codec.tokenizer.encode(text, add_special_tokens=False), text
            monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
            policy = OpenAiPolicy(file.stem, temperature=0.0, max_new_tokens=params.agent.max_new_tokens)
            there = played(policy, tasks, domain, params)
            [long] = played(policy, [endless(tasks[0])], domain, params)
        num_equal = sum(calls_of(a) == calls_of(b) for a, b in zip(here, there, strict=True))
        print(f"\n{weights}: {sum(one.is_success for one in there)} of {NUM_TASKS} behind llama.cpp, {num_won} in this")
        print(f"process; the same calls in {num_equal}")
        assert long.stop_reason == StopReason.TOKEN_LIMIT
        assert not any(one.failure for one in [*there, long])
        if weights != "q4_k_m":  # four bits are another model
            assert num_equal == NUM_TASKS


def test_a_tokenizer_that_llama_cpp_cannot_have_is_refused(tmp_path, scratch_tokenizer):  # noqa: F811
    model = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=64, seed=0)
    save_model(model, scratch_tokenizer, tmp_path / "model")
    with pytest.raises(ConfigurationError, match="does not know how the tokenizer"):
        write_gguf(tmp_path / "model", tmp_path / "model.gguf", "q8_0")
    assert not (tmp_path / "model.gguf").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_damaged_folder_is_refused_in_a_line(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "model", ignore=shutil.ignore_patterns("*.gguf"))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_gguf(tmp_path / "model", tmp_path / "model.gguf", "q4_k_m")
