"""Tests of the page that says which run the figures are of."""

import html
import re
import subprocess
from dataclasses import replace

import pytest
import yaml

from posttrain.provenance.costs import COSTS, Cost
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import read_records, record_run
from posttrain.report.run_page import run_page, write_run_page
from tests.report.outline import Outline

HOSTILE = "<script>alert(1)</script>"


def words(page):
    body = page.partition("<body>")[2].partition("<script")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture
def root(tmp_path):
    """With a committed tree and two stages, of which one left a record."""
    (tmp_path / ".posttrain").mkdir()
    (tmp_path / "params.yaml").write_text("seed: 1\ntrain_sft: {lr: 0.1}\n")
    entries = {
        name: {"cmd": "x", "deps": [{"path": "a", "md5": 32 * digit}], "outs": [{"path": name, "md5": 32 * digit}]}
        for name, digit in (("train_sft", "1"), (HOSTILE, "2"))
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "params.yaml", "dvc.lock"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "start"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    cost = Cost(
        "train_sft",
        seconds=1700.0,
        whole_s=1800.0,
        peak_mib=812.4,
        is_resumed=True,
        at=1763900000.0,
        earlier_s=1800.0,
        resumed_at=(120, 360),
        version=40 * "4" + "+1a2b3c",
        processor="AMD, AVX-512",
        num_threads=2,
        num_gpus=4,
    )
    record_run(tmp_path, "train_sft", entries["train_sft"], cost)
    return tmp_path


def test_it_names_code_knobs_and_what_each_stage_took_with_all_attempts(root):
    said = words(run_page(root))
    assert "tree main at" in said
    assert "knobs as committed" in said
    assert "train_sft 1 h 00 min 4.00 812 2025-11-23 12:13 UTC 4444444+1a2b3c AMD, AVX-512, 2 threads 120, 360" in said
    assert "no record: made in another tree" in said
    assert "all that is known 1 h 00 min 4.00 812" in said


def test_an_own_run_that_made_the_same_again_is_shown_and_not_the_one_that_made_it_first(root):
    """A clone computes in 25 minutes what is committed, to the byte: those are its own times."""
    [committed] = read_records(root).values()
    (root / COSTS).unlink()
    assert "2025-11-23 12:13 UTC elsewhere" in words(run_page(root))
    own = replace(committed, whole_s=120.0, earlier_s=0.0, at=1764000000.0, processor="Intel, AVX2", resumed_at=())
    record_run(root, "train_sft", lock_entries(root)["train_sft"], own)
    assert "train_sft 2 min 0.13 812 2025-11-24 16:00 UTC 4444444+1a2b3c Intel, AVX2" in words(run_page(root))
    assert read_records(root) == {"train_sft": committed}, "what is committed stays"


def test_edits_are_told_with_the_knobs_before_and_after(root):
    (root / "params.yaml").write_text("seed: 2\ntrain_sft: {lr: 0.2}\n")
    said = words(run_page(root))
    assert "with edits that are not committed" in said
    assert "seed 2 knobs train_sft.lr 0.1 → 0.2" in said


def test_nothing_on_it_runs_or_asks_for_anything(root):
    page = run_page(root)
    assert "<script>alert" not in page
    assert "script-src 'none'" in page
    assert {attributes["href"] for tag, attributes in Outline(page).tags if "href" in attributes} == {
        "../reports/index.html"
    }


def test_it_is_written_where_no_commit_has_it_and_where_that_cannot_be_nothing_is_said(root):
    assert write_run_page(root).endswith(".posttrain/run.html")
    assert (root / ".posttrain/run.html").read_text() == run_page(root)
    (root / ".posttrain/run.html").unlink()
    (root / ".posttrain/run.html").mkdir()
    assert write_run_page(root) == ""


def test_a_tree_without_git_lock_or_knobs_has_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "params.yaml").write_text("[")
    assert "no commit is known" in words(run_page(tmp_path))
