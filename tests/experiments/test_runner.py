"""The runner on this machine: one SFT model a seed first, a run that fails costs no other its
figures, and what is on record is not run again."""

import subprocess
import threading
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from benchmarks.ablation import OWN, SHARED, run_ablation, shared_name
from benchmarks.arms import SMALL, apply_overrides
from benchmarks.arms import Arm as Clone
from posttrain.experiments.arms import Arm
from posttrain.experiments.plan import Variant
from posttrain.experiments.record import ArmRecord, missing, wanted_params
from posttrain.runtime.exits import DataError
from tests.experiments.studies import PARAMS, digits, run_of


def arm_of(method: str, seed: int, *, regime: str = "hard", knobs: Mapping[str, Any] = MappingProxyType({})) -> Arm:
    changed = {"train_policy.lr": 0.1, "seed": seed, **knobs}
    return Arm(regime, method, seed, Variant(f"{regime}-{method}-seed{seed}", changed))


def shared(seed: int) -> str:
    return shared_name(arm_of("grpo", seed))


ARMS = [arm_of(method, seed) for seed in (1, 2) for method in ("grpo", "rloo")]


class Player:
    """Stands for `dvc repro` in a clone: remembers what it was asked, and fails where it is told
    to."""

    def __init__(self, *, failing: tuple[str, ...] = ()) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.starts: dict[str, Path | None] = {}
        self._failing = failing
        self._lock = threading.Lock()

    def __call__(self, clone: Clone, folder: Path, start: Path | None) -> Path:
        if clone.targets == OWN:
            assert (start / "dvc.lock").read_text() == f"shared by {clone.overrides['seed']}"
        with self._lock:
            self.asked.append((clone.name, clone.targets))
            self.starts[clone.name] = start
        if clone.name in self._failing:
            raise subprocess.CalledProcessError(65, "dvc repro")
        copy = folder / clone.name
        (copy / "reports").mkdir(parents=True)
        (copy / "dvc.lock").write_text(f"shared by {clone.overrides['seed']}")
        return copy


def read(copy: Path, arm: Arm) -> ArmRecord:
    assert copy.name == arm.variant.name
    return run_of(arm.method, arm.seed, digits(20), params=wanted_params(arm, PARAMS))


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_the_models_of_a_seed_are_made_once_and_before_its_methods(tmp_path, jobs):
    player = Player()
    progress = run_ablation(ARMS, {}, jobs=jobs, done=tmp_path, play=player, read=read)
    assert (sorted(progress.records), progress.failed) == (sorted(arm.variant.name for arm in ARMS), {})
    names = [name for name, _ in player.asked]
    assert len(names) == len(set(names)) == 6
    for seed in (1, 2):
        own = [names.index(arm.variant.name) for arm in ARMS if arm.seed == seed]
        assert names.index(shared(seed)) < min(own)
    assert {targets for name, targets in player.asked if "shared" in name} == {SHARED}
    assert {targets for name, targets in player.asked if "shared" not in name} == {OWN}


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path):
    progress = run_ablation(ARMS, {}, jobs=2, done=tmp_path, play=Player(failing=("hard-rloo-seed1",)), read=read)
    assert list(progress.failed) == ["hard-rloo-seed1"]
    assert "exit status 65" in progress.failed["hard-rloo-seed1"]
    assert len(progress.records) == 3


def test_where_the_model_of_a_seed_fails_its_methods_are_not_begun_and_other_seeds_are(tmp_path):
    player = Player(failing=(shared(1),))
    progress = run_ablation(ARMS, {}, jobs=1, done=tmp_path, play=player, read=read)
    assert sorted(progress.failed) == ["hard-grpo-seed1", "hard-rloo-seed1"]
    assert sorted(progress.records) == ["hard-grpo-seed2", "hard-rloo-seed2"]
    assert "hard-grpo-seed1" not in dict(player.asked)


def test_a_tree_that_cannot_be_read_is_a_run_that_failed(tmp_path):
    def unreadable(copy: Path, arm: Arm) -> ArmRecord:
        if arm.method == "rloo":
            raise DataError("no held-out task")
        return read(copy, arm)

    progress = run_ablation(ARMS, {}, jobs=1, done=tmp_path, play=Player(), read=unreadable)
    assert sorted(progress.failed) == ["hard-rloo-seed1", "hard-rloo-seed2"]
    assert len(progress.records) == 2


def test_what_is_on_record_is_not_run_again_and_stays(tmp_path):
    kept: list[dict[str, ArmRecord]] = []
    first = run_ablation(
        ARMS[:2], {}, jobs=1, done=tmp_path, play=Player(), read=read, keep=lambda records: kept.append(dict(records))
    )
    assert [len(records) for records in kept] == [1, 2]  # after each: who is killed loses one
    todo = missing(ARMS, kept[-1], params=PARAMS, code="c")
    assert [arm.variant.name for arm in todo] == ["hard-grpo-seed2", "hard-rloo-seed2"]
    player = Player()
    second = run_ablation(todo, kept[-1], jobs=1, done=tmp_path, play=player, read=read)
    assert [name for name, _ in player.asked] == [shared(2), "hard-grpo-seed2", "hard-rloo-seed2"]
    assert second.records.items() > first.records.items()
    assert missing(ARMS, second.records, params=PARAMS, code="c") == []
    assert run_ablation([], second.records, jobs=2, done=tmp_path, play=Player(), read=read).records == second.records


def test_a_method_that_is_asked_for_later_begins_from_the_models_that_were_kept(tmp_path):
    first = run_ablation([arm_of("grpo", 1)], {}, jobs=1, done=tmp_path, play=Player(), read=read)
    player = Player()
    run_ablation([arm_of("rloo", 1), arm_of("rloo", 2)], first.records, jobs=1, done=tmp_path, play=player, read=read)
    assert player.starts[shared(1)] == tmp_path / shared(1)
    assert player.starts[shared(2)] is None


def test_regimes_that_differ_in_their_budget_begin_from_one_model():
    short, long = (
        arm_of(
            "grpo", 1, regime=regime, knobs={"train_sft.max_steps": 200, "train_policy.algorithm": {"max_steps": steps}}
        )
        for regime, steps in (("hard", 60), ("hard_long", 120))
    )
    assert shared_name(short) == shared_name(long)
    others = [arm_of("grpo", 2), arm_of("grpo", 1, knobs={"train_sft.max_steps": 150}), arm_of("grpo", 1)]
    assert len({shared_name(one) for one in [short, *others]}) == 4


def test_a_key_below_another_changes_a_copys_knobs_and_not_those_of_all_copies(tmp_path):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"world": {}}))
    before = deepcopy(SMALL["world"])
    apply_overrides(tmp_path / "params.yaml", {"world": SMALL["world"], "world.num_rl_tasks": 128})
    assert yaml.safe_load((tmp_path / "params.yaml").read_text())["world"] == before | {"num_rl_tasks": 128}
    assert SMALL["world"] == before
