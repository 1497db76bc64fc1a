"""Generalised advantage estimation: how much better each action turned out than a critic expected
before it (GAE, arXiv 1506.02438). With a clip this is PPO.

An action is a token of the agent's, or a whole turn (Turn-PPO, arXiv 2512.17008). A tool's result
is no action: the value after an agent's message is that before its next one, and nothing begins
anew in between. The episode's reward is earned by its last action.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from posttrain.runtime.knobs import Rate, Section, SmallCount
from posttrain.train.advantages.baselines import BatchStd, Unscaled
from posttrain.train.advantages.groups import FloatArray, Group, TokenAdvantages


class CriticParams(Section):
    """Critic of what an episode will earn: a head on the policy's own last layer, which it does not
    move (`shared`), or a model of its own that begins as the policy does (`apart`); trained with
    AdamW at `lr`, `updates_per_step` times a step, from `warmup_steps` before the policy on."""

    trunk: Literal["shared", "apart"]
    lr: Rate
    updates_per_step: SmallCount
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)]


class GaeCredit(Section):
    """Generalised advantage estimation over the agent's tokens or turns, against a critic; with an
    `objective` of clip this is PPO."""

    example: ClassVar[str] = (
        "{over: tokens, gamma: 1.0, lam: 0.95, scale: {type: batch_std, floor: 1.0e-4}, "
        "critic: {trunk: apart, lr: 1.0e-3, updates_per_step: 2, warmup_steps: 4}}"
    )
    type: Literal["gae"]
    over: Literal["tokens", "turns"]
    gamma: Annotated[float, Field(gt=0, le=1)]
    lam: Annotated[float, Field(ge=0, le=1)]
    scale: Annotated[Unscaled | BatchStd, Field(discriminator="type")]
    critic: CriticParams

    def advantages_and_returns(
        self, groups: Sequence[Group], values: TokenAdvantages
    ) -> tuple[TokenAdvantages, TokenAdvantages]:
        """Advantages, scaled, and returns of a step's tokens from the values before them; all three
        have a number for each token of each member of each group. Raises ValueError where a value
        is not finite."""
        found = [
            [
                gae(
                    values_T,
                    [turn.num_tokens for turn in turns],
                    reward,
                    gamma=self.gamma,
                    lam=self.lam,
                    over=self.over,
                )
                for turns, reward, values_T in zip(group.turns_G, group.rewards_G.tolist(), values_G, strict=True)
            ]
            for group, values_G in zip(groups, values, strict=True)
        ]
        advantages = [[advantages_T for advantages_T, _ in of_group] for of_group in found]
        returns = [[returns_T for _, returns_T in of_group] for of_group in found]
        return whitened(advantages, self.scale), returns


def gae(
    values_T: FloatArray,
    turn_lengths: Sequence[int],
    reward: float,
    *,
    gamma: float,
    lam: float,
    over: Literal["tokens", "turns"],
) -> tuple[FloatArray, FloatArray]:
    """Advantages and returns of one episode's agent tokens in their order, both (T,). `values_T`:
    what is expected before each; `turn_lengths`: of each turn its tokens, T together. A return is
    what the critic is to say there, NaN where it is to say nothing.

    delta_k = gamma V_k+1 - V_k, for the last action reward - V_k; A_k = sum over l of (gamma lam)^l
    delta_k+l (eq. 16); return = A_k + V_k. Over turns V_k is the value before a turn's first token,
    which alone has a return, and all of its tokens have its advantage.

    Values 1/2, 1/4, 3/4, a reward of 1, gamma 1 and lam 1/2. Over tokens: deltas -1/4, 1/2, 1/4,
    advantages 1/16, 5/8, 1/4, returns 9/16, 7/8, 1. Over turns of two tokens and one: deltas 1/4,
    1/4, advantages 3/8, 3/8, 1/4, returns 7/8, NaN, 1.

    Expected gradient at gamma 1: the true one where the values are right, or lam is 1, whatever
    they are; else it is off by what they are wrong by.
    """
    if not np.isfinite(values_T).all():
        raise ValueError("a value of the critic is not finite: it diverged; lower credit.critic.lr")
    lengths = [1] * len(values_T) if over == "tokens" else [length for length in turn_lengths if length]
    if not lengths:
        return np.zeros(0), np.zeros(0)
    # where each action begins
    firsts_K = np.cumsum([0, *lengths[:-1]])
    values_K = values_T.astype(np.float64)[firsts_K]
    deltas_K = np.append(gamma * values_K[1:], reward) - values_K
    advantages_K: FloatArray = np.zeros(len(lengths))
    behind = 0.0  # the sum of eq. 16 from the end: A_k = delta_k + gamma lam A_k+1
    for place in reversed(range(len(lengths))):
        behind = advantages_K[place] = deltas_K[place] + gamma * lam * behind
    returns_T: FloatArray = np.full(len(values_T), np.nan)
    returns_T[firsts_K] = advantages_K + values_K
    # every token of an action has its advantage; its first token alone has a return
    return np.repeat(advantages_K, lengths), returns_T


def whitened(advantages: TokenAdvantages, scale: Unscaled | BatchStd) -> TokenAdvantages:
    """`batch_std`: (A - mean) / (std + floor), both over all tokens of the step, with their number
    less one in the deviation. The mean that is taken off is the same for every token and has
    expected gradient zero, but for each token's own share in it. 1 and 3 in one episode, 5 in
    another, less their mean and over their deviation of 2: -1, 0 and 1, but for the floor.
    """
    if isinstance(scale, Unscaled):
        return advantages
    tokens = np.concatenate([advantages_T for group in advantages for advantages_T in group] or [np.zeros(0)])
    mean = tokens.mean() if len(tokens) else 0.0
    std = tokens.std(ddof=1) if len(tokens) > 1 else 0.0
    return [[(advantages_T - mean) / (std + scale.floor) for advantages_T in group] for group in advantages]
