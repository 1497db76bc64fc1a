"""Hands `train_policy` the preference pairs, the reward model or the verified edits where its
algorithm reads them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.data.edits import EDITS, FOR_GROUPS, read_edits, write_edits
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.train.policy_inputs import FOLDER, SOURCES, idle_deps


def select_policy_inputs(run: StageRun) -> None:
    policy, algorithm = run.params.train_policy, run.params.train_policy.algorithm
    has_edits = algorithm.type == "online" and algorithm.join.type == "edits"
    write_edits(read_edits() if has_edits else [], FOR_GROUPS)
    idle = idle_deps(
        {
            "train_policy.algorithm.type": algorithm.type,
            "train_policy.reward_model_weight": policy.reward_model_weight,
        }
    )
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    selected = {source: target for source, target in SOURCES.items() if str(source) not in idle}
    for source, target in selected.items():
        _copy(source, target)
    # the folder is never empty: DVC refuses to track an output without a file
    names = "".join(f"{target.name}\n" for target in selected.values())
    (FOLDER / "selected.txt").write_text(names or "nothing\n", encoding="utf-8")


def idle_inputs(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Deps that the chosen algorithm does not read, for `posttrain plan`."""
    algorithm = knobs["train_policy.algorithm"]
    idle = idle_deps({**knobs, "train_policy.algorithm.type": algorithm["type"]})
    return idle if algorithm.get("join", {}).get("type") == "edits" else idle | {str(EDITS.parent)}


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    run_stage(select_policy_inputs)
