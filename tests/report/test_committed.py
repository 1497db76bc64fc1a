"""Compares figures with the committed ones: by chance or changed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from posttrain.provenance.costs import processor_kind
from posttrain.report.committed import Comparison, compare_with_committed
from tests.report.example import arm_record, evaluation, success, task_record

NUM = 400  # tasks, of which 300 are won in what is committed


def commit(folder: Path, path: str = "--all") -> None:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "--quiet"], ["add", path], ["commit", "--quiet", "--message", "figures"]):
        subprocess.run([*git, *command], cwd=folder, check=True)


def write_policy(folder: Path, num_won: int, *, split: str = "t") -> None:
    found = evaluation(num_won / NUM) | success(1.0, NUM, strict=num_won / NUM)
    (folder / "evaluate/policy.json").write_text(json.dumps(found))
    plays = [
        task_record(f"{split}{index}", success=True, strict_success=index < num_won, failure=None)
        for index in range(NUM)
    ]
    (folder / "evaluate/policy.tasks.jsonl").write_text("".join(json.dumps(play) + "\n" for play in plays))


def committed(make_reports, **arms: Any) -> Path:
    folder: Path = make_reports({"experiments/seeds.json": {"arms": arms}})
    (folder.parent / "params.yaml").write_text("seed: 1\nworld: {seed: 2001}\n")
    write_policy(folder, 300)
    commit(folder.parent)
    return folder


def arm(rate: float, world_seed: int = 2001) -> dict[str, Any]:
    figures = success(1.0, NUM, strict=rate) | {"pass_hat_4": rate}
    return arm_record({"policy": figures}, {"seed": 2, "world.seed": world_seed})


def policy_of(folder: Path) -> Comparison:
    return compare_with_committed(folder)[-1]


@pytest.mark.parametrize(
    ("num_won", "verdict"),
    [(300, "as committed"), (297, "no more than"), (303, "no more than"), (288, "CHANGED"), (312, "CHANGED")],
)
def test_where_the_spread_over_seeds_is_unknown_only_tasks_are_chance(make_reports, num_won, verdict):
    # 3 of 400 tasks differ: 0.75 points, with a standard error of 0.43; 12: 3 points, and 0.85
    folder = committed(make_reports, other_world=arm(0.9, world_seed=2002))
    write_policy(folder, num_won)
    one = policy_of(folder)
    assert (verdict in one.sentence, one.is_wrong) == (True, verdict == "CHANGED"), one.sentence


@pytest.mark.parametrize(("num_won", "verdict"), [(288, "no more than"), (200, "CHANGED")])
def test_a_figure_may_be_as_far_as_two_seeds_are(make_reports, num_won, verdict):
    # seeds at 72, 75, 78 %: a standard deviation of 3 points, so 4.30 √2 3 = 18.3 points
    folder = committed(make_reports, seed_1=arm(0.72), seed_2=arm(0.75), seed_3=arm(0.78), other=arm(0.1, 2002))
    write_policy(folder, num_won)
    said = policy_of(folder).sentence
    assert (verdict in said, "the choice of tasks and seeds" in said) == (True, True)


def test_the_policies_are_a_family_and_one_alone_is_not(make_reports):
    folder = committed(make_reports)
    for policy in ("teacher", "base", "sft"):
        shutil.copy(folder / "evaluate/policy.tasks.jsonl", folder / f"evaluate/{policy}.tasks.jsonl")
    commit(folder.parent)
    write_policy(folder, 294)  # 1.5 points: p is 0.014 alone, and 0.056 among four
    assert not policy_of(folder).is_wrong
    [alone] = compare_with_committed(folder, ["policy"])
    assert alone.sentence == (
        "policy: strict success 73.5 %, and 75.0 % is committed: -1.5 (-2.7 … -0.3) points, more than the choice of "
        "tasks does. It has CHANGED."
    )


def test_plays_of_other_tasks_are_no_chance_and_what_is_not_committed_is_not_wrong(make_reports):
    folder = committed(make_reports)
    write_policy(folder, 290, split="of_another_world_")
    one = policy_of(folder)
    assert ("they cannot be compared" in one.sentence, one.is_wrong) == (True, True)
    subprocess.run(["git", "rm", "-q", "--cached", "reports/evaluate/policy.json"], cwd=folder.parent, check=True)
    commit(folder.parent, "reports/evaluate/sft.json")
    assert not policy_of(folder).is_wrong


@pytest.mark.parametrize(
    ("vendor", "flags", "kind"),
    [
        ("AuthenticAMD", "fpu avx avx2 fma", "AMD, AVX2"),
        ("AuthenticAMD", "avx2 avx512f avx512_bf16", "AMD, AVX-512 with bfloat16"),
        ("GenuineIntel", "avx2 avx512f avx512_vnni", "Intel, AVX-512"),
        ("HygonGenuine", "avx2", "HygonGenuine, AVX2"),
    ],
)
def test_a_kind_of_processor_is_its_maker_and_its_instructions(tmp_path, vendor, flags, kind):
    cpus = tmp_path / "cpuinfo"
    cpus.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: X\nflags\t\t: {flags}\n\n" * 2)
    assert processor_kind(cpus) == kind


def test_a_machine_without_a_list_of_processors_is_its_architecture(tmp_path):
    assert "," not in processor_kind(tmp_path / "absent")
