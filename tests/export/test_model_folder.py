"""A model that leaves the pipeline is the one that was trained, in a form that servers read."""

import json

import pytest
import torch

from posttrain.export.model_folder import vllm_settings, write_exported
from posttrain.models.chat_template import TEMPLATES, scratch_template, served_template, template_text
from posttrain.models.loading import load_codec, load_model, save_model
from posttrain.models.scratch import scratch_model
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, ToolCall
from tests.models.conftest import qwen_folder, scratch_tokenizer  # noqa: F401  # fixtures
from tests.models.episodes import SCRATCH_PARAMS
from tests.models.families import codec_of

CALL = '{"code":"0700","days":[1,2.5,true,null],"name":"騰訊 \\"X\\""}'


@pytest.fixture
def folder(tmp_path, scratch_tokenizer):  # noqa: F811
    model = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=64, seed=0)
    save_model(model, scratch_tokenizer, tmp_path / "model")
    return tmp_path / "model"


def messages(arguments):
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


@pytest.mark.parametrize("template", [scratch_template(), *map(template_text, TEMPLATES)], ids=["scratch", *TEMPLATES])
def test_a_template_of_ours_writes_an_object_as_the_text_that_was_learnt(scratch_tokenizer, template):  # noqa: F811
    expected = scratch_tokenizer.apply_chat_template(messages(CALL), chat_template=template, tokenize=False)
    assert CALL in expected
    served = served_template(template)
    for arguments in (CALL, json.loads(CALL)):
        found = scratch_tokenizer.apply_chat_template(messages(arguments), chat_template=served, tokenize=False)
        assert found == expected


def test_a_template_of_others_is_left_alone():
    template = "{{ call.function.arguments | tojson }}"
    assert served_template(template) == template


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_are_those_that_were_trained(folder, tmp_path, dtype):
    write_exported(folder, tmp_path / "exported" / "mine", card="# a card", dtype=dtype)
    exported = load_model(tmp_path / "exported" / "mine", dtype=dtype)
    for found, trained in zip(exported.parameters(), load_model(folder).parameters(), strict=True):
        assert torch.equal(found, trained.to(found.dtype))
    assert exported.dtype == getattr(torch, dtype)
    assert (tmp_path / "exported" / "mine" / "README.md").read_text() == "# a card"
    assert load_codec(tmp_path / "exported" / "mine").call_format.name == "hermes"


def test_what_stands_there_already_is_not_replaced(folder, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigurationError, match="there exists: remove it, or name another folder"):
        write_exported(folder, tmp_path / "there", card="", dtype="float32")


def test_vllm_is_told_the_parser_the_type_and_the_length(folder, tmp_path):
    write_exported(folder, tmp_path / "mine", card="", dtype="bfloat16")
    flags, environment = vllm_settings(tmp_path / "mine")
    assert flags == ("--served-model-name", "mine", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    assert environment == {"DTYPE": "bfloat16", "MAX_MODEL_LEN": "64"}


def test_vllm_reads_by_the_response_template_that_is_read_by_here(qwen_folder, tmp_path):  # noqa: F811
    codec = codec_of("qwen3_5_think", qwen_folder)
    save_model(load_model(qwen_folder), codec.tokenizer, tmp_path / "model")
    write_exported(tmp_path / "model", tmp_path / "mine", card="", dtype="float32")
    flags, _ = vllm_settings(tmp_path / "mine")
    assert flags[-5:] == ("--enable-auto-tool-choice", "--tool-call-parser", "hf", "--reasoning-parser", "hf")
    exported = load_codec(tmp_path / "mine")
    assert list(exported.tokenizer.response_template["fields"]) == ["content", "thinking", "tool_calls"]
    message = Message("assistant", "I look.", "HK", (ToolCall("call_0", "f", '{"code":"0700"}'),))
    assert exported.parse(codec.encode_assistant(message)) == message


def test_a_folder_that_is_no_models_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nothing has no \*\.safetensors: it is not a model's folder"):
        vllm_settings(tmp_path / "nothing")
