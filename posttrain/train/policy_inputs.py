"""Inputs that `train_policy` reads under some choices only: preference pairs, the reward models,
edits.

`dvc.yaml` cannot make a dep depend on a knob. So the stage `select_policy_inputs` hands on what the
chosen algorithm reads and nothing else: under the default (online, without a reward model) an edit
of the pairs or of the reward model changes nothing in its output, and DVC skips `train_policy`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.data.edits import EDITS

FOLDER = Path("data/policy_inputs")
PAIRS = FOLDER / "pairs.parquet"
REWARD_MODEL = FOLDER / "reward_model"
PROCESS_MODEL = FOLDER / "process_model"
SOURCES = {
    Path("data/preferences/pairs.parquet"): PAIRS,
    Path("data/models/reward"): REWARD_MODEL,
    Path("data/models/process"): PROCESS_MODEL,
}


def idle_deps(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Deps of `select_policy_inputs` and `train_process_model` that the chosen algorithm does not
    read, by `train_policy.algorithm` and `train_policy.reward_model_weight`. `posttrain plan`
    asks as well, by the stage's `meta`."""
    algorithm = knobs["train_policy.algorithm"]
    phases = algorithm.get("phases", [algorithm])
    is_read = {
        Path("data/preferences/pairs.parquet"): any(one["type"] in ("dpo", "kto", "orpo") for one in phases),
        Path("data/models/reward"): knobs.get("train_policy.reward_model_weight", 0) > 0,
        EDITS.parent: any(one.get("join", {}).get("type") == "edits" for one in phases),
    }
    by_process = any(one.get("credit", {}).get("type") == "process_model" for one in phases)
    is_read |= dict.fromkeys(
        map(Path, ("data/models/process", "data/models/sft", "data/raw/tasks.parquet")), by_process
    )
    return frozenset(str(source) for source, is_one in is_read.items() if not is_one)
