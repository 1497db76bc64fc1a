"""Inputs that `train_policy` reads under some choices only: preference pairs, the reward models,
edits, and what an earlier run left.

`dvc.yaml` cannot make a dep depend on a knob. So the stage `select_policy_inputs` hands on what the
chosen algorithm reads and nothing else: under the default (online, without a reward model) an edit
of the pairs or of the reward model changes nothing in its output, and DVC skips `train_policy`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.data.edits import EDITS

FOLDER = Path("data/policy_inputs")
PAIRS = FOLDER / "pairs.parquet"
REWARD_MODEL = FOLDER / "reward_model"
PROCESS_MODEL, START, REPLAYED = FOLDER / "process_model", FOLDER / "start", FOLDER / "replayed.parquet"
EARLIER_RUN = Path("data/earlier_run")
EARLIER_POLICY, EARLIER_EPISODES = EARLIER_RUN / "policy", EARLIER_RUN / "episodes.parquet"
# of train_policy, that the stage has
KNOBS = ("begin_with", "algorithm", "reward_model_weight", "start", "replay_buffer")
VERDICTS = FOLDER / "verdicts.parquet"
_PAIRS, _VERDICTS = Path("data/preferences/pairs.parquet"), Path("data/preferences/verdicts.parquet")
_REWARD_MODEL = Path("data/models/reward")
_PROCESS_MODEL = Path("data/models/process")


def selected(knobs: Mapping[str, Any]) -> dict[Path, Path]:
    """What the chosen algorithm reads of the deps of `select_policy_inputs`, and where it goes, by
    the knobs that this stage has."""
    phases = _phases(knobs)
    is_read = {
        (_PAIRS, PAIRS): any(one["type"] in ("dpo", "kto", "orpo") for one in phases),
        (_VERDICTS, VERDICTS): any(one["type"] == "kto" for one in phases),
        (_REWARD_MODEL, REWARD_MODEL): knobs["train_policy.reward_model_weight"] > 0,
        (_PROCESS_MODEL, PROCESS_MODEL): _reads_process_model(phases),
        (EARLIER_POLICY, START): knobs["train_policy.start"] == "earlier_run",
        (EARLIER_EPISODES, REPLAYED): knobs["train_policy.replay_buffer"] is not None and EARLIER_EPISODES.exists(),
    }
    return {source: target for (source, target), is_one in is_read.items() if is_one}


def reads_edits(knobs: Mapping[str, Any]) -> bool:
    return any(one.get("join", {}).get("type") == "edits" for one in _phases(knobs))


def idle_deps(knobs: Mapping[str, Any]) -> frozenset[str]:
    """Deps of `select_policy_inputs` that the chosen algorithm does not read. `posttrain plan` asks
    as well, by the stage's `meta`."""
    read = selected(knobs)
    idle = {str(source) for source in (_PAIRS, _VERDICTS, _REWARD_MODEL, _PROCESS_MODEL) if source not in read}
    if not {EARLIER_POLICY, EARLIER_EPISODES} & read.keys():
        idle.add(str(EARLIER_RUN))
    return frozenset(idle if reads_edits(knobs) else {*idle, str(EDITS.parent)})


def deps_of_no_process_model(knobs: Mapping[str, Any]) -> frozenset[str]:
    """The same for `train_process_model`, which trains none where no credit reads it."""
    is_read = _reads_process_model(_phases(knobs))
    deps = ("data/models/sft", "data/raw/tasks.parquet", "data/imported_preferences")
    return frozenset() if is_read else frozenset(deps)


def no_feedback(knobs: Mapping[str, Any]) -> frozenset[str]:
    """The same for `import_preferences`, where its source names no files."""
    source = knobs["sample_preferences.source"]
    return frozenset(["data/feedback"]) if source["type"] == "sampled" else frozenset()


def _reads_process_model(phases: Sequence[Mapping[str, Any]]) -> bool:
    return any(one.get("credit", {}).get("type") == "process_model" for one in phases)


def _phases(knobs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for name in ("begin_with", "algorithm") if (one := knobs[f"train_policy.{name}"])]
