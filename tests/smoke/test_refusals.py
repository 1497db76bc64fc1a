"""The real `dvc repro` refuses wrong knobs and names in its first stage, with value, reason and
remedy, and runs no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import apply_overrides
from posttrain.worlds.catalog import WORLDS

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("refusals")]

SCORE = (
    "from ours.words import count\nfrom posttrain.types import Score\n\ndef brevity(trajectory, "
    "task):\n    return Score(1.0)\n"
)


@pytest.fixture(scope="module")
def copy(make_copy: Callable[..., Path]) -> Path:
    """With a score of one's own, which no stage declares."""
    root = make_copy()
    (root / "ours").mkdir()
    (root / "ours/scores.py").write_text(SCORE)
    (root / "ours/words.py").write_text("def count(text): return len(text.split())\n")
    return root


@pytest.fixture
def refused(copy: Path, dvc: Callable[..., Any]):
    """`refused(overrides, edit)` gives what `dvc repro` says, whose first stage is all that ran;
    the files are put back."""
    files = [copy / "params.yaml", copy / "dvc.yaml"]
    good = [file.read_text() for file in files]

    def run(overrides: dict[str, Any], edit: Callable[[str], str] = str) -> str:
        apply_overrides(files[0], overrides)
        files[0].write_text(edit(files[0].read_text()))
        result = dvc(copy, "repro")
        assert result.returncode != 0
        assert [line for line in result.stdout.splitlines() if line.startswith("Running stage ")] == [
            "Running stage 'check_params':"
        ]
        assert "exited with 78" in result.stderr
        assert "Traceback" not in result.stderr
        assert not list(copy.glob("data/*/*.parquet"))
        return str(result.stderr)

    yield run
    for file, text in zip(files, good, strict=True):
        file.write_text(text)


def declare(copy: Path, stages: tuple[str, ...]) -> None:
    """`ours` among the deps of these, as a person adds it."""
    text = (copy / "dvc.yaml").read_text()
    for stage in stages:
        before, name, after = text.partition(f"stages/{stage}.py\n")
        indent = before.rpartition("\n")[2]
        text = f"{before}{name}{indent}ours\n{after}"
    (copy / "dvc.yaml").write_text(text)


def test_every_wrong_name_and_number_is_refused_at_once(refused: Callable[..., str]):
    overrides = {
        "world.type": "stockz",
        "model.adapter": {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_prj"]},
        "reward.weights.format": 0.5,
        "train_sft.eval_every_steps": 5000,
        "train_sft.optimizer": "moun",
        "train_policy.algorithm": {
            "type": "dpo",
            "max_steps": 2,
            "tasks_per_step": 2,
            "group_size": 4,
            "temperature": 1.0,
        },
        "train_reward_model.max_steps": 80_000_000,
        "evaluate.teacher": {"type": "exprt"},
    }
    said = refused(overrides, lambda text: text.replace("max_turns:", "max_turnz:"))
    for problem in (
        f"world.type = 'stockz': there is no such type; there are {', '.join(WORLDS)}, module:function. "
        "Did you mean 'stocks'?",
        "model: adapter.target_modules has q_prj",
        "reward: the weights sum to 1.47, not 1",
        "train_sft.optimizer = 'moun': Input should be 'muon', 'adamw' or 'adamw_8bit'. Did you mean 'muon'?",
        "train_policy.algorithm: missing batch_size, beta, loss",
        "A section of type dpo is like {max_steps: 80, batch_size: 32, beta: 0.5, loss: sigmoid}",
        "train_policy.algorithm: a section of type dpo has no tasks_per_step, group_size, temperature",
        "train_reward_model.max_steps = 80000000: Input should be less than or equal to 10000000",
        "evaluate.teacher.type = 'exprt': there is no such type; there are expert, openai. Did you mean 'expert'?",
        "Did you mean 'max_turns'?",
    ):
        assert problem in said


def test_a_name_that_leads_somewhere_passes_and_its_code_is_looked_at_again_when_edited(
    copy: Path, refused: Callable[..., str], dvc: Callable[..., Any]
):
    declare(copy, ("check_params", "sample_preferences", "train_process_model", "train_policy", "evaluate"))
    apply_overrides(copy / "params.yaml", {"reward.extra": [{"name": "ours.scores:brevity", "weight": 0.001}]})
    passed = dvc(copy, "repro", "check_params")
    assert passed.returncode == 0, passed.stderr
    assert "didn't change, skipping" in dvc(copy, "repro", "check_params").stdout
    (copy / "ours/scores.py").write_text(SCORE.replace("brevity", "shortness"))
    assert "'brevity' is not there" in refused({})
