"""Methods of learning online by their names, each as the line of `params.yaml` that is it."""

from pydantic import TypeAdapter

from posttrain.runtime.plain_yaml import load_yaml
from posttrain.train.online.params import CreditParams

CREDITS = {
    "grpo": "{type: episode, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, "
    "drop: none, equal_groups: {type: by_baseline}}",
    "dr_grpo": "{type: episode, baseline: {type: group_mean}, scale: {type: none}, "
    "drop: none, equal_groups: {type: by_baseline}}",
    "rloo": "{type: episode, baseline: {type: leave_one_out}, scale: {type: none}, "
    "drop: none, equal_groups: {type: by_baseline}}",
    "ngrpo": "{type: episode, baseline: {type: virtual_best, best: 1.0}, scale: {type: group_std, floor: 1.0e-6}, "
    "drop: all_good, equal_groups: {type: by_baseline}}",
    "gdpo": "{type: scores, floor: 1.0e-4}",
    "rl_zvp": "{type: episode, baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, "
    "drop: none, equal_groups: {type: by_entropy, alpha: 0.1}}",
    "batch_baseline": "{type: episode, baseline: {type: batch_mean}, scale: {type: batch_std, floor: 1.0e-4}, "
    "drop: none, equal_groups: {type: by_baseline}}",
}


def credit_of(name: str) -> CreditParams:
    """Credit parameters of a method, by its name."""
    found: CreditParams = TypeAdapter(CreditParams).validate_python(load_yaml(CREDITS[name], name))
    return found
