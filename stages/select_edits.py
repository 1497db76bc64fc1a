"""Hands the verified edits of `data/edits` to SFT, to the preference pairs and to the groups of
online training, each where its knob asks for them.

An edit that nobody asks for retrains nothing.
"""

from posttrain.data.edits import FOR_GROUPS, FOR_PAIRS, FOR_SFT, read_edits, write_edits
from posttrain.provenance.runner import StageRun, run_stage


def select_edits(run: StageRun) -> None:
    params, algorithm = run.params, run.params.train_policy.algorithm
    is_asked = {
        FOR_SFT: params.train_sft.edit_copies > 0,
        FOR_PAIRS: params.sample_preferences.edit_pairs,
        FOR_GROUPS: algorithm.type == "online" and algorithm.join.type == "edits",
    }
    for path, is_wanted in is_asked.items():
        write_edits(read_edits() if is_wanted else [], path)


if __name__ == "__main__":
    run_stage(select_edits)
