"""Choice of the trainer by `POSTTRAIN_TRAINER`, a fact about the machine: `local` (the default, in
this process) or `tinker`; and the knobs that a Tinker server cannot follow."""

import os
from collections.abc import Iterator

from posttrain.models.params import LoraAdapter, PretrainedModel, ScratchModel
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.credit import ByEntropy, EpisodeCredit
from posttrain.train.policy_params import TrainPolicyParams
from posttrain.train.replay import EditReplay, ExpertReplay

ATTENTION = frozenset(["q_proj", "k_proj", "v_proj", "o_proj"])
MLP = frozenset(["gate_proj", "up_proj", "down_proj"])


def is_on_server() -> bool:
    """True where `POSTTRAIN_TRAINER` has a Tinker server train. Raises ConfigurationError for a
    trainer that there is not."""
    name = os.environ.get("POSTTRAIN_TRAINER", "local")
    if name not in ("local", "tinker"):
        raise ConfigurationError(f"POSTTRAIN_TRAINER is {name!r}; there are local and tinker")
    return name == "tinker"


def refuse_for_server(knobs: TrainPolicyParams, model: ScratchModel | PretrainedModel) -> None:
    """Raise ConfigurationError with all that these knobs ask of a Tinker server in vain."""
    if found := list(server_refusals(knobs, model)):
        raise ConfigurationError(f"POSTTRAIN_TRAINER is tinker, whose server cannot do this: {'; '.join(found)}")


def server_refusals(knobs: TrainPolicyParams, model: ScratchModel | PretrainedModel) -> Iterator[str]:
    """What a Tinker server cannot do of these knobs, each with what to set instead."""
    adapter = model.adapter
    if list(knobs.phases) != ["algorithm"] or not knobs.online:
        yield "begin_with is set or algorithm.type not online (set null and online)"
    if knobs.optimizer != "adamw":
        yield f"optimizer is {knobs.optimizer} (set adamw)"
    if not isinstance(adapter, LoraAdapter) or adapter.quantization != "none":
        yield "model.adapter is no LoRA or quantised (set type lora, quantization none)"
    elif {one.rpartition(".")[2] for one in adapter.target_modules} not in (ATTENTION, MLP, ATTENTION | MLP):
        yield (
            f"model.adapter.target_modules is {', '.join(adapter.target_modules)} (name all of "
            f"{', '.join(sorted(ATTENTION))}, all of {', '.join(sorted(MLP))}, or both)"
        )
    for one in knobs.online.values():
        credit, objective = one.credit, one.objective.type
        is_by_entropy = isinstance(credit, EpisodeCredit) and isinstance(credit.equal_groups, ByEntropy)
        asked = {
            f"temperature is {one.temperature:g}, and it learns at 1 (set 1.0)": one.temperature != 1,
            f"objective is {objective} (take policy_gradient or clip)": objective not in ("policy_gradient", "clip"),
            f"kl is {one.kl.type} or measured (set {{type: none, is_measured: false}})": one.measures_kl,
            f"entropy_bonus is {one.entropy_bonus:g} (set 0.0)": one.entropy_bonus > 0,
            f"join is {one.join.type} (set none)": isinstance(one.join, ExpertReplay | EditReplay),
            f"credit is {credit.type}, by a critic or values (set episode)": credit.type
            in ("gae", "process_model", "branch_values"),
            "credit.equal_groups is by_entropy (take by_baseline)": is_by_entropy,
            f"dev.keep is {one.dev.keep} (set last)": one.dev.keep != "last",
            f"max_staleness is {one.max_staleness} (set 0 or 1)": one.max_staleness > 1,
        }
        yield from (f"algorithm.{what}" for what, is_asked in asked.items() if is_asked)
