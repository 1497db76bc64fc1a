"""One advantage for each episode: its reward less a baseline, over a scale (GRPO, RLOO, NGRPO …);
the base of all methods under `credit`, and what groups of equal rewards are credited with.

Groups may differ in size: a lost episode is no member of its group. A group of equal rewards gives
exact zeros, unless its baseline lies elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.evals.groups import are_equal
from posttrain.runtime.knobs import Section
from posttrain.train.advantages.baselines import (
    BaselineParams,
    BatchStd,
    Expected,
    LeaveOneOut,
    ScaleParams,
    Unscaled,
    deviation,
    root_mean_square,
)
from posttrain.train.advantages.groups import (
    FloatArray,
    Group,
    TokenAdvantages,
    TurnAdvantages,
    over_tokens,
)


@dataclass(frozen=True, slots=True)
class StepContext:
    """Inputs of a method besides the groups. `score_weights`: of the reward's terms. `entropies`:
    nats per token, `values`: expected rewards before turns; None where no method asks."""

    score_weights: Mapping[str, float] = field(default_factory=dict)
    entropies: TokenAdvantages | None = None
    values: TurnAdvantages | None = None
    seed: int = 0
    step: int = 0


class Credit(Section):
    """A method defines one of the three functions; the others follow from it. A group of fewer than
    two members gets zeros: it has nothing to be compared with."""

    def token_advantages(self, groups: Sequence[Group], context: StepContext) -> TokenAdvantages:
        """For each group, for each member, a number for each of the agent's tokens."""
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


class Compared(Credit):
    """(reward - baseline) / scale. `drop`: groups that count for nothing, `equal` those whose
    rewards are, `all_good` those in which all succeeded."""

    baseline: BaselineParams
    scale: ScaleParams
    drop: Literal["none", "equal", "all_good"]

    def compared(self, groups: Sequence[Group]) -> list[FloatArray]:
        """For each group an array of shape (G,); zeros where it has fewer than two members and
        where it is dropped.

        Expected gradient: unscaled, what the baseline's docstring says; scaled, that of another
        objective; with groups dropped by what they earned, that of those kept.

        Rewards 1, 0, 0, 0 under the group's mean: 3/4, -1/4, -1/4, -1/4; over the standard
        deviation 1/2: twice that.
        """
        # groups of one are compared with nothing, and so are in no mean of the step
        batch = np.concatenate([group.rewards_G for group in groups if len(group.rewards_G) > 1] or [np.zeros(2)])
        found = [self._expected(group, batch) for group in groups]
        differences = [
            np.zeros(len(group.rewards_G)) if one is None else group.rewards_G - one.expected_G
            for group, one in zip(groups, found, strict=True)
        ]
        if self.baseline.is_within_step:
            of_step = deviation(batch)
        else:
            of_step = root_mean_square(np.concatenate([one for one in differences if len(one) > 1] or [np.zeros(2)]))
        return [
            of_group if one is None else of_group / self.scale.divisor(one.deviation, of_step)
            for of_group, one in zip(differences, found, strict=True)
        ]

    def is_dropped(self, group: Group) -> bool:
        """True for a group that `drop` leaves out."""
        match self.drop:
            case "none":
                return False
            case "equal":
                # but for rounding: sums of the same scores in another order differ in the last bit
                return are_equal(group.rewards_G)
            case "all_good":
                return bool(group.successes_G.all())

    def _expected(self, group: Group, batch: FloatArray) -> Expected | None:
        """None where the group's advantages are zeros."""
        if len(group.rewards_G) < 2 or self.is_dropped(group):
            return None
        found = self.baseline.of_group(group.rewards_G, batch)
        # differences that are rounding alone would be blown up by their deviation
        return None if are_equal(np.append(group.rewards_G, found.expected_G)) else found


class ByValues(Credit):
    """Turns are credited by the values before them. `batch_std`: over the root mean square of all
    of the step's turns."""

    scale: Annotated[Unscaled | BatchStd, Field(discriminator="type")]

    def turn_advantages(self, groups: Sequence[Group], context: StepContext) -> TurnAdvantages:
        assert context.values is not None
        found = []
        for group, values_G in zip(groups, context.values, strict=True):
            rewards_G = group.rewards_G
            if len(rewards_G) < 2:
                found.append([np.zeros(len(turns)) for turns in group.turns_G])
                continue
            others_G = LeaveOneOut(type="leave_one_out").of_group(rewards_G, rewards_G).expected_G
            found.append(self.of_group(rewards_G, others_G, values_G))
        numbers = np.concatenate([own for of_group in found if len(of_group) > 1 for own in of_group] or [np.zeros(0)])
        divisor = self.scale.divisor(0.0, root_mean_square(numbers) if len(numbers) > 1 else 0.0)
        return [[own / divisor for own in of_group] for of_group in found]

    def of_group(self, rewards_G: FloatArray, others_G: FloatArray, values_G: Sequence[FloatArray]) -> list[FloatArray]:
        """For each of a group's G members a number for each of its K turns, unscaled, by its
        reward, the mean reward of the others, and the values (K,) before its turns."""
        raise NotImplementedError


class ByBaseline(Section):
    """A group of equal rewards is credited as any other: with nothing under a baseline that is its
    own mean."""

    type: Literal["by_baseline"]


class ByEntropy(Section):
    """A token of a group of equal rewards is credited with `alpha` times its entropy where all
    succeeded, and where all failed with how far it lies below the episode's most uncertain one
    (RL-ZVP)."""

    type: Literal["by_entropy"]
    alpha: Annotated[float, Field(gt=0)]

    def advantages(self, group: Group, entropies_G: Sequence[FloatArray]) -> list[FloatArray]:
        """For each member a number per token: alpha H_t where all succeeded, alpha (H_t - max_k
        H_k) where all failed, max over the episode's own tokens (arXiv 2509.21880, eq. 5); 0 where
        some did. `entropies_G`: H in nats, not differentiated.

        Expected gradient, of a reward that is success alone: none of J's. Where all succeed it is
        alpha P(success)^(G-1) times that of P(success) with each token's part times its entropy:
        more of what is done anyhow. Where all fail it is the same of failure with H_t - max_k H_k:
        less of it, the more certain the token was.

        Entropies 1/2, 2 at alpha 0.1: 0.05, 0.2 of a success, -0.15, 0 of a failure.
        """
        if group.successes_G.all():
            return [self.alpha * entropies for entropies in entropies_G]
        if not group.successes_G.any():
            # `initial`: an episode without a token has no maximum
            return [self.alpha * (entropies - entropies.max(initial=0.0)) for entropies in entropies_G]
        return [np.zeros(len(entropies)) for entropies in entropies_G]


class ByCoin(Section):
    """A group of equal rewards is credited with `size`, up or down as a coin falls: a control of
    what any constant does."""

    type: Literal["by_coin"]
    size: Annotated[float, Field(gt=0)]

    def advantage(self, *, seed: int, step: int, index: int) -> float:
        """For all tokens of the group at `index` of the step. Expected gradient: zero, as the coin
        does not look; it adds the noise and the entropy that any constant of that size does."""
        # a generator per group: a resumed step draws the same coins
        is_up = np.random.default_rng([seed, step, index]).integers(2)
        return self.size if is_up else -self.size


class EpisodeCredit(Compared):
    """One number for all tokens of an episode: (reward - baseline) / scale. `drop`: groups that
    count for nothing, `equal` those whose rewards are, `all_good` those in which all succeeded."""

    example: ClassVar[str] = (
        "{baseline: {type: group_mean}, scale: {type: group_std, floor: 1.0e-4}, drop: none, "
        "equal_groups: {type: by_baseline}}"
    )
    type: Literal["episode"]
    equal_groups: Annotated[ByBaseline | ByEntropy | ByCoin, Field(discriminator="type")]

    def episode_advantages(self, groups: Sequence[Group], _context: StepContext) -> list[FloatArray]:
        return self.compared(groups)

    def token_advantages(self, groups: Sequence[Group], context: StepContext) -> TokenAdvantages:
        by_baseline = super().token_advantages(groups, context)
        return [
            self._of_equal(index, group, by_baseline[index], context)
            if len(group.rewards_G) > 1 and are_equal(group.rewards_G) and not self.is_dropped(group)
            else by_baseline[index]
            for index, group in enumerate(groups)
        ]

    def _of_equal(
        self, index: int, group: Group, by_baseline: list[FloatArray], context: StepContext
    ) -> list[FloatArray]:
        match self.equal_groups:
            case ByBaseline():
                return by_baseline
            case ByCoin() as coin:
                given = coin.advantage(seed=context.seed, step=context.step, index=index)
                return [np.full(len(of_tokens), given) for of_tokens in by_baseline]
            case ByEntropy() as by_entropy:
                assert context.entropies is not None
                return by_entropy.advantages(group, context.entropies[index])


class ImitationCredit(Credit):
    """1 for an expert's trace that joined the group, nothing for what was played: supervised
    learning on the traces that an oracle method uses, as its control."""

    example: ClassVar[str] = "{}"
    type: Literal["imitation"]

    def episode_advantages(self, groups: Sequence[Group], _context: StepContext) -> list[FloatArray]:
        """Expected gradient: of no objective of the policy's, but of the traces'
        log-probability."""
        return [
            np.array(group.is_replayed_G, dtype=np.float64)
            if len(group.rewards_G) > 1 and len(group.is_replayed_G) > 0
            else np.zeros(len(group.rewards_G))
            for group in groups
        ]
