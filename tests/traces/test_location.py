"""Location of the store, and the places that are refused."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.traces.store import Location, max_store_bytes, refuse_network_mount, trace_location

MOUNTS = {
    "/": "ext4",
    "/proc": "proc",
    "/home": "nfs4",
    "/home/scratch": "xfs",
    "/mnt/two words": "cifs",
    "/mnt/far": "fuse.sshfs",
    "/mnt/usb": "fuseblk",
}


@pytest.fixture
def mount(monkeypatch):
    def mounted(*mounts: tuple[str, str]) -> None:
        found = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in mounts]
        monkeypatch.setattr(psutil, "disk_partitions", lambda **_: found)

    mounted(*MOUNTS.items(), ("/data", "ext4"), ("/data", "lustre"))
    return mounted


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/me/traces.db", "nfs4"), ("/mnt/two words/t", "cifs"), ("/mnt/far/x", "fuse.sshfs"), ("/data/t", "lustre")],
)
@pytest.mark.usefixtures("mount")
def test_a_network_mount_is_refused_with_reason_and_remedy(path, kind):
    with pytest.raises(ConfigurationError, match=rf"mount \({kind}\): .*Set POSTTRAIN_TRACES to"):
        refuse_network_mount(Path(path))


@pytest.mark.parametrize("path", ["/var/traces.db", "/homeless/t", "/home/scratch/traces.db", "/mnt/usb/traces.db"])
def test_a_local_disk_is_not(path, mount):
    refuse_network_mount(Path(path))
    mount()  # nothing is known about mounts
    refuse_network_mount(Path("/home/traces.db"))


def test_a_link_to_a_network_mount_is_followed(tmp_path, mount):
    (tmp_path / "far").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "far")
    mount(("/", "ext4"), (f"{tmp_path.resolve()}/far", "nfs"))
    with pytest.raises(ConfigurationError, match=r"mount \(nfs\)"):
        refuse_network_mount(tmp_path / "here" / "traces.db")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("", Location(Path(".posttrain/traces.db"), False)),
        ("/scratch/t.db", Location(Path("/scratch/t.db"), True)),
        ("off", None),
    ],
)
def test_the_environment_names_the_store_or_turns_it_off(monkeypatch, text, location):
    monkeypatch.setenv("POSTTRAIN_TRACES", text)
    assert trace_location() == location


@pytest.mark.parametrize(("text", "size"), [("", 2_000_000_000), ("0.5", 500_000_000)])
def test_the_limit_is_in_gigabytes(monkeypatch, text, size):
    monkeypatch.setenv("POSTTRAIN_TRACES_MAX_GB", text)
    assert max_store_bytes() == size


@pytest.mark.parametrize("limit", ["2GB", "0", "-1", "nan", "inf", " "])
def test_another_limit_is_a_wrong_configuration(monkeypatch, limit):
    monkeypatch.setenv("POSTTRAIN_TRACES_MAX_GB", limit)
    with pytest.raises(ConfigurationError, match="POSTTRAIN_TRACES_MAX_GB is"):
        max_store_bytes()
