"""Where the store lies, and which places are refused."""

from pathlib import Path

import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.traces.location import Location, file_system, max_store_bytes, refuse_network_mount, trace_location

MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/scratch xfs rw 0 0
//filer/share /mnt/two\040words cifs rw 0 0
me@host:/ /mnt/far fuse.sshfs rw 0 0
/dev/sdc1 /mnt/usb fuseblk rw 0 0
/dev/sdd1 /data ext4 rw 0 0
filer:/data /data lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/traces.db", "ext4"),
        ("/home/me/project/.posttrain/traces.db", "nfs4"),
        ("/home/scratch/traces.db", "xfs"),
        ("/homeless/traces.db", "ext4"),
        ("/mnt/two words/traces.db", "cifs"),
        ("/data/traces.db", "lustre"),
    ],
)
def test_the_deepest_and_last_mount_over_a_path_holds_it(path, kind):
    assert file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("path", ["/home/me/traces.db", "/mnt/two words/traces.db", "/mnt/far/x", "/data/traces.db"])
def test_a_network_mount_is_refused_with_reason_and_remedy(path):
    with pytest.raises(
        ConfigurationError, match=r"mount \((nfs4|cifs|fuse\.sshfs|lustre)\): .*Set POSTTRAIN_TRACES to"
    ):
        refuse_network_mount(Path(path), MOUNTS)


@pytest.mark.parametrize("path", ["/var/traces.db", "/home/scratch/traces.db", "/mnt/usb/traces.db"])
def test_a_local_disk_is_not(path):
    refuse_network_mount(Path(path), MOUNTS)
    refuse_network_mount(Path(path), "")  # nothing is known about mounts outside Linux


def test_a_link_to_a_network_mount_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "far")
    mounts = f"/dev/sda1 / ext4 rw 0 0\nfiler:/ {tmp_path.resolve()}/far nfs rw 0 0\n"
    assert file_system(tmp_path / "here" / "traces.db", mounts) == "nfs"


def test_this_machines_own_mounts_are_read():
    mounts = Path("/proc/mounts")
    assert bool(file_system(Path.cwd(), mounts.read_text() if mounts.exists() else "")) == mounts.exists()


def test_the_environment_names_the_store_or_turns_it_off():
    assert (
        trace_location({}) == trace_location({"POSTTRAIN_TRACES": ""}) == Location(Path(".posttrain/traces.db"), False)
    )
    assert trace_location({"POSTTRAIN_TRACES": "/scratch/t.db"}) == Location(Path("/scratch/t.db"), True)
    assert trace_location({"POSTTRAIN_TRACES": "off"}) is None


def test_the_limit_is_in_gigabytes():
    assert (
        max_store_bytes({}) == max_store_bytes({"POSTTRAIN_TRACES_MAX_GB": ""}) == 2_000_000_000
    )  # as an empty POSTTRAIN_TRACES
    assert max_store_bytes({"POSTTRAIN_TRACES_MAX_GB": "0.5"}) == 500_000_000


@pytest.mark.parametrize("limit", ["2GB", "0", "-1", "nan", "inf", " "])
def test_another_limit_is_a_wrong_configuration(limit):
    with pytest.raises(ConfigurationError, match="POSTTRAIN_TRACES_MAX_GB is"):
        max_store_bytes({"POSTTRAIN_TRACES_MAX_GB": limit})
