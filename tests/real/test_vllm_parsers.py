"""Messages of a served model are parsed equally by vLLM's own parser and by ours: response
templates."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from posttrain.models.call_formats.response_template import ResponseTemplateFormat
from posttrain.types import Message
from tests.models.conftest import qwen_folder  # noqa: F401  # a fixture
from tests.models.families import TEMPLATES, TYPED_TOOLS, a_message, codec_of

pytestmark = pytest.mark.needs_vllm
PYTHON = Path("infra/vllm/.venv/bin/python")
SCRIPT = Path(__file__).parent / "vllm_parsers.py"
NUM_MESSAGES = 200


@pytest.mark.parametrize("family", [family for family, form in TEMPLATES.items() if form == "hf"])
def test_vllm_reads_what_is_read_here(family, qwen_folder, tmp_path):  # noqa: F811
    codec = codec_of(family, qwen_folder)
    assert isinstance(codec.call_format, ResponseTemplateFormat)
    codec.tokenizer.response_template = codec.call_format.served_content()
    codec.tokenizer.save_pretrained(tmp_path)
    rng = random.Random(0)
    written = [codec.encode_assistant(a_message(rng, "hf")) for _ in range(NUM_MESSAGES)]
    given = {
        "folder": str(tmp_path),
        "prompt": codec.encode_prompt([Message("user", "u")], TYPED_TOOLS),
        "tools": TYPED_TOOLS,
        "texts": [codec.decode(ids[:-1]) for ids in written],
    }
    answer = subprocess.run([PYTHON, SCRIPT], input=json.dumps(given), capture_output=True, text=True, check=True)
    by_vllm = json.loads(answer.stdout.splitlines()[-1])
    assert len(by_vllm) == NUM_MESSAGES
    for ids, (reasoning, content, calls) in zip(written, by_vllm, strict=True):
        here = codec.parse(ids, TYPED_TOOLS)
        assert [[one.name, json.loads(one.arguments)] for one in here.tool_calls] == calls
        assert (here.reasoning_content or "", here.content) == ((reasoning or "").strip(), (content or "").strip())
