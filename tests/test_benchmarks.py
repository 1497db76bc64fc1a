"""What the benchmarks compute themselves; the pipeline under them is tested elsewhere."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks import arms
from benchmarks.arms import Arm, apply_overrides
from benchmarks.bytes.__main__ import compare, render
from benchmarks.bytes.operations import digest_operations
from benchmarks.diagnose import copied_spans
from benchmarks.gpu.__main__ import run as run_parts
from benchmarks.gpu.pack import join, pack
from benchmarks.gpu.parts import Part
from benchmarks.pretrained import verdicts_on
from benchmarks.resampling import rare_cells
from posttrain.worlds.domains import make_domain
from tests.worlds_of import stocks_params


def test_a_cell_is_rare_below_half_of_the_most_frequent_counted_over_heaviness():
    # planning/a: 60 + 40 = 100; planning/hk: 49; timing/none: 30 + 20 = 50, which is half and not
    # less
    counts = {
        "planning/a/zh/tools": 60,
        "planning/a/zh/reasoning": 40,
        "planning/hk/zh/tools": 49,
        "timing/none/zh/tools": 30,
    }
    counts["timing/none/zh/reasoning"] = 20
    assert rare_cells({cell: {"validated": count} for cell, count in counts.items()}) == {"planning/hk/zh"}


def test_an_override_of_a_knob_that_is_not_there_is_an_error(tmp_path: Path, repository: Path):
    """A renamed knob must not silently make an arm the default."""
    params = tmp_path / "params.yaml"
    params.write_bytes((repository / "params.yaml").read_bytes())
    apply_overrides(params, {"train_policy.lr": 0.5, "seed": 9})
    content = yaml.safe_load(params.read_text(encoding="utf-8"))
    assert (content["train_policy"]["lr"], content["seed"]) == (0.5, 9)
    with pytest.raises(KeyError, match=r"params.yaml has no train_policy.rate"):
        apply_overrides(params, {"train_policy.rate": 0.5})


def test_what_an_agent_copied_is_found_where_it_stands():
    text = (
        '<|user|>PlumShip?<|assistant|><tool_call>{"name":"search_stock","arguments":{"name":"PlumShip"}}</tool_call><|end|>'
        '<|tool|>{"code":"600519.SH"}<|assistant|>{"code":"600519.SH","open":-1.5}\nANSWER: -1.5<|end|>'
    )
    found = [(name, text[start:end]) for name, (start, end) in copied_spans(text)]
    assert found == [("call name", "PlumShip"), ("quoted code", "600519.SH"), ("quoted open", "-1.5")]
    assert text[: next(copied_spans(text))[1][0]].endswith('"arguments":{"name":"')  # not the name in the question


def test_an_arm_that_fails_costs_no_other_arm_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run_arm(arm: Arm, folder: Path) -> Path:
        if arm.name == "broken":
            raise subprocess.CalledProcessError(65, "dvc repro")
        return folder

    monkeypatch.setattr(arms, "run_arm", run_arm)
    monkeypatch.setattr("sys.argv", ["arms"])
    with pytest.raises(subprocess.CalledProcessError):
        arms.run_arms([Arm("broken"), Arm("whole")], lambda copy, arm: {"success_rate": 0.5}, tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text()) == {"whole": {"overrides": {}, "success_rate": 0.5}}


def test_of_a_tree_lock_and_reports_are_kept_over_those_that_are_there(tmp_path: Path):
    for name, text in {"a/dvc.lock": "new", "a/reports/x/one": "1", "a/other": "o", "b/reports/x/two": "2"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    arms.keep_done(tmp_path / "a", tmp_path / "b")
    found = {file.relative_to(tmp_path / "b").as_posix() for file in (tmp_path / "b").rglob("*") if file.is_file()}
    assert found == {"dvc.lock", "reports/x/one", "reports/x/two"}


def test_an_unknown_arm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.argv", ["arms", "sed_1"])
    with pytest.raises(SystemExit):
        arms.run_arms([Arm("seed_1")], lambda copy, arm: {}, tmp_path / "results.json")
    assert "no arm sed_1; there are seed_1" in capsys.readouterr().err


def test_processors_are_compared_in_what_both_computed_under_settings_that_both_had():
    ours = {"none": {"exp": "a", "log": "b", "sqrt": "c"}, "avx2": {"exp": "a"}, "compatible": {"exp": "a"}}
    theirs = {"none": {"exp": "z", "log": "b"}, "avx2": {"exp": "a"}}
    assert compare(ours, theirs) == ["  none         1 of 2 equal; not exp", "  avx2         1 of 1 equal"]


def test_the_seconds_of_several_rounds_are_shown_as_their_median():
    seconds = {"none": {"exp": [9.0, 1.0, 2.0]}, "avx2": {"exp": [4.0]}}
    head, digests, medians = render({name: {"exp": "abc"} for name in seconds}, seconds).splitlines()
    assert head.split() == ["none", "avx2"]
    assert digests.split() == ["exp", "abc", "abc"]
    assert medians.split() == ["exp,", "s", "2.00", "4.00"]


def test_an_operation_computed_again_has_the_same_digest():
    assert digest_operations() == digest_operations()


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
