"""Servers that a job starts for itself, with a program in vLLM's place."""

import os
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from posttrain.config.params import load_params
from posttrain.provenance import own_servers
from posttrain.provenance.environment import TREE_ROOT
from posttrain.provenance.own_servers import split_gpus
from posttrain.runtime.exits import ConfigurationError

# answers with its folder, its process and what it was told
SERVE = """#!/usr/bin/env python
import http.server, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        told = [os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "DTYPE", "MAX_MODEL_LEN", "LORA_RANK")]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join([str(os.getpid()), *told]).encode())
    def do_POST(self):
        open("asleep", "a").write(self.path + " ")
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Answers).serve_forever()
"""


@pytest.fixture
def tree(tmp_path, repository, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_servers, "_write_model", lambda *_: None)
    for name in ("POSTTRAIN_ENGINE", "POSTTRAIN_VLLM_URLS", "CUDA_VISIBLE_DEVICES", TREE_ROOT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POSTTRAIN_VLLM_SERVERS", "2")
    monkeypatch.setenv("PYTHONPATH", str(repository))
    for name, text in {"data/models/sft/config.json": "{}", "infra/vllm/serve.sh": SERVE}.items():
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text(text)
    Path("infra/vllm/serve.sh").chmod(0o755)
    return load_params(repository / "params.yaml")


def answers():
    return [urlopen(url).read().decode().split(" ") for url in os.environ["POSTTRAIN_VLLM_URLS"].split(",")]


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_servers_answer_while_the_stage_runs_each_on_a_gpu_of_its_own(tree, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with own_servers.own_servers("train_policy", "", tree):
        assert (os.environ["POSTTRAIN_ENGINE"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("vllm", "4,5")
        found = answers()
        assert [one[1:] for one in found] == [[gpu, "float32", "1024", ""] for gpu in ("6", "7")]
    assert not any(is_alive(pid) for pid, *_ in found)
    assert "POSTTRAIN_VLLM_URLS" not in os.environ
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_colocated_servers_sleep_on_the_stages_gpus(tree, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setenv("POSTTRAIN_VLLM_COLOCATED", "1")
    with own_servers.own_servers("train_policy", "", tree):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
        assert [one[1] for one in answers()] == ["4", "5"]
        assert Path("asleep").read_text() == "/sleep?level=1 " * 2
    online = tree.train_policy.algorithm.model_copy(update={"max_staleness": 1})
    late = tree.model_copy(update={"train_policy": tree.train_policy.model_copy(update={"algorithm": online})})
    with (
        pytest.raises(ConfigurationError, match="colocated servers sleep"),
        own_servers.own_servers("train_policy", "", late),
    ):
        pass


def test_where_no_variable_names_gpus_they_are_the_drivers(tree, monkeypatch):
    Path("nvidia-smi").write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    Path("nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path.cwd()}{os.pathsep}{os.environ['PATH']}")
    with own_servers.own_servers("train_policy", "", tree):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert [one[1] for one in answers()] == ["1", "2"]


def test_a_server_that_was_killed_is_started_again_where_it_was(tree, capfd):
    with own_servers.own_servers("evaluate", "sft", tree):
        (pid, *_), _ = answers()
        os.kill(int(pid), signal.SIGKILL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if answers()[0][0] != pid:
                    break
            except OSError:
                time.sleep(0.1)
        assert answers()[0][0] != pid
    assert "ended with exit code -9 and is started again" in capfd.readouterr().err


def test_a_stage_that_fails_leaves_no_server(tree):
    found = []

    def fail():
        with own_servers.own_servers("evaluate", "sft", tree):
            found.extend(answers())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(is_alive(pid) for pid, *_ in found)


def test_a_server_that_ends_at_its_start_is_told_with_its_last_words(tree):
    Path("infra/vllm/serve.sh").write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 3\n")
    expected = r"ended with exit code 3 before it answered(.|\n)*no module named vllm"
    with pytest.raises(ConfigurationError, match=expected), own_servers.own_servers("evaluate", "sft", tree):
        pass


def test_nothing_is_started_where_nobody_asked(tree, monkeypatch):
    monkeypatch.delenv("POSTTRAIN_VLLM_SERVERS")
    with own_servers.own_servers("evaluate", "sft", tree):
        assert "POSTTRAIN_ENGINE" not in os.environ
    assert not Path(".posttrain").exists()


def test_a_stage_that_plays_nothing_starts_none(tree):
    """A person who exports the variable runs `dvc repro`, whose first stages have no model."""
    Path("data/models/sft/config.json").unlink()
    with own_servers.own_servers("check_params", "", tree):
        assert "POSTTRAIN_ENGINE" not in os.environ


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"POSTTRAIN_VLLM_SERVERS": "two"}, "'two', not a number"),
        ({"POSTTRAIN_VLLM_URLS": "http://127.0.0.1:1"}, "names servers, too"),
        ({"POSTTRAIN_NODES": "2"}, "on 2 nodes: a job starts servers on one node alone"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "the job sees 2 GPUs"),
    ],
)
def test_what_cannot_be_is_refused(tree, monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=said), own_servers.own_servers("evaluate", "sft", tree):
        pass


def test_without_a_serve_script_or_a_model_the_remedy_is_told(tree):
    Path("infra/vllm/serve.sh").unlink()
    with (
        pytest.raises(ConfigurationError, match=r"serve\.sh is not there"),
        own_servers.own_servers("evaluate", "", tree),
    ):
        pass
    Path("data/models/sft/config.json").unlink()
    with pytest.raises(ConfigurationError, match="no model to serve"), own_servers.own_servers("evaluate", "", tree):
        pass


def test_the_last_gpus_are_the_servers():
    assert split_gpus("0,1,2,3", 2) == ("0,1", ["2", "3"])
    assert split_gpus(" GPU-a, GPU-b ", 1) == ("GPU-a", ["GPU-b"])
    assert split_gpus(None, 2) == split_gpus("", 2) == (None, ["", ""])
