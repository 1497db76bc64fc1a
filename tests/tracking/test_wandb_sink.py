import json
import struct
import subprocess
from pathlib import Path

import pytest

from posttrain.exits import ConfigurationError
from posttrain.tracking.metrics_log import MetricsLog, read_metrics
from posttrain.tracking.wandb_sink import wandb_sinks

wandb = pytest.importorskip("wandb")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository on the branch `trial` with one commit, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "trial"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "start"], check=True)
    return tmp_path


def records(run_file: Path):
    """The records of an offline run, which is a LevelDB log: 32 KiB blocks of (crc 4, length 2,
    type 1) headers, after 7 bytes of wandb's own."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts = run_file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left_in_block = 32768 - place % 32768
        if left_in_block < 7:
            place += left_in_block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def test_an_offline_run_holds_the_numbers_of_the_metrics_file(repository):
    with MetricsLog(repository / "metrics.jsonl", sinks=wandb_sinks("train_sft", {"lr": 0.5})) as log:
        for step in range(1, 400):
            log.write(step, {"loss": 1 / step, "success": None if step == 7 else step % 3})

    (run_file,) = (repository / "wandb").glob("offline-run-*/*.wandb")
    found = []
    for record in records(run_file):
        if record.WhichOneof("record_type") == "history":
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found.append({"step": values["_step"], "loss": values["loss"], "success": values.get("success")})
        if record.WhichOneof("record_type") == "run":
            run = record.run

    assert found == read_metrics(repository / "metrics.jsonl")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (run.display_name, run.run_group, list(run.tags)) == ("train_sft", "trial", [commit])


def test_nothing_is_started_when_wandb_is_disabled(repository, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")

    assert wandb_sinks("train_sft", {}) == ()
    assert not (repository / "wandb").exists()


def test_a_mode_that_wandb_does_not_know_is_a_wrong_configuration(repository, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")

    with pytest.raises(ConfigurationError, match="ofline"):
        wandb_sinks("train_sft", {})
