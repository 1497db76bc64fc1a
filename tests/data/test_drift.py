"""`posttrain drift`: what changed since a commit, beside the limits."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.cli.main import app
from posttrain.data.params import DriftParams
from posttrain.data.validation.drift import drift, drift_table

SUMMARY = {
    "num_kept": 1000,
    "quarantined_frac": 0.02,
    "tokens_estimate": {"median": 100, "p95": 200},
    "labels": {"kind": {"order": 0.6, "holdings": 0.4}},
    "tools": {"search": 0.5, "order": 0.5},
}
LIMITS = DriftParams(max_rows=0.2, max_length=0.2, max_share=0.1)


def drifted(**changes):
    return [one.figure for one in drift(SUMMARY, SUMMARY | changes, LIMITS) if one.is_drift]


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({}, []),
        ({"num_kept": 1190}, []),
        ({"num_kept": 1210}, ["demonstrations"]),
        ({"num_kept": 0}, ["demonstrations"]),
        ({"quarantined_frac": 0.2}, ["quarantined"]),
        ({"tokens_estimate": {"median": 150, "p95": 239}}, ["median tokens"]),
        ({"labels": {"kind": {"order": 0.51, "holdings": 0.49}}}, []),
        ({"labels": {"kind": {"order": 0.48, "holdings": 0.4, "other": 0.12}}}, ["share of kind"]),
        ({"labels": {"kind": {"order": 0.6, "holdings": 0.4}, "language": {"zh": 1.0}}}, ["share of language"]),
        ({"labels": {}}, ["share of kind"]),
        ({"tools": {"search": 1.0}}, ["share of tool"]),
    ],
)
def test_a_change_beyond_its_limit_is_told(changes, figures):
    assert drifted(**changes) == figures


def test_shares_are_compared_by_total_variation_and_the_value_that_moved_most_is_named():
    now = SUMMARY | {"labels": {"kind": {"order": 0.3, "holdings": 0.5, "other": 0.2}}}
    [found] = [one for one in drift(SUMMARY, now, LIMITS) if one.figure == "share of kind"]
    assert found == ("share of kind", "order 60.0%", "order 30.0%", pytest.approx(0.3), 0.1)
    assert drift_table([found]).splitlines()[1].split() == [
        *["share", "of", "kind", "order", "60.0%", "order", "30.0%", "0.300", "0.1", "DRIFT"]
    ]


def test_a_summary_of_an_older_version_has_no_shares_to_compare():
    older = {name: one for name, one in SUMMARY.items() if name not in ("labels", "tools")}
    assert [one.figure for one in drift(older, SUMMARY, LIMITS)] == [
        *("demonstrations", "median tokens", "p95 tokens", "quarantined")
    ]


def test_the_command_compares_with_a_commit(repository, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(repository / "params.yaml", "params.yaml")
    file = Path("reports/validate_data/summary.json")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(SUMMARY))
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", *["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "summary"]], check=True)
    app(["drift"])
    assert "DRIFT" not in capsys.readouterr().out
    file.write_text(json.dumps(SUMMARY | {"num_kept": 10}))
    with pytest.raises(SystemExit) as ended:
        app(["drift"])
    shown = capsys.readouterr()
    assert (ended.value.code, "DRIFT" in shown.out, "demonstrations changed beyond" in shown.err) == (65, True, True)
    for arguments in (["drift", "nowhere"], ["drift", "--help"]):
        with pytest.raises(SystemExit) as ended:
            app(arguments)
        assert ended.value.code == (0 if "--help" in arguments else 78)
