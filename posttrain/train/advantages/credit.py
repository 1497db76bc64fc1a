"""Base of what params.yaml offers under `credit`: knobs that turn groups into advantages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from posttrain.runtime.knobs import Section
from posttrain.train.advantages.groups import FloatArray, Group, TokenAdvantages, TurnAdvantages, over_tokens
from posttrain.train.advantages.history import TaskHistory


@dataclass(frozen=True, slots=True)
class StepContext:
    """Inputs of a method besides the groups. `history`: what tasks earned in earlier steps.
    `score_weights`: of the terms of the reward. `entropies`: in nats per token, None where no
    method asks. `seed`, `step`: for random draws."""

    history: TaskHistory
    score_weights: Mapping[str, float] = field(default_factory=dict)
    entropies: TokenAdvantages | None = None
    seed: int = 0
    step: int = 0


class Credit(Section):
    """A method defines one of the three functions; the others follow from it."""

    def token_advantages(self, groups: Sequence[Group], context: StepContext) -> TokenAdvantages:
        """For each group, for each member, a number for each of the agent's tokens. Zeros where a
        group has fewer than two members."""
        return [
            [over_tokens(*member) for member in zip(by_turn_G, group.turns_G, strict=True)]
            for by_turn_G, group in zip(self.turn_advantages(groups, context), groups, strict=True)
        ]

    def turn_advantages(self, groups: Sequence[Group], context: StepContext) -> TurnAdvantages:
        """The same for each turn."""
        return [
            [np.full(len(turns), number) for number, turns in zip(of_G.tolist(), group.turns_G, strict=True)]
            for of_G, group in zip(self.episode_advantages(groups, context), groups, strict=True)
        ]

    def episode_advantages(self, groups: Sequence[Group], context: StepContext) -> list[FloatArray]:
        """The same for each member: an array of shape (G,) per group."""
        raise NotImplementedError
