"""`posttrain train`: fine-tune a model, or train it further online or from pairs, without the graph
and its records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.cli.command import Commands, add_command, add_world_arguments, load_asked_world
from posttrain.runtime.exits import ConfigurationError

FURTHER = ("online", "rejection_sampling", "dpo", "kto", "orpo")


def add_train(commands: Commands) -> None:
    command = add_command(commands, "train", train)
    command.add_argument("kind", choices=("sft", *FURTHER), help="sft makes its demonstrations first")
    command.add_argument("model", nargs="?", default="", help="a folder or a name of the hub; sft: from scratch")
    add_world_arguments(command)
    command.add_argument("--to", type=Path, help="its folder; out/sft or out/policy by default")


def train(
    kind: str, model: str, world: str, quick: bool, params: Path | None, knobs: Sequence[str], to: Path | None
) -> None:
    """Train a model in a world: by supervised fine-tuning, online (GRPO), by rejection sampling, or
    by DPO, KTO or ORPO."""
    if kind != "sft" and not model:
        raise ConfigurationError(f"`posttrain train {kind}` trains a model further: name its folder, such as out/sft")
    asked = load_asked_world(world, quick, params, [*_algorithm(kind), *knobs])
    from posttrain import api

    if kind == "sft":
        folder = api.sft(api.demonstrate(asked), asked, model=model, to=to or "out/sft")
    else:
        folder = api.train_policy(model, asked, to=to or "out/policy")
    print(f"{folder}: `posttrain evaluate {folder} --world {asked.params.world.type}` says how well it does")


def _algorithm(kind: str) -> list[str]:
    """The settings that choose the algorithm; online is that of `params.yaml`."""
    from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams
    from posttrain.train.rejection_sampling.params import RejectionSamplingParams

    sections: dict[str, Any] = {
        "rejection_sampling": RejectionSamplingParams,
        "dpo": DpoParams,
        "kto": KtoParams,
        "orpo": OrpoParams,
    }
    if kind not in sections:
        return []
    example = sections[kind].example.removeprefix("{")
    chosen = f"train_policy.algorithm={{type: {kind}, {example}"
    return [chosen, "train_policy.begin_with=null", "train_policy.reward_model_weight=0.0"]
