"""Hands the verified edits of `data/edits` to SFT and to the preference pairs, each where its knob
asks for them: an edit that nobody asks for retrains nothing."""

from posttrain.data.edits import FOR_PAIRS, FOR_SFT, read_edits, write_edits
from posttrain.provenance.runner import StageRun, run_stage


def select_edits(run: StageRun) -> None:
    params = run.params
    is_asked = {FOR_SFT: params.train_sft.edit_copies > 0, FOR_PAIRS: params.sample_preferences.edit_pairs}
    for path, is_wanted in is_asked.items():
        write_edits(read_edits() if is_wanted else [], path)


if __name__ == "__main__":
    run_stage(select_edits)
