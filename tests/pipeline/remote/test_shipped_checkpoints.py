"""Checkpoints on their way to another machine: only sealed ones, whole or not at all, and no more
than the trainer keeps."""

import pytest

from posttrain.dispatch.settings import S3Remote
from posttrain.pipeline.remote import checkpoints
from posttrain.pipeline.remote.checkpoints import ShippedCheckpoints
from posttrain.pipeline.remote.object_store import ObjectStore
from posttrain.runtime.exits import DataError
from posttrain.train import checkpointing
from tests.s3_server import BUCKET, KEYS, serve

pytestmark = pytest.mark.xdist_group("shipped checkpoints")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def store(server, monkeypatch, request):
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)
    return ObjectStore(S3Remote(url=f"s3://{BUCKET}/{request.node.name}", endpoint_url=server.url))


def mirror(store, folder):
    return ShippedCheckpoints(store, "job/", folder)


def checkpoint(folder, step, *, is_sealed=True):
    made = folder / "train" / "0123" / f"checkpoint-{step}"
    (made / "shards").mkdir(parents=True)
    (made / "weights").write_text(f"weights {step}")
    (made / "metrics.jsonl").write_text("{}\n")
    (made / "shards" / "0").write_text(f"shard {step}")
    if is_sealed:
        checkpointing.seal(made)
    return made


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_words_are_those_of_the_trainers():
    assert (checkpoints.MARKER, checkpoints.CHECKPOINT) == (checkpointing.MARKER, checkpointing.PREFIX)


def test_sealed_checkpoints_and_paid_episodes_come_to_another_machine_and_nothing_else(store, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    checkpoint(here, 1)
    checkpoint(here, 2)
    half = checkpoint(here, 3, is_sealed=False)
    (here / "train" / "0123" / "lock").write_text("1")
    (here / "train" / "0123" / "played.jsonl").write_text('{"index": 0}\n{"ind')
    assert mirror(store, here).ship() == 2
    assert mirror(store, there).bring() == 2
    half_files = {path.relative_to(here) for path in half.rglob("*")}
    wanted = {path: text for path, text in files(here).items() if path not in half_files and path.name != "lock"}
    assert files(there) == wanted
    assert checkpointing.newest_complete(there / "train" / "0123").name == "checkpoint-2"


def test_each_is_shipped_once_and_what_the_trainer_removes_goes_there_too(store, tmp_path):
    ours = mirror(store, tmp_path)
    for step, num_new in [(1, 1), (2, 1), (3, 1)]:
        checkpoint(tmp_path, step)
        checkpointing.prune(tmp_path / "train" / "0123", keep=None)
        assert (ours.ship(), ours.ship()) == (num_new, 0)
    assert {found.name.split("/")[3] for found in store.list("job/")} == {"checkpoint-2", "checkpoint-3"}


def test_what_another_attempt_has_there_and_this_one_never_saw_stays(store, tmp_path):
    checkpoint(tmp_path / "lost", 9)
    mirror(store, tmp_path / "lost").ship()
    late = mirror(store, tmp_path / "late")
    late.ship()
    assert [found for found in store.list("job/") if "checkpoint-9" in found.name]


def test_a_checkpoint_without_its_marker_is_not_brought(store, tmp_path):
    checkpoint(tmp_path / "here", 1)
    checkpoint(tmp_path / "here", 2)
    mirror(store, tmp_path / "here").ship()
    store.delete(f"job/train/0123/checkpoint-2/{checkpointing.MARKER}")
    assert mirror(store, tmp_path / "there").bring() == 1
    assert [path.name for path in (tmp_path / "there" / "train" / "0123").iterdir()] == ["checkpoint-1"]


def test_a_checkpoint_that_the_trainer_removes_in_the_middle_is_left_out(store, tmp_path, monkeypatch):
    made = checkpoint(tmp_path, 1)
    put = store.put

    def put_and_remove(path, name):
        put(path, name)
        (made / "weights").unlink(missing_ok=True)

    monkeypatch.setattr(store, "put", put_and_remove)
    assert mirror(store, tmp_path).ship() == 0
    assert not [found for found in store.list("job/") if found.name.endswith(checkpointing.MARKER)]


def test_an_object_that_would_land_outside_is_refused(store, server, tmp_path):
    server.client.put_object(Bucket=BUCKET, Key=f"{store.remote.prefix}job/../../../out.jsonl", Body=b"x")
    with pytest.raises(DataError, match="outside"):
        mirror(store, tmp_path / "there").bring()
    assert not (tmp_path / "out.jsonl").exists()
