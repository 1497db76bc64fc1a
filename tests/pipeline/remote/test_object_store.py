"""Errors of a bucket that cannot be used, in one sentence with the remedy; and an S3 that is away
for a while."""

import argparse
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from posttrain.dispatch.settings import S3Remote
from posttrain.pipeline.remote import storage
from posttrain.pipeline.remote.names import JobFolder, add_options, options
from posttrain.pipeline.remote.object_store import ObjectStore, Unreachable
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.s3_server import BUCKET, KEYS, serve
from tests.wire import Wire

pytestmark = pytest.mark.xdist_group("object store")
NAMES_PER_PAGE = 20  # where a real S3 has a thousand


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("s3") / "log", {"MOTO_S3_DEFAULT_MAX_KEYS": str(NAMES_PER_PAGE)}) as server:
        yield server


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)


def store(
    url: str, *, place: str = f"s3://{BUCKET}/some/prefix", patience_s: float = 30, told: list[str] | None = None
) -> ObjectStore:
    return ObjectStore(
        S3Remote(url=place, endpoint_url=url, patience_s=patience_s), log=([] if told is None else told).append
    )


@pytest.mark.needs_s3
@pytest.mark.parametrize("place", [f"s3://{BUCKET}", f"s3://{BUCKET}/some/prefix"])
def test_what_was_put_is_listed_read_and_deleted_under_the_prefix(server, tmp_path, place):
    there = store(server.url, place=place)
    (tmp_path / "file").write_bytes(b"content")
    names = ["a/x; $(touch pwned)", "a/y 'q' \"q\"", "b/z%2F+&=é"]
    for name in names:
        there.put(tmp_path / "file", name)
    assert [found.name for found in there.list("a/")] == names[:2]
    there.get(names[2], tmp_path / "there" / "again")
    assert (tmp_path / "there" / "again").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        there.get("a/none", tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        there.put(tmp_path / "none", "a/none")
    there.delete("a/")
    assert [found.name for found in there.list("")] == names[2:]
    there.delete("")


@pytest.mark.needs_s3
def test_more_objects_than_a_page_holds_are_all_deleted(server, tmp_path):
    for number in range(3 * NAMES_PER_PAGE + 1):
        server.client.put_object(Bucket=BUCKET, Key=f"pages/{number}", Body=b"")
    there = store(server.url, place=f"s3://{BUCKET}/pages")
    assert server.client.list_objects_v2(Bucket=BUCKET)["IsTruncated"]
    assert len(there.list("")) == 3 * NAMES_PER_PAGE + 1
    there.delete("")
    assert not there.list("")


@pytest.mark.needs_s3
def test_of_those_who_claim_a_name_one_gets_it(server):
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: store(server.url).claim("claims/1"), range(8)))
    assert sorted(got) == [False] * 7 + [True]
    assert store(server.url).claim("claims/2")
    store(server.url).delete("claims/1")
    assert store(server.url).claim("claims/1")


@pytest.mark.needs_s3
def test_a_bucket_that_is_not_there_is_named(server, tmp_path):
    for action in (
        lambda: store(server.url, place="s3://none/x").check(),
        lambda: store(server.url, place="s3://none/x").list(""),
    ):
        with pytest.raises(ConfigurationError, match=r"no bucket 'none'.*Make it"):
            action()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="no bucket 'none'"):
        store(server.url, place="s3://none").put(tmp_path / "file", "x")


@pytest.mark.needs_s3
def test_an_environment_without_keys_is_told_which_to_set(server, monkeypatch, tmp_path):
    for name in KEYS:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ConfigurationError, match=r"no keys.*AWS_ACCESS_KEY_ID.*`secret`"):
        store(server.url).check()


@pytest.mark.needs_s3
def test_keys_that_are_refused_are_named_and_not_told(tmp_path, monkeypatch):
    with serve(
        tmp_path / "log", {"INITIAL_NO_AUTH_ACTION_COUNT": "1"}
    ) as server:  # makes its bucket, then looks at keys
        with pytest.raises(ConfigurationError, match=r"refuses the keys.*InvalidAccessKeyId") as refused:
            store(server.url).check()
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="InvalidAccessKeyId"):
            store(server.url).put(tmp_path / "file", "x")
        with pytest.raises(ConfigurationError, match="refuses the keys"):
            store(server.url).get("x", tmp_path / "x")
    assert not any(text in str(refused.value) for text in KEYS.values())


@pytest.mark.needs_s3
def test_an_s3_that_is_away_for_some_seconds_is_waited_for(server, tmp_path):
    wire = Wire(server.url)
    timer = threading.Timer(3.0, wire.mend)

    class Told(list):
        def append(self, line):
            super().append(line)
            if "does not answer" in line:  # it comes back after that was told, however slow this machine is
                timer.start()

    told = Told()
    there = store(wire.url, told=told)
    wire.cut()
    with pytest.raises(Unreachable):
        there.check()
    (tmp_path / "file").write_text("late")
    there.put(tmp_path / "file", "late")
    timer.join()
    wire.cut()
    assert server.read("some/prefix/late") == b"late"
    assert len([line for line in told if "does not answer" in line]) == 1


@pytest.mark.needs_s3
def test_an_s3_that_stays_away_interrupts_with_cause_and_remedy(server, tmp_path):
    wire = Wire(server.url)
    wire.cut()
    with pytest.raises(
        Interrupted, match=rf"S3 at {wire.url} does not answer \(EndpointConnectionError\), for 1 s now.*endpoint_url"
    ) as end:
        store(wire.url, patience_s=1).list("")
    assert end.value.code == 75


def test_a_prefix_may_end_with_a_slash_and_options_come_back_as_they_were():
    assert S3Remote(url="s3://bucket/p/").prefix == S3Remote(url="s3://bucket/p").prefix == "p/"
    assert (S3Remote(url="s3://bucket").prefix, S3Remote(url="s3://bucket").bucket) == ("", "bucket")
    parser = argparse.ArgumentParser()
    add_options(parser)
    for remote in (
        S3Remote(url="s3://bucket/p", endpoint_url="http://h:1", region="eu-west-1", patience_s=3.0),
        S3Remote(url="s3://bucket"),
    ):
        place = JobFolder("f" * 32, "0" * 64)
        given = parser.parse_args(options(remote, place))
        assert (given.remote, given.place) == (remote, place)


@pytest.mark.parametrize("program", [storage.SUBMIT, storage.SINGLE_STAGE])
def test_the_programs_of_a_storage_are_there(program):
    assert importlib.util.find_spec(program) is not None


def test_a_job_has_a_folder_of_its_own():
    place = JobFolder("f" * 32, "0" * 64)
    assert JobFolder.parse(str(place)) == place
    assert place.snapshot(3) == f"jobs/{place}/snapshots/3.tar.gz"
    for text in ("../../x", f"{place}/..", ""):
        with pytest.raises(ConfigurationError):
            JobFolder.parse(text)
