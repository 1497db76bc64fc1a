"""A model in shards (FSDP over gloo) whose episodes a real vLLM server writes: after each step the
weights go to it one after another."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.vllm_process import VllmProcess
from posttrain.rollout.engines.weight_files import write_served_folder
from tests.rollout.tiny_models import tiny_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))

from launched import episodes, run

pytestmark = pytest.mark.needs_vllm
NUM_STEPS = 20
WHAT = {"algorithm": "served", "changes": {"max_steps": NUM_STEPS, "kl": {"type": "loss", "weight": 0.1}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("vllm")
    model = tiny_model("qwen3_of_vllm")
    model.save_pretrained(scratch / "model")
    write_served_folder(scratch / "model", model, scratch / "served")
    how = {"flags": ("--skip-tokenizer-init",), "MAX_MODEL_LEN": "512"}
    with closing(VllmProcess(scratch / "served", 8615, scratch, **how)) as started:
        started.wait()
        yield started


def test_shards_train_on_what_the_server_writes_with_their_weights_as_one_process_does(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TINY_ARCHITECTURE", "qwen3_of_vllm")
    expected = run(tmp_path / "one", url=server.url, sync="gloo", **WHAT)
    for num in (2, 4):
        found = run(tmp_path / str(num), "fsdp", num=num, url=server.url, sync="gloo", **WHAT)
        gaps = [line["logprob_gap_max"] for line in found["metrics"]]
        print(f"\n{num} processes: log-probs differ by {max(gaps):.1e} at most in {len(gaps)} steps")
        assert len(gaps) == NUM_STEPS
        assert max(gaps) <= 1e-4
        for name in ("grad_norm", "reward_mean", "entropy"):
            assert found["metrics"][0][name] == pytest.approx(expected["metrics"][0][name], abs=1e-4), name
        first, of_one = ([one["token_ids"] for one in episodes(tmp_path / name, 1)] for name in (str(num), "one"))
        assert first == of_one
        assert not list((tmp_path / str(num)).rglob("*.safetensors"))
