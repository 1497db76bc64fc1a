"""Location and size limit of the trace store, by environment variables; network mounts are refused.

SQLite's write-ahead log keeps its index in memory that all readers and writers share. Two machines
share none, so on a network mount the file would be damaged silently. These are machine facts, so
they come from the environment and not from params.yaml: changing them reruns nothing.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from posttrain.runtime.environment import positive_number
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import STATE_DIR, TRACES

VARIABLE = "POSTTRAIN_TRACES"
MAX_VARIABLE = "POSTTRAIN_TRACES_MAX_GB"
DEFAULT_PATH = STATE_DIR / TRACES
DEFAULT_MAX_GB = 2.0
_NETWORK = re.compile(
    r"nfs\d*|cifs|smb\w*|afs|9p|lustre|gpfs|beegfs\w*|ceph|glusterfs|pvfs2|orangefs|ocfs2|gfs2|vboxsf|prl_fs"
    r"|fuse\.(sshfs|glusterfs|ceph\S*|beegfs\S*|lustre\S*|juicefs|s3fs|gcsfuse|goofys|rclone|mount-s3|blobfuse\d*|davfs\S*|vmhgfs\S*)"
)


@dataclass(frozen=True, slots=True)
class Location:
    """A store's path. `is_asked`: a person named it, so an error about it is raised; at the default
    path a stage warns and goes on."""

    path: Path
    is_asked: bool


def trace_location() -> Location | None:
    """The path in `POSTTRAIN_TRACES`, None where it says `off`, `.posttrain/traces.db` in the
    working directory where it is not set."""
    asked = os.environ.get(VARIABLE, "")
    if asked.lower() == "off":
        return None
    return Location(Path(asked), True) if asked else Location(DEFAULT_PATH, False)


def max_store_bytes() -> int:
    """`POSTTRAIN_TRACES_MAX_GB` in bytes, 10^9 a gigabyte. Raises ConfigurationError."""
    return int(positive_number(os.environ, MAX_VARIABLE, DEFAULT_MAX_GB, "gigabytes") * 1e9)


def refuse_network_mount(path: Path) -> None:
    """Raises ConfigurationError where `path` (links followed; it need not exist) is on a network
    mount: the deepest mount point above it counts, and of several over one point the last."""
    import psutil  # slower than a whole listing, which does not ask

    where, kind = path.resolve(), ""
    for mount in sorted(psutil.disk_partitions(all=True), key=lambda mount: len(Path(mount.mountpoint).parts)):
        if where.is_relative_to(mount.mountpoint):
            kind = mount.fstype
    if _NETWORK.fullmatch(kind):
        raise ConfigurationError(
            f"{path} is on a network mount ({kind}): SQLite's write-ahead log needs memory that all readers and "
            "writers share, which two machines have not, and the store would be damaged. Set "
            f"{VARIABLE} to a path on a local disk, or to off"
        )
