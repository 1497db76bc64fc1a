"""A tree as one file: whole on the other side, and nothing of it outside."""

import io
import os
import tarfile

import pytest

from posttrain.pipeline.remote.archive import pack, unpack
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted


def pack_all(folder, file):
    pack(folder, file, is_left_out=lambda path: path.parts[0] == "left out")


def test_a_tree_comes_out_as_it_went_in_without_what_is_left_out(tmp_path):
    tree = tmp_path / "tree"
    (tree / "a b; $(touch pwned)" / "empty").mkdir(parents=True)
    (tree / "left out" / "deep").mkdir(parents=True)
    (tree / "left out" / "deep" / "file").touch()
    (tree / "a b; $(touch pwned)" / "'q' \" \n").write_bytes(b"\x00content")
    (tree / "run.sh").touch()
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    (tree / os.fsdecode(b"no-utf8-\xff")).write_text("x")
    pack_all(tree, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "there")
    assert sorted(str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*")) == sorted(
        str(path.relative_to(tree)) for path in tree.rglob("*") if "left out" not in path.parts
    )
    assert (tmp_path / "there" / "a b; $(touch pwned)" / "'q' \" \n").read_bytes() == b"\x00content"
    assert (tmp_path / "there" / "run.sh").stat().st_mode & 0o111
    assert os.readlink(tmp_path / "there" / "link") == "run.sh"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside"])
def test_a_link_that_leaves_the_tree_is_refused_before_anything_is_sent(tmp_path, target):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "out").symlink_to(target)
    with pytest.raises(ConfigurationError, match="out cannot be taken to another machine"):
        pack_all(tmp_path / "tree", tmp_path / "packed")


def test_a_socket_is_refused(tmp_path):
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree" / "pipe")
    with pytest.raises(ConfigurationError, match="pipe"):
        pack_all(tmp_path / "tree", tmp_path / "packed")


def member(name, **fields):
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(
    "hostile",
    [
        member("../outside", size=1),
        member("a/../../outside", size=1),
        member("link", type=tarfile.SYMTYPE, linkname="/etc"),
        member("link", type=tarfile.SYMTYPE, linkname="../.."),
        member("link", type=tarfile.LNKTYPE, linkname="../outside"),
        member("device", type=tarfile.CHRTYPE),
    ],
)
def test_a_member_that_would_leave_the_folder_is_refused(tmp_path, hostile):
    with tarfile.open(tmp_path / "packed", "w:gz") as archive:
        archive.addfile(hostile, io.BytesIO(b"x"))
    with pytest.raises(DataError, match="may not be unpacked"):
        unpack(tmp_path / "packed", tmp_path / "deep" / "there")
    assert not (tmp_path / "deep" / "outside").exists()
    assert not list((tmp_path / "deep" / "there").iterdir())


@pytest.mark.parametrize("keep", [0, 20, 60])
def test_an_archive_that_was_cut_off_interrupts(tmp_path, keep):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(os.urandom(1000))
    pack_all(tmp_path / "tree", tmp_path / "packed")
    (tmp_path / "packed").write_bytes((tmp_path / "packed").read_bytes()[:keep])
    with pytest.raises(Interrupted, match="packed did not come whole"):
        unpack(tmp_path / "packed", tmp_path / "there")
