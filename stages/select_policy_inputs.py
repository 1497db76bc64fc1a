"""Hands `train_policy` the preference pairs, a reward model, the verified edits and what an earlier
run left where its knobs ask for them."""

import shutil
from pathlib import Path

from posttrain.data.edits import FOR_GROUPS, read_edits, write_edits
from posttrain.data.files import NOT_ASKED
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import DataError
from posttrain.train.policy_inputs import FOLDER, KNOBS, reads_edits, selected


def select_policy_inputs(run: StageRun) -> None:
    given = run.params.train_policy.model_dump()
    knobs = {f"train_policy.{name}": given[name] for name in KNOBS}
    write_edits(read_edits() if reads_edits(knobs) else [], FOR_GROUPS)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    chosen = selected(knobs)
    for source, target in chosen.items():
        _copy(source, target)
    # the folder is never empty: DVC refuses to track an output without a file
    names = "".join(f"{target.name}\n" for target in chosen.values())
    (FOLDER / "selected.txt").write_text(names or "nothing\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    if (source / NOT_ASKED).exists():
        why = (source / NOT_ASKED).read_text(encoding="utf-8").strip()
        raise DataError(f"train_policy wants {source}, and none was trained: {why}")
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copyfile(source, target)
    else:
        raise DataError(
            f"train_policy.start is earlier_run and {source} is not there: put a policy's folder there, or start from "
            "sft"
        )


if __name__ == "__main__":
    run_stage(select_policy_inputs)
