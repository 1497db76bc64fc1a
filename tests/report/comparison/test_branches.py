"""Tests of `posttrain compare` on branches as git has them, good and bad."""

import json
import re
import subprocess

import pytest

from benchmarks.branches import HERE, Branch, make_repository
from posttrain.evals.significance import Decision
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import RECORDS
from posttrain.report.comparison.curves import drawn_charts
from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_objects, read_runs
from posttrain.report.comparison.settings import compare_settings
from posttrain.report.comparison.stages import class_counts, data_files, row_counts, stage_differences
from posttrain.report.comparison.tables import comparison_json, comparison_markdown, comparison_text, differs_in
from posttrain.report.run_reader import Measure
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain

pytestmark = pytest.mark.xdist_group("branches")
BETTER = {"train_sft.lr": 0.004}
HOSTILE = "exp/'\"<script>alert(1)</script>&"
EVALUATION, TASKS = "reports/evaluate/policy.json", "reports/evaluate/policy.tasks.jsonl"


@pytest.fixture(scope="module")
def repository_of_branches(tmp_path_factory):
    seeds = (1, 2, 3)
    return make_repository(
        tmp_path_factory.mktemp("git") / "repository; $(touch pwned)",
        [
            Branch("main", success=0.8),
            *(Branch(f"main-seed{seed}", seed, 0.8) for seed in seeds[1:]),
            *(Branch(f"exp/better-seed{seed}", seed, 0.95, BETTER) for seed in seeds),
            *(Branch(f"exp/equal-seed{seed}", seed, 0.8, {"agent.max_turns": 7}) for seed in seeds),
            Branch("exp/once", 1, 0.95, {"train_sft.lr": 0.005}),
            Branch(HOSTILE, 1, 0.8, {"reward.extra": "\x1b[31m|<img src=x onerror=alert(1)>"}),
            Branch("empty", files=dict.fromkeys(["params.yaml", "dvc.lock", "reports/evaluate/policy.json", TASKS])),
        ],
    )


def settings_of(root, *names):
    return compare_settings(read_runs(root, names))


def test_seeds_of_a_setting_are_one_row_and_the_verdict_counts_them(repository_of_branches):
    names = [f"exp/better-seed{seed}" for seed in (1, 2, 3)]
    main, better = settings_of(repository_of_branches, "main", "main-seed2", "main-seed3", *names)
    assert (main.name, len(main.runs), main.difference) == ("main", 3, None)
    assert (better.name, [run.seed for run in better.runs]) == ("exp/better", [1, 2, 3])
    assert better.knobs == {"train_sft.lr": (0.006, 0.004)}
    assert better.difference.decision is Decision.BETTER
    assert better.difference.num_seeds == (3, 3)
    assert better.difference.low > 0
    assert better.success[0] - main.success[0] == pytest.approx(better.difference.estimate)


def test_one_run_of_each_is_called_what_it_is(repository_of_branches):
    _, once = settings_of(repository_of_branches, "main", "exp/once")
    assert once.difference.decision is Decision.NEEDS_MORE
    assert "one of runs, not of settings" in comparison_text(settings_of(repository_of_branches, "main", "exp/once"))


def test_runs_of_one_setting_are_tied(repository_of_branches):
    first, second = settings_of(repository_of_branches, "main", "main-seed2")
    assert (first.difference, second.difference.decision) == (None, Decision.TIED)


def test_settings_are_compared_by_strict_success_which_stands_before_success(tmp_path):
    names = [f"exp/wasteful-seed{seed}" for seed in (1, 2, 3)]
    root = make_repository(
        tmp_path / "git",
        [
            *(Branch(f"main-seed{seed}", seed, 0.9) for seed in (1, 2, 3)),
            *(Branch(name, seed, 0.9, BETTER, needless=0.4) for seed, name in enumerate(names, 1)),
        ],
    )
    main, wasteful = settings = settings_of(root, "main-seed1", "main-seed2", "main-seed3", *names)
    assert (main.measure, wasteful.difference.decision) == (Measure.STRICT, Decision.WORSE)
    assert wasteful.strict_success[0] == pytest.approx(0.6 * wasteful.success[0], abs=0.03)
    header, row = comparison_markdown(settings).splitlines()[0], comparison_markdown(settings).splitlines()[3]
    assert header.index("| strict success |") < header.index("| success |")
    assert f"| {100 * wasteful.strict_success[0]:.1f} % |" in row
    page = comparison_page(settings)
    assert "A verdict is on strict success" in page
    assert "success, but not strict" in page
    assert [one["compared_by"] for one in json.loads(comparison_json(settings))["settings"]] == ["strict_success"] * 2


def test_lost_episodes_are_told(tmp_path):
    content = json.loads((HERE / EVALUATION).read_text()) | {"num_lost": 3}
    branches = [Branch("main"), Branch("exp/lossy", knobs=BETTER, files={EVALUATION: json.dumps(content)})]
    text = comparison_text(settings_of(make_repository(tmp_path / "git", branches), "main", "exp/lossy"))
    assert "exp/lossy: 3 lost episodes count neither as won nor as failed." in text
    assert "main: 3 lost" not in text


def test_a_second_run_of_a_seed_counts_once(repository_of_branches):
    runs = read_runs(repository_of_branches, ["main", "refs/heads/main", "main-seed2", "exp/once"])
    main, _ = settings = compare_settings(runs)
    assert (len(main.runs), [run.name for run in main.counted]) == (3, ["main", "main-seed2"])
    assert settings[1].difference.num_seeds == (2, 1)
    assert "refs/heads/main: a second run of seed 1, which counts once." in comparison_text(settings)


def test_a_commit_is_read_with_all_it_says(repository_of_branches):
    [run] = read_runs(repository_of_branches, ["exp/better-seed2"])
    assert (run.author, run.committed_at, run.seed) == ("Ada Example", "2025-11-23T20:13:20+08:00", 2)
    assert (len(run.outcomes()), len(run.commit), run.problems) == (480, 40, [])
    assert run.stages["train_sft"].deps["posttrain/types.py"]
    assert run.stages["train_sft"].outs["data/models/sft"].endswith(".dir")
    assert run.knobs["train_sft.lr"] == 0.004
    lines = (HERE / "reports/train_policy/metrics.jsonl").read_bytes().splitlines()
    assert [line["step"] for line in run.curves["policy"]] == [json.loads(line)["step"] for line in lines]
    assert "transcript" in json.loads(next(iter(run.tasks.values())).text)


def test_a_branch_whose_working_tree_has_edits_says_so(tmp_path):
    root = make_repository(tmp_path / "git", [Branch("main"), Branch("other", knobs=BETTER), Branch("third")])
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "checkout", "--quiet", "main"], check=True)
    for name in ("other", "third"):
        subprocess.run([*git, "worktree", "add", "--quiet", str(tmp_path / name), name], check=True)
    (tmp_path / "other" / "params.yaml").write_text("seed: 5\n")
    names = ["HEAD", "main", "other", "third"]
    runs = read_runs(root, names)
    assert [run.is_dirty for run in runs] == [False, False, True, False]
    assert runs[2].seed == 1  # of the commit
    assert "edits that are not committed" in comparison_text(compare_settings(runs))
    (root / "params.yaml").write_text("seed: 5\n")
    assert [run.is_dirty for run in read_runs(root, names)] == [True, True, True, False]


def test_what_training_saw_is_counted_beside_the_baseline(repository_of_branches, tmp_path):
    settings = settings_of(repository_of_branches, "main", "exp/once", "empty")
    assert dict(row_counts(settings))["demonstrations"] == [6000, 6000, 6000]
    name, numbers = class_counts(settings)[0]
    assert (numbers[0], name) == max((row[1][0], row[0]) for row in class_counts(settings))
    assert "<td>that training saw</td>" in comparison_page(settings)


def test_alarms_of_a_training_stand_on_the_page(tmp_path):
    curve = "reports/train_policy/metrics.jsonl"
    lines = '{"kl": 0.1, "step": 1}\n{"alarms": "kl entropy_eruption", "kl": 0.9, "step": 2}\n'
    branches = [Branch("main"), Branch("exp/wild", knobs=BETTER, files={curve: lines})]
    page = comparison_page(settings_of(make_repository(tmp_path / "git", branches), "main", "exp/wild"))

    assert re.findall(r'<tr><td>(.*)</td><td class="n">(\d+)</td><td>(.*)</td><td>the policy', page) == [
        ("exp/wild", "2", "kl"),
        ("exp/wild", "2", "entropy eruption"),
    ]
    assert 'id="alarms"' not in comparison_page(settings_of(tmp_path / "git", "main"))


def test_a_page_is_the_same_to_the_byte_asks_for_nothing_and_holds_twenty_settings(tmp_path):
    branches = [Branch(f"exp/{index}", 1, 0.8, {"train_sft.lr": index}) for index in range(20)]
    root = make_repository(tmp_path / "git", branches)
    page = comparison_page(settings_of(root, *(branch.name for branch in branches)))
    assert page == comparison_page(settings_of(root, *(branch.name for branch in branches)))
    assert len(page.encode()) < 2_000_000
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#)""", page.partition("<script>")[0])


def test_names_that_git_does_not_know_are_refused(repository_of_branches):
    for name in ("nowhere", "main:params.yaml", "main\nexp/once", "-h", ""):
        with pytest.raises(ConfigurationError, match="git knows no"):
            read_runs(repository_of_branches, ["main", name])


def test_a_folder_that_is_no_repository_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(ConfigurationError, match="not a git repository"):
        read_runs(tmp_path, ["main"])


BROKEN = {
    "no results": ({TASKS: None}, f"no {TASKS}"),
    "a conflict in a lock that is else whole": (
        {"dvc.lock": "schema: '2.0'\nstages:\n  a:\n    cmd: a\n<<<<<<< HEAD\n=======\n>>>>>>> x\n"},
        "dvc.lock cannot be read: it has a conflict of a merge",
    ),
    "another lock": ({"dvc.lock": "schema: '3.0'\n"}, "dvc.lock names no stage"),
    "other knobs": ({"params.yaml": "- 1\n"}, "params.yaml cannot be read: it is no mapping"),
    "bad YAML": ({"params.yaml": "a: [\n"}, "params.yaml cannot be read: line 2: while parsing"),
    "other schema": ({EVALUATION: "{}"}, "it has another schema (success_rate: Field required)"),
    "deep": ({EVALUATION: "[" * 100_000}, f"{EVALUATION} cannot be read"),
    "bytes": ({"dvc.lock": "\udcff\udcfe"}, "dvc.lock cannot be read"),
    "foreign lines": ({TASKS: '{"a": 1}\n[]\nnull\n'}, f"{TASKS} has 3 lines that are no result of a task"),
    "cut off": ({"reports/train_policy/metrics.jsonl": '{"step": 1}\n{"st'}, "is cut off in line 2 of 2"),
    "other metrics": (
        {"reports/train_policy/metrics.jsonl": '{"step": 1, "definition_version": 9}\n'},
        "measures groups by definition 9",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_branch_that_cannot_be_read_whole_is_shown_as_what_it_is(name, tmp_path):
    files, problem = BROKEN[name]
    root = make_repository(tmp_path / "git", [Branch("main"), Branch("other", knobs=BETTER, files=files)])
    settings = settings_of(root, "main", "other")
    assert any(problem in found for run in settings[1].runs for found in run.problems), settings[1].runs[0].problems
    for text in (comparison_text(settings), comparison_markdown(settings)):
        assert problem.replace("<", "&lt;") in text or problem in text


def test_a_branch_without_results_is_not_comparable_and_the_rest_is(repository_of_branches):
    _, empty, once = settings_of(repository_of_branches, "main", "empty", "exp/once")
    assert (empty.difference, empty.problem) == (None, "a setting without a run cannot be compared")
    assert "not comparable" in comparison_text([empty])
    assert once.difference is not None


def test_a_commit_of_older_code_is_told_in_one_sentence(tmp_path):
    evaluation = json.loads((HERE / EVALUATION).read_text())
    del evaluation["strict_success_rate"]
    line = json.dumps({"definition_version": 1, "step": 1})
    files = {EVALUATION: json.dumps(evaluation), TASKS: "{}", "reports/train_policy/metrics.jsonl": line}
    root = make_repository(tmp_path / "git", [Branch("main"), Branch("old", knobs=BETTER, files=files)])
    assert read_runs(root, ["old"])[0].problems == [
        f"{EVALUATION} cannot be read: it has another schema (strict_success_rate: Field required)"
    ]


def test_what_a_person_reads_of_hostile_names_and_knobs_is_harmless(repository_of_branches):
    settings = settings_of(repository_of_branches, "main", HOSTILE)
    assert "⟨U+001B⟩[31m|" in differs_in(settings[1])
    text, markdown = comparison_text(settings), comparison_markdown(settings)
    assert "\x1b" not in text + markdown
    assert "<script>" not in markdown
    assert "\\|" in markdown
    assert not (repository_of_branches.parent / "pwned").exists()
    listed = subprocess.run(["git", "ls-files"], cwd=repository_of_branches, capture_output=True, check=True)
    assert listed.stdout == b"", "it needs no checkout"


def test_objects_are_read_in_the_order_of_their_names(repository_of_branches):
    names = ["main:./params.yaml", "main:nothing", "two words", "", "main:./params.yaml"]
    found = list(read_objects(repository_of_branches, names))
    assert [bool(one) for one in found] == [True, False, False, False, True]
    assert found[0] == found[4]
    assert found[0].content.startswith(b"seed: 1\n")


class TestCommand:
    def test_it_writes_the_table_the_object_and_the_page(self, repository_of_branches, tmp_path, monkeypatch):
        files = {name: tmp_path / f"comparison.{name}" for name in ("html", "json", "md")}
        options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
        monkeypatch.chdir(repository_of_branches)
        ran = posttrain("compare", "main", "exp/once", *options)
        assert ran.exit_code == 0, ran.stderr
        assert ran.stdout.splitlines()[2].startswith("main ")
        written = json.loads(files["json"].read_text())
        assert [one["name"] for one in written["settings"]] == ["main", "exp/once"]
        assert written["settings"][1]["difference"]["word"] == "needs more"
        assert written["settings"][1]["knobs"] == {"train_sft.lr": [0.006, 0.005]}
        assert files["md"].read_text().startswith("| setting |")
        assert files["html"].read_text().startswith("<!doctype html>")

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["nowhere"], "git knows no branch, tag or commit of the name 'nowhere'"),
            (["main", "--policy", "best"], "--policy 'best' is none of teacher, base, sft, policy"),
            (["main", "--margin", "0"], "--margin 0 is no number of points"),
            (["main", "--json", "/nowhere/at/all"], "cannot be written"),
        ],
    )
    def test_wrong_arguments_are_refused_in_a_sentence(self, repository_of_branches, arguments, reason, monkeypatch):
        monkeypatch.chdir(repository_of_branches)
        ran = posttrain("compare", *arguments)
        assert (ran.exit_code, reason in ran.stderr, "Traceback" in ran.stderr) == (78, True, False), ran.stderr


def test_the_hours_of_a_setting_are_the_mean_of_its_runs(repository_of_branches, tmp_path, monkeypatch):
    monkeypatch.chdir(repository_of_branches)
    names = ["main", *(f"exp/better-seed{seed}" for seed in (1, 2, 3))]
    file = tmp_path / "found.json"
    ran = posttrain("compare", *names, "--json", str(file))
    main, better = json.loads(file.read_text())["settings"]
    seconds = [cost["whole_s"] for cost in main["runs"][0]["stages"].values()]
    on_gpus = [cost["whole_s"] for name, cost in main["runs"][0]["stages"].items() if name.startswith("train_")]
    assert len(seconds) == len(lock_entries(HERE))
    assert [one["spent"]["hours"] for one in (main, better)] == pytest.approx(2 * [sum(seconds) / 3600])
    assert main["spent"]["gpu_hours"] == pytest.approx(sum(on_gpus) / 3600)
    assert re.search(rf"hours +GPU hours\n[\s\S]*\nmain .* {sum(on_gpus) / 3600:.2f}\n", ran.stdout)


def test_a_curve_is_marked_where_a_run_was_gone_on_with_and_a_stage_says_what_it_took(repository_of_branches):
    settings = settings_of(repository_of_branches, "main", *(f"exp/better-seed{seed}" for seed in (1, 2, 3)))
    charts = {chart["title"]: chart["curves"] for chart in drawn_charts(settings)}
    assert [curve["resumed"] for curve in charts["Reward: mean reward"]] == [[], [40]]
    assert [curve["resumed"] for curve in charts["Fine-tuning: loss: dev demonstrations"]] == [[], []]
    stages = dict(stage_differences(settings))
    assert stages["check_params"][0] == (
        "",
        "12 s",
        "2025-11-23 12:13 UTC, 4cb9056, AMD, AVX-512, 2 threads, peak 900 MiB",
    )
    assert "1 GPU" in stages["train_sft"][1][2]
    assert "At a dashed line" in comparison_page(settings)


def test_damaged_records_and_those_of_other_results_are_none(tmp_path):
    wrong = [
        "{",
        "[]",
        '{"stage": "a", "seconds": 1e999, "peak_mib": 1}',
        '{"stage": "a", "seconds": 1, "peak_mib": 1, "num_gpus": Infinity}',
        "[" * 100_000,
    ]
    lock = re.sub(r"md5: [0-9a-f]([0-9a-f]{31})", r"md5: f\1", (HERE / "dvc.lock").read_text())
    branches = [
        Branch("main"),
        Branch("exp/damaged", files={RECORDS.as_posix(): "\n".join(wrong)}),
        Branch("exp/other", files={"dvc.lock": lock}),
        Branch("exp/without", files={RECORDS.as_posix(): None}),
    ]
    root = make_repository(tmp_path / "git", branches)
    runs = read_runs(root, [branch.name for branch in branches])
    assert [bool(run.costs) for run in runs] == [True, False, False, False]
    assert [bool(setting.spent) for setting in compare_settings(runs)] == [
        True,
        False,
    ]  # of the same knobs and code are three
    assert comparison_page(compare_settings(runs))


def test_data_are_told_by_their_hashes(tmp_path):
    lock = (HERE / "dvc.lock").read_text()
    raw = re.search(r"path: data/raw/demonstrations.parquet\n *hash: md5\n *md5: ([0-9a-f]{32})", lock)[1]
    files = {"dvc.lock": lock.replace(raw, "2" * 32)}
    root = make_repository(tmp_path / "git", [Branch("main"), Branch("exp/rows", knobs=BETTER, files=files)])
    found = dict(data_files(settings_of(root, "main", "exp/rows")))
    assert found["data/raw/demonstrations.parquet"] == [raw[:7], "2222222"]
    assert found["data/raw/tasks.parquet"][0] == found["data/raw/tasks.parquet"][1]
