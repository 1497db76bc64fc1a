"""Damages to a file, drawn by a seed, and what a reader may make of one: the same as before, or an
end that says what is damaged and what to do."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.runtime.exits import StageError

NUM_DAMAGES = 60
OTHER_SHAPES = [
    b"{}",
    b"[]",
    b"null",
    b"3",
    b'"text"',
    b'{"files": 3}',
    b'[{"a": [1e999, -7]}]',
    b"1" * 5000,
    b"[" * 100_000,
    b'{"step": {}}\n{"step": null}\n',
]
REMEDY = re.compile(r"move|run `|run again|dvc repro|delete|copy it|use the|name the|begin", re.IGNORECASE)


def damage(path: Path, number: int, sibling: Path | None = None) -> str:
    """Do damage `number` to the file; gives its name. `sibling` is a file of the same kind to be
    taken for this one."""
    draw = random.Random(f"{path.name} {number}")
    kinds: list[Callable[[Path, random.Random], bytes | None]] = [
        _flip,
        _flip,
        _flip,
        _cut,
        _zeros,
        _twice,
        _other_shape,
        _no_text,
        _empty,
        _folder,
    ]
    if sibling is not None:
        kinds.append(lambda *_: sibling.read_bytes())
    kind = kinds[number % len(kinds)]
    changed = kind(path, draw)
    if changed is not None:
        path.write_bytes(changed)
    return f"damage {number} ({kind.__name__.strip('_')}) of {path.name}"


def check(
    read: Callable[[], Any], expected: Any, *, name: str, what: str, is_part: Callable[[Any], bool] = lambda _: False
) -> bool:
    """True where it was read, False where it was refused. `is_part` accepts a result that honestly
    lacks something."""
    try:
        found = read()
    except StageError as error:
        refusal = str(error)
    except BaseException as error:
        raise AssertionError(f"{what} was no end with a meaning: {type(error).__name__}: {error}") from error
    else:
        refusal = ""
    if refusal:
        assert name in refusal, f"{what}: the message names no file: {refusal}"
        assert REMEDY.search(refusal), f"{what}: the message says not what to do: {refusal}"
        return False
    assert found == expected or is_part(found), f"{what} was read as something else"
    return True


def _flip(path: Path, draw: random.Random) -> bytes:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 3])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def _cut(path: Path, draw: random.Random) -> bytes:
    content = path.read_bytes()
    return content[: draw.randrange(len(content))]


def _zeros(path: Path, draw: random.Random) -> bytes:
    content = bytearray(path.read_bytes())
    size = min(len(content), draw.choice([1, 16, 512, 4096]))
    start = draw.randrange(len(content) - size + 1)
    content[start : start + size] = bytes(size)
    return bytes(content)


def _twice(path: Path, draw: random.Random) -> bytes:
    """A block over another of its size, or pushed in before it."""
    content = bytearray(path.read_bytes())
    size = min(max(len(content) // 2, 1), draw.choice([16, 512, 4096]))
    places = [draw.randrange(max((len(content) - size) // size, 0) + 1) * size for _ in range(2)]
    block = content[places[0] : places[0] + size]
    content[places[1] : places[1] + draw.choice([0, size])] = block
    return bytes(content)


def _other_shape(path: Path, draw: random.Random) -> bytes:
    return draw.choice(OTHER_SHAPES)


def _no_text(path: Path, draw: random.Random) -> bytes:
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place : place + 2] = b"\xff\xfe"
    return bytes(content)


def _empty(path: Path, draw: random.Random) -> bytes:
    return b""


def _folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "a file").write_text("")


def fresh_copy(clean: Path, to: Path) -> Path:
    """A copy of a folder, in place of what was there."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(clean, to)
    return to
