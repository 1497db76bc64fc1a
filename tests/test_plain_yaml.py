"""Every YAML file that anything of ours reads goes through the one reader, which refuses a hostile
one within a second, in a sentence with the file and the line."""

import re
import time
from pathlib import Path

import pytest

from posttrain.config.params import read_knobs
from posttrain.dispatch.backends.kubernetes_manifest import read_template
from posttrain.dispatch.settings import load_settings
from posttrain.provenance.fingerprint import StageInputs, knob_values, load_as_dvc, read_all_inputs
from posttrain.provenance.launcher import asked_launch
from posttrain.provenance.lockfile import read_entries
from posttrain.report.knobs import parse_knobs
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.plain_yaml import MAX_BYTES, load_yaml

REPOSITORY = Path(__file__).parents[1]
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 8)}]}}\n" for n in range(1, 40))
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a billion laughs": (LAUGHS.encode(), r"line \d: it has more than 100,000 values"),
    "laughs of merged keys": (MERGES.encode(), r"line \d: it has more than 100,000 values"),
    "an alias of itself": (b"a: 1\nb: &b [*b]\n", "line 2: the alias \\*b stands for what it is a part of"),
    "deep lists": (b"a:\n  " + b"[" * 100_000 + b"]" * 100_000, "line 2: its values are nested too deep"),
    "deep objects": (b"a: " + b"{a: " * 3000 + b"}" * 3000, "line 1: its values are nested too deep"),
    "deep dashes": (b"a:\n" + b"- " * 3000 + b"1\n", "nested too deep"),
    "a number of 5,000 digits": (b"a: 1\nb: " + b"9" * 5000, "Exceeds the limit"),
    "a key twice": (b"a: 1\nb: {c: 1, c: 2}\n", "line 2: the key 'c' stands twice, first in line 2"),
    "a day that is none": (b"\n\na: 2024-13-45\n", "month must be in 1..12"),
    "a call": (b"a: !!python/object/apply:os.system [id]\n", "line 1: could not determine a constructor"),
    "a list for a key": (b"? [1, 2]\n: 6\n", "line 1: while constructing a mapping, found unhashable key"),
    "two documents": (b"a: 1\n---\nb: 2\n", "line 2: expected a single document"),
    "an open bracket": (b"a: [\n", "line 2: while parsing a flow node"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "not UTF-8 text"),
    "a nul": (b"a: \x00\n", "control characters are not allowed"),
    "sixteen megabytes": (b"a: " + b"x" * MAX_BYTES, "longer than 16,777,216 bytes"),
}


def knobs_of(root: Path, path: Path) -> None:
    knob_values(StageInputs("c", (), ("a",)), {"params.yaml": path.read_bytes()})


READERS = {
    "infra/dispatch.yaml": lambda root, path: load_settings(root),
    "infra/accelerate/ours.yaml": lambda root, path: asked_launch({"POSTTRAIN_LAUNCH": str(path)}),
    "infra/kubernetes/job.yaml": lambda root, path: read_template(path),
    "dvc.yaml": lambda root, path: read_all_inputs(path),
    "experiment.yaml": lambda root, path: read_knobs(path.read_bytes(), source=str(path)),
    "params.yaml": knobs_of,
}


@pytest.mark.parametrize("name", READERS)
def test_a_hostile_file_is_refused_in_a_sentence_with_file_and_line(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for content, said in HOSTILE.values():
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=said) as refused:
            READERS[name](tmp_path, path)
        assert path.name in str(refused.value)
        assert len(str(refused.value)) < 1_000
    assert time.monotonic() - start < 20


def test_a_committed_file_that_is_hostile_is_no_knobs_and_a_hostile_lock_no_entries():
    for name in ("a billion laughs", "an alias of itself", "deep lists", "a number of 5,000 digits"):
        text = HOSTILE[name][0]
        with pytest.raises(ValueError, match=HOSTILE[name][1]):
            parse_knobs(text)
        assert read_entries(f"stages:\n  {text.decode()}\n") is None


def test_what_dvc_writes_for_a_small_number_is_a_number():
    assert load_as_dvc("lr: 5e-05\non: off\n") == {"lr": 5e-05, "on": "off"}


def test_aliases_and_merged_keys_within_the_bounds_are_read():
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: [*a, *a]\n"
    assert load_yaml(text, "x") == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": [{"x": 1, "y": 2}] * 2}
    assert load_yaml(b"\xef\xbb\xbfa: 010\n", "x") == {"a": 8}  # a template of Kubernetes has its modes so


def test_no_other_file_of_the_tree_loads_yaml_by_itself():
    files = (
        file
        for folder in ("posttrain", "stages", "flows", "benchmarks")
        for file in (REPOSITORY / folder).rglob("*.py")
    )
    loads = {file.relative_to(REPOSITORY).as_posix() for file in files if re.search(r"yaml\.\w*load", file.read_text())}
    assert loads == set()
