"""Hostile knobs are refused with a reason, or read as a person reads them; hostile YAML is in
tests/test_plain_yaml.py."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from posttrain.config.params import ParamsError, load_params

BASE = (Path(__file__).parents[1] / "params.yaml").read_text(encoding="utf-8")


def edit(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new, 1)


def turns(text: str) -> str:
    return edit("max_turns: 6", f"max_turns: {text}")


REFUSED: dict[str, str | bytes] = {
    "empty": "",
    "a comment": "# nothing",
    "a list": "- 1",
    "a text": "hello",
    "tabs": BASE.replace("  ", "\t"),
    "Latin-1": BASE.encode() + b"# \xe9\n",
    "not a number": edit("max_seconds: 600.0", "max_seconds: .nan"),
    "without an end": edit("max_seconds: 600.0", "max_seconds: .inf"),
    "hexadecimal": turns("0x" + "f" * 5000),
    "a yes": turns("yes"),
    "a null": turns("~"),
    "a text for a number": turns('"6"'),
    "a fraction": turns("6.0"),
    "bytes": turns("!!binary aGVsbG8="),
    "a number for a key": BASE + "\n1: 2\n",
    "a key that steers a terminal": BASE + '\n"a\\e[2J\\u202e": 1\n',
    "a key of 100,000 letters": BASE + f"\n? {'k' * 100_000}\n: 1\n",
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str | bytes], object]:
    def written(text: str | bytes) -> object:
        path = tmp_path / "params.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_params(path)

    return written


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_file_is_refused_with_a_reason(name, load):
    start = time.monotonic()
    with pytest.raises(ParamsError) as caught:
        load(REFUSED[name])
    assert caught.value.code == 78
    message = str(caught.value)
    assert len(message) < 30_000
    assert not set(message) & set("\x00\x1b\u202e")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        "\ufeff" + BASE,
        BASE.replace("\n", "\r\n"),
        edit("agent:", "agent: &agent"),
        BASE + "\n...\n",
    ],
)
def test_what_is_accepted_is_what_a_plain_reader_reads(text, load):
    found = load(text).model_dump(exclude_unset=True, exclude_none=True)
    assert found == _without_nulls(yaml.safe_load(BASE))


def _without_nulls(value):
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value
