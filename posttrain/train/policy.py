"""Trains a policy by the algorithm that the knobs name, by two one after the other, or by none."""

from collections.abc import Callable, Sequence
from typing import Any

from posttrain.models.codec import ChatCodec
from posttrain.train.on_pairs import learn_from_pairs
from posttrain.train.online.learning import PolicyInputs, learn_by_rejection_sampling, learn_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.policy_params import Phase, TrainPolicyParams
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.resumable_trainer import TrainingRun, open_part
from posttrain.types import ScoredEpisode


def learn_policy(
    model: Any, codec: ChatCodec, inputs: PolicyInputs, *, params: TrainPolicyParams, seed: int, run: TrainingRun
) -> list[ScoredEpisode]:
    """Train `model` in place. Returns those of its own episodes that rejection sampling learnt
    from."""
    how: dict[str, Any] = {"params": params, "seed": seed}
    learnt: list[ScoredEpisode] = []

    def learn(algorithm: Phase, run: TrainingRun) -> None:
        match algorithm:
            case OnlineParams():
                learn_online(model, codec, inputs, algorithm, run=run, **how)
            case RejectionSamplingParams():
                learnt.extend(learn_by_rejection_sampling(model, codec, inputs, algorithm, run=run, **how))
            case _:
                learn_from_pairs(model, codec, inputs.pairs(), algorithm, inputs.verdicts(), run=run, **how)

    match list(params.phases.values()):
        case [only]:
            learn(only, run)
        case phases:
            in_phases(phases, learn, run)
    return learnt


def in_phases(phases: Sequence[Phase], learn: Callable[[Phase, TrainingRun], None], run: TrainingRun) -> None:
    """Each phase has its checkpoints in a folder of its own; one that is over is resumed like any
    other, which loads its weights."""
    num_steps = [one.num_steps if isinstance(one, RejectionSamplingParams) else one.max_steps for one in phases]
    for number, phase in enumerate(phases, start=1):
        before = sum(num_steps[: number - 1])
        with open_part(run, f"phase-{number}", first_step=before, num_steps=sum(num_steps)) as part:
            learn(phase, part)
