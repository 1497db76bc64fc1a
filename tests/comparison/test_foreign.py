"""Results that other tools wrote: the files beside are of real runs of Inspect 0.3.285, lm-eval
0.4.13 and promptfoo 0.121.20 on tasks of a line, answered by a script."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from posttrain.comparison.foreign import are_files, read_files
from posttrain.comparison.settings import compare_settings
from posttrain.exits import ConfigurationError, DataError
from tests.console import posttrain

FILES = Path(__file__).parent / "files"


def shares(run):
    return sorted(run.outcomes.values())


@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_inspects_logs_have_the_mean_over_epochs_of_each_sample(suffix):
    [first], [second] = (read_files(str(FILES / f"inspect-{name}.{suffix}")) for name in "ab")
    assert (shares(first), shares(second)) == ([0.5, 1, 1, 1, 1], [0.5, 0.5, 1, 1, 1])
    assert first.outcomes.keys() == second.outcomes.keys()
    assert first.problems == []


def test_both_forms_of_an_inspect_log_are_the_same_run():
    [packed], [plain] = (read_files(str(FILES / f"inspect-a.{suffix}")) for suffix in ("eval", "json"))
    assert packed.outcomes == plain.outcomes


def test_lm_evals_samples_are_known_by_the_hash_of_their_document():
    [run] = read_files(str(FILES / "samples_mytask.jsonl"))
    assert shares(run) == [0, 0, 0, 0, 0, 0]
    assert "say 3" in b"".join(task.text for task in run.tasks.values()).decode()


def test_a_promptfoo_file_holds_a_run_of_each_provider(tmp_path):
    small, large = read_files(str(FILES / "promptfoo.json"))
    assert [run.name.rpartition(": ")[2] for run in (small, large)] == ["small", "large"]
    assert shares(small) == shares(large) == [0, 1, 1]
    assert small.outcomes == large.outcomes

    def fail_one(log):
        log["results"]["results"][0] |= {"error": "no answer", "response": None, "success": False}

    runs = read_files(edited("promptfoo.json", fail_one, tmp_path))
    assert sorted(len(run.outcomes) for run in runs) == [2, 3]
    assert runs[0].problems[0].endswith("1 plays have no score, and are left out")


def test_files_with_commas_between_are_seeds_of_one_setting(tmp_path):
    names = []
    for name in ("a", "b", "c", "d"):
        names.append(str(tmp_path / f"{name}.json"))
        shutil.copy(FILES / f"inspect-{'a' if name in 'ab' else 'b'}.json", names[-1])
    pairs = ",".join(names[:2]), ",".join(names[2:])
    assert are_files(pairs[0])
    settings = compare_settings([run for pair in pairs for run in read_files(pair)])
    assert [len(setting.counted) for setting in settings] == [2, 2]
    assert settings[1].difference.num_seeds == (2, 2)
    assert settings[1].difference.estimate == pytest.approx(-0.1)


def test_several_scores_ask_which_one_counts(tmp_path):
    log = json.loads((FILES / "inspect-a.json").read_text())
    for sample in log["samples"]:
        sample["scores"]["other"] = {"value": 0.25}
    file = tmp_path / "two.json"
    file.write_text(json.dumps(log))
    with pytest.raises(ConfigurationError, match="has the scores match, other: name the one that counts, with --score"):
        read_files(str(file))
    assert shares(read_files(str(file), score="other")[0]) == [0.25] * 5
    with pytest.raises(ConfigurationError, match="has the scores"):
        read_files(str(file), score="third")


def edited(name, edit, tmp_path):
    log = json.loads((FILES / name).read_text())
    edit(log)
    (tmp_path / name).write_text(json.dumps(log))
    return str(tmp_path / name)


def test_a_run_that_did_not_end_well_says_so_and_what_it_scored_counts(tmp_path):
    def break_off(log):
        log["status"] = "error"
        log["samples"][0]["scores"] = None

    [run] = read_files(edited("inspect-a.json", break_off, tmp_path))
    assert [problem.partition(": ")[2] for problem in run.problems] == [
        "the run ended as error",
        "1 plays have no score, and are left out",
    ]
    assert len(run.outcomes) == 5


@pytest.mark.parametrize(
    ("value", "reason"), [("great", "no success between"), (7, "no success between"), ({"a": 1}, "no success between")]
)
def test_a_score_that_is_no_share_of_a_success_is_refused(tmp_path, value, reason):
    def spoil(log):
        log["samples"][0]["scores"]["match"]["value"] = value

    with pytest.raises(DataError, match=reason):
        read_files(edited("inspect-a.json", spoil, tmp_path))


def damages():
    whole = (FILES / "inspect-a.eval").read_bytes()
    yield "empty.json", b""
    yield "list.json", b"[]"
    yield "null.jsonl", b"null\n"
    yield "deep.json", b"[" * 100_000
    yield "other.json", b'{"results": {"results": [{}]}}'
    yield "none.json", b'{"status": "success", "samples": []}'
    yield "text.eval", b"PK no archive"
    yield "cut.eval", whole[: len(whole) // 2]


@pytest.mark.parametrize(
    ("name", "content"), list(damages()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_damaged_or_foreign_file_is_refused_in_a_sentence(tmp_path, monkeypatch, name, content):
    (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    ran = posttrain("compare", name, name)
    assert (ran.exit_code, "Traceback" in ran.stderr, name in ran.stderr) == (65, False, True), ran.stderr


def test_a_flipped_byte_of_an_archive_is_never_another_result(tmp_path):
    whole = (FILES / "inspect-a.eval").read_bytes()
    [right] = read_files(str(FILES / "inspect-a.eval"))
    num_refused = 0
    for place in range(3, len(whole), 97):
        file = tmp_path / "flipped.eval"
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert read_files(str(file))[0].outcomes == right.outcomes
        except DataError:
            num_refused += 1
    assert num_refused > 50


def test_an_archive_that_unpacks_to_more_than_it_may_is_refused(tmp_path):
    file = tmp_path / "bomb.eval"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", b'{"status": "success"}')
        archive.writestr("samples/1_epoch_1.json", b" " * (65 * 2**20))
    with pytest.raises(DataError, match="is larger than"):
        read_files(str(file))


def test_the_command_compares_two_files(monkeypatch):
    monkeypatch.chdir(FILES)
    ran = posttrain("compare", "inspect-a.eval", "inspect-b.eval")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.splitlines()[3].startswith("inspect-b.eval  1      80.0 %")
