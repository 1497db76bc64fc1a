"""Tests of results that other tools wrote: the files beside are of real runs of Inspect 0.3.285,
lm-eval 0.4.13 on tasks of a line, answered by a script."""

import json
import shutil
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard

from posttrain.report.comparison.foreign import are_files, read_files
from posttrain.report.comparison.settings import compare_settings
from posttrain.runtime.exits import ConfigurationError, DataError
from tests.console import posttrain

FILES = Path(__file__).parent / "files"


def shares(run):
    return sorted(run.outcomes().values())


@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_inspects_logs_have_the_mean_over_epochs_of_each_sample(suffix):
    [first], [second] = (read_files(str(FILES / f"inspect-{name}.{suffix}")) for name in "ab")
    assert (shares(first), shares(second)) == ([0.5, 1, 1, 1, 1], [0.5, 0.5, 1, 1, 1])
    assert first.outcomes().keys() == second.outcomes().keys()
    assert first.problems == []
    assert first.outcomes() == read_files(str(FILES / "inspect-a.eval"))[0].outcomes(), "the same in both forms"


def test_lm_evals_samples_are_known_by_the_hash_of_their_document():
    [run] = read_files(str(FILES / "samples_mytask.jsonl"))
    assert shares(run) == [0, 0, 0, 0, 0, 0]
    assert "say 3" in b"".join(task.text for task in run.tasks.values()).decode()


def test_a_task_is_the_same_wherever_a_tool_places_it(tmp_path):
    """Inspect numbers samples after it shuffled them, and draws an id for each message."""

    def shuffle(log):
        for place, sample in enumerate(log["samples"]):
            sample["id"] = 100 - place
            sample["input"] = [{"id": f"drawn {place}", "role": "user", "content": sample["input"]}]

    def shuffle_otherwise(log):
        log["samples"].reverse()
        shuffle(log)

    [first] = read_files(edited("inspect-a.json", shuffle, tmp_path))
    [second] = read_files(edited("inspect-a.json", shuffle_otherwise, tmp_path))
    assert first.outcomes() == second.outcomes()


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


def edited(name, edit, tmp_path):
    log = json.loads((FILES / name).read_text())
    edit(log)
    (tmp_path / name).write_text(json.dumps(log))
    return str(tmp_path / name)


def test_a_file_that_is_named_twice_is_not_two_seeds(tmp_path):
    file = FILES / "inspect-a.json"
    with pytest.raises(ConfigurationError, match="names a file twice"):
        read_files(f"{file},{FILES / 'x' / '..' / 'inspect-a.json'}")


def test_a_run_that_did_not_end_well_says_so_and_what_it_scored_counts(tmp_path):
    def break_off(log):
        log["status"] = "error"
        log["samples"][0]["scores"] = None
        log["samples"][1]["error"] = {"message": "no answer"}
        log["samples"][2]["scores"]["match"]["value"] = float("nan")
        log["samples"][3]["invalidation"] = {"reason": "a wrong prompt"}

    [run] = read_files(edited("inspect-a.json", break_off, tmp_path))
    left_out = "4 of 10 plays ended in an error or have no score: they are left out, and are no failures"
    assert run.problems == ["the run ended as error", left_out]


@pytest.mark.parametrize(
    ("value", "share"), [("C", 1), ("I", 0), ("P", 0.5), ("N", 0), ("Yes", 1), ("false", 0), (0.25, 0.25), (True, 1)]
)
def test_a_score_of_inspect_is_what_its_own_metrics_take_it_for(tmp_path, value, share):
    def give_all(log):
        for sample in log["samples"]:
            sample["scores"]["match"]["value"] = value

    [run] = read_files(edited("inspect-a.json", give_all, tmp_path))
    assert shares(run) == [share] * 5


@pytest.mark.parametrize("value", ["great", 7, -0.1, [1, 2]])
def test_of_several_scores_the_named_one_counts_and_has_to_be_a_share(tmp_path, value):
    def add_another(log):
        for sample in log["samples"]:
            sample["scores"] |= {"other": {"value": value}, "quarter": {"value": 0.25}}

    file = edited("inspect-a.json", add_another, tmp_path)
    for score in ("", "third"):
        with pytest.raises(ConfigurationError, match="has the scores match, other, quarter: name the one that counts"):
            read_files(file, score=score)
    assert shares(read_files(file, score="match")[0]) == [0.5, 1, 1, 1, 1]
    assert shares(read_files(file, score="quarter")[0]) == [0.25] * 5
    with pytest.raises(DataError, match="is no success between 0 and 1"):
        read_files(file, score="other")


def test_a_score_of_several_values_has_each_by_its_name(tmp_path):
    def give_both(log):
        for sample in log["samples"]:
            sample["scores"] = {"parts": {"value": {"found": 1, "quoted": "P"}}}

    file = edited("inspect-a.json", give_both, tmp_path)
    with pytest.raises(ConfigurationError, match=r"has the scores parts\.found, parts\.quoted"):
        read_files(file)
    assert shares(read_files(file, score="parts.quoted")[0]) == [0.5] * 5


def samples_of(name, lines, folder):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def lm_eval_lines():
    return [json.loads(line) for line in (FILES / "samples_mytask.jsonl").read_text().splitlines()]


def test_a_document_that_a_dataset_of_lm_eval_has_twice_is_averaged(tmp_path):
    lines = lm_eval_lines()
    samples_of("s.jsonl", [*lines, lines[0] | {"doc_id": 99, "exact_match": 1.0}], tmp_path)
    assert shares(read_files(str(tmp_path / "s.jsonl"))[0]) == [0, 0, 0, 0, 0, 0.5]


def test_a_score_of_each_of_several_filters_of_lm_eval_has_its_name(tmp_path):
    lines = lm_eval_lines()
    flexible = [line | {"filter": "flexible", "exact_match": 1.0} for line in lines]
    samples_of("s.jsonl", [*lines, *flexible], tmp_path)
    with pytest.raises(ConfigurationError, match="has the scores exact_match,none, exact_match,flexible"):
        read_files(str(tmp_path / "s.jsonl"))
    assert shares(read_files(str(tmp_path / "s.jsonl"), score="exact_match,flexible")[0]) == [1] * 6


def test_a_folder_of_lm_eval_is_one_run_of_all_its_tasks_and_not_of_two_runs(tmp_path):
    lines, time = lm_eval_lines(), "2026-11-23T16-55-46.835746"
    others = [line | {"doc_hash": f"other {place}", "exact_match": 1.0} for place, line in enumerate(lines)]
    samples_of(f"samples_first_{time}.jsonl", lines, tmp_path)
    samples_of(f"samples_second_{time}.jsonl", others, tmp_path)
    assert are_files(str(tmp_path))
    assert shares(read_files(str(tmp_path))[0]) == [0] * 6 + [1] * 6
    samples_of("samples_second_2026-11-24T00-00-00.000001.jsonl", others, tmp_path)
    with pytest.raises(ConfigurationError, match="holds several runs of second"):
        read_files(str(tmp_path))
    assert not are_files(str(FILES.parent)), "a folder without samples may be a branch's name"


def damages():
    whole = (FILES / "inspect-a.eval").read_bytes()
    yield "empty.json", b""
    yield "list.json", b"[]"
    yield "null.jsonl", b"null\n"
    yield "deep.json", b"[" * 100_000
    yield "other.json", b'{"results": {"results": [{}]}}'
    yield "none.json", b'{"status": "success", "samples": []}'
    yield "none.eval.json", b'{"status": "success", "eval": {}}'
    yield "old.jsonl", b'{"doc_id": 0, "doc": {}, "target": "1", "exact_match": 1.0}\n'
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
            assert read_files(str(file))[0].outcomes() == right.outcomes()
        except DataError:
            num_refused += 1
    assert num_refused > 50


def deflated(content):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize(("method", "pack"), [(8, deflated), (93, zstandard.ZstdCompressor().compress)])
@pytest.mark.parametrize("size", [0, 7])
def test_a_sample_is_unpacked_no_further_than_its_archive_says(tmp_path, method, pack, size):
    """To nothing at all is what zlib and Zstandard take for no limit."""
    with zipfile.ZipFile(tmp_path / "bomb.eval", "w") as archive:
        archive.writestr("header.json", b'{"status": "success"}')
        archive.writestr("samples/1_epoch_1.json", pack(b" " * 100 * 2**20))
        archive.infolist()[1].compress_type, archive.infolist()[1].file_size = method, size
    tracemalloc.start()
    with pytest.raises(DataError, match=r"is not what its archive says it is|Bad CRC"):
        read_files(str(tmp_path / "bomb.eval"))
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_the_command_compares_two_files(monkeypatch):
    monkeypatch.chdir(FILES)
    ran = posttrain("compare", "inspect-a.eval", "inspect-b.eval")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.splitlines()[3].startswith("inspect-b.eval  1      80.0 %")


@pytest.mark.parametrize("other", ["inspect-c.eval", "main", "inspect-b.eval,inspect-c.eval"])
def test_a_file_is_not_compared_with_what_is_none(monkeypatch, other):
    monkeypatch.chdir(FILES)
    ran = posttrain("compare", "inspect-a.eval", other)
    assert (ran.exit_code, f"there is no file {other}" in ran.stderr) == (78, True), ran.stderr
