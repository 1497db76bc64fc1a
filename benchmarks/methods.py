"""Methods of learning online by their names, each as the line of `params.yaml` that is it."""

import yaml

from posttrain.rl.params import EpisodeCredit

CREDITS = {
    "grpo": "{baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none}",
    "dr_grpo": "{baseline: {type: group_mean}, scale: {type: none}, drop: none}",
    "rloo": "{baseline: {type: leave_one_out}, scale: {type: none}, drop: none}",
    "ngrpo": "{baseline: {type: virtual_best, best: 1.0}, scale: {type: group_std, floor: 1.0e-6}, drop: all_good}",
    "batch_baseline": "{baseline: {type: batch_mean}, scale: {type: batch_std, floor: 1.0e-4}, drop: none}",
    "task_baseline": "{baseline: {type: task_mean, decay: 0.5}, scale: {type: none}, drop: none}",
    "wdb_grpo": "{baseline: {type: weighted, decay: 0.5, batch_count: 2.0}, scale: {type: group_std, floor: 1.0e-4}, "
    "drop: none}",
}


def credit_of(name: str) -> EpisodeCredit:
    """Of a method's name."""
    values = {"type": "episode", "equal_groups": {"type": "by_baseline"}}
    return EpisodeCredit.model_validate(values | yaml.safe_load(CREDITS[name]))
