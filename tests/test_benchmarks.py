"""Computations of the benchmarks themselves; the pipeline under them is tested elsewhere."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.arms import apply_overrides
from benchmarks.gpu.__main__ import run as run_parts
from benchmarks.gpu.pack import join, pack
from benchmarks.gpu.parts import Part
from benchmarks.pretrained import verdicts_on
from posttrain.worlds.catalog import make_domain
from tests.worlds_of import stocks_params


def test_an_override_of_a_knob_that_is_not_there_is_an_error(tmp_path: Path, repository: Path):
    """A renamed knob must not silently make an arm the default."""
    params = tmp_path / "params.yaml"
    params.write_bytes((repository / "params.yaml").read_bytes())
    apply_overrides(params, {"train_policy.lr": 0.5, "seed": 9})
    content = yaml.safe_load(params.read_text(encoding="utf-8"))
    assert (content["train_policy"]["lr"], content["seed"]) == (0.5, 9)
    with pytest.raises(KeyError, match=r"params.yaml has no train_policy.rate"):
        apply_overrides(params, {"train_policy.rate": 0.5})


@pytest.mark.needs_large
def test_a_part_on_a_gpu_that_fails_or_is_too_long_ends_no_other_and_leaves_a_record(tmp_path: Path):
    (tmp_path / "cpu.json").write_text(json.dumps({"parts": {"earlier": {"found": [1]}}}), encoding="utf-8")
    parts = [Part("no_such_part", 60, "fails"), Part("tokens", 0, "is ended")]
    record = run_parts(parts, tmp_path, is_small=True)
    assert record == tmp_path / "cpu.json"
    found = json.loads(record.read_text(encoding="utf-8"))["parts"]
    assert found["earlier"] == {"found": [1]}
    assert found["no_such_part"]["ended"] == "with exit code 1"
    assert "no_such_part" in found["no_such_part"]["last_lines"][-1]
    assert (found["tokens"]["ended"], found["tokens"]["found"]) == ("at its limit", [])
    assert len(found["tokens"]["commit"]) == 40


def test_what_is_carried_to_a_gpu_in_parts_is_joined_as_it_was(tmp_path: Path):
    contents = {"a.whl": bytes(range(7)), "b.whl": bytes(range(100, 125)), "c.whl": b""}
    (tmp_path / "files").mkdir()
    for name, content in contents.items():
        (tmp_path / "files" / name).write_bytes(content)
    parts = pack(tmp_path / "files", tmp_path / "parts", largest=10)
    assert [sum(file.stat().st_size for file in part.iterdir()) for part in parts] == [7, 10, 10, 5]
    join(tmp_path / "parts", tmp_path / "whole")
    assert {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()} == contents


def test_a_call_is_valid_where_its_tool_was_offered_and_its_arguments_fit():
    domain = make_domain(stocks_params())
    task = next(task for task in domain.tasks("dev", 20) if "get_realtime_quote" in task.tools)
    absent = next(name for name in domain.tools if name not in task.tools)

    def verdicts(**message: object) -> list[bool]:
        return verdicts_on({"role": "assistant", **message}, task, domain)

    quote = "get_realtime_quote"
    assert verdicts(calls=[[quote, '{"code":"600519"}'], [quote, '{"name":"x"}'], [quote, '{"code":']]) == [
        True,
        False,
        False,
    ]
    assert verdicts(calls=[[absent, '{"code":"600519"}']]) == [False]
    assert verdicts(content='<tool_call>{"name":') == [False], "a call that cannot be read is an invalid one"
    assert verdicts(content="ANSWER: 3") == []
