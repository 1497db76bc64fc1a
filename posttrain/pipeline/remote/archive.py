"""Packs a tree of files into one archive and unpacks it: names and links that would land outside of
the folder are refused on both sides."""

import tarfile
import zlib
from collections.abc import Callable, Iterator
from gzip import BadGzipFile
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted


def pack(folder: Path, file: Path, *, is_left_out: Callable[[Path], bool]) -> None:
    """Pack `folder`; `is_left_out` gets paths relative to it, and a folder is left out with all it
    holds. Raises ConfigurationError of a file that could not be unpacked elsewhere: a link that
    leaves the tree, a socket."""
    with tarfile.open(file, "w:gz", compresslevel=1) as archive:
        for path in _walk(folder, folder, is_left_out):
            name = str(path.relative_to(folder))
            member = archive.gettarinfo(path, name)
            try:
                if member is None:
                    raise tarfile.SpecialFileError(tarfile.TarInfo(name))
                tarfile.data_filter(member, str(folder))
            except tarfile.FilterError as error:
                raise ConfigurationError(
                    f"{name} cannot be taken to another machine ({error}): "
                    "a job sees only what lies in the tree. Take it out, or let git ignore it"
                ) from error
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)


def unpack(file: Path, folder: Path) -> None:
    """Unpack into a new folder. Raises DataError where a member would land elsewhere, Interrupted
    where the archive is damaged."""
    folder.mkdir(parents=True)
    try:
        with tarfile.open(file, "r:gz") as archive:
            archive.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise DataError(
            f"{file.name} may not be unpacked ({error}): we pack no such thing, so see who may write where it came from"
        ) from error
    except (tarfile.TarError, BadGzipFile, zlib.error, EOFError) as error:
        raise Interrupted(
            f"{file.name} did not come whole ({error}), so no stage was run: run again to have another"
        ) from error


def _walk(folder: Path, root: Path, is_left_out: Callable[[Path], bool]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if is_left_out(path.relative_to(root)):
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, root, is_left_out)
