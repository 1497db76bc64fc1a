"""Hands `train_policy` the preference pairs, a reward model or the verified edits where its
algorithm reads them."""

import shutil
from pathlib import Path

from posttrain.data.edits import EDITS, FOR_GROUPS, read_edits, write_edits
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.train.policy_inputs import FOLDER, SOURCES, idle_deps


def select_policy_inputs(run: StageRun) -> None:
    knobs = run.params.train_policy
    idle = idle_deps(
        {
            "train_policy.algorithm": knobs.algorithm.model_dump(),
            "train_policy.reward_model_weight": knobs.reward_model_weight,
        }
    )
    write_edits([] if str(EDITS.parent) in idle else read_edits(), FOR_GROUPS)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    selected = {source: target for source, target in SOURCES.items() if str(source) not in idle}
    for source, target in selected.items():
        _copy(source, target)
    # the folder is never empty: DVC refuses to track an output without a file
    names = "".join(f"{target.name}\n" for target in selected.values())
    (FOLDER / "selected.txt").write_text(names or "nothing\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    run_stage(select_policy_inputs)
