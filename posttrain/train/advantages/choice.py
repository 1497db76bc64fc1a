"""Credits every token of a step by the rule that params.yaml names."""

from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.evals.groups import are_equal
from posttrain.train.advantages.discounted import discounted
from posttrain.train.advantages.episode import episode_advantages, is_dropped
from posttrain.train.advantages.equal_groups import by_coin, by_entropy
from posttrain.train.advantages.groups import FloatArray, Group, TokenCredit, TurnCredit, of_members, over_tokens
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import (
    ByBaseline,
    ByCoin,
    ByEntropy,
    DiscountedCredit,
    EpisodeCredit,
    ImitationCredit,
    ScoresCredit,
    StatesCredit,
    TurnScoresCredit,
)
from posttrain.train.advantages.scores import score_advantages
from posttrain.train.advantages.states import states
from posttrain.train.advantages.turn_scores import turn_scores

WithoutCritic = EpisodeCredit | ScoresCredit | DiscountedCredit | TurnScoresCredit | StatesCredit | ImitationCredit


def token_credit(
    groups: Sequence[Group],
    credit: WithoutCritic,
    history: TaskHistory,
    *,
    weights: Mapping[str, float],
    entropies: TokenCredit | None,
    seed: int,
    step: int,
) -> TokenCredit:
    """Of each group, of each member, one advantage for each of the agent's tokens; zeros where
    fewer than two members are left. `weights`: of the scores, for a credit of scores. `entropies`:
    of each token in nats, for one by entropy, and None else. `seed`, `step`: of a coin's fall.

    Expected gradient: that of each rule stands with it. `imitation`, 1 for what joined and 0 for
    what was played, is of no objective of the policy's: it is that of the joined traces' log
    probability.
    """
    found = [
        [over_tokens(*both) for both in zip(by_turn_G, group.turns_G, strict=True)]
        for by_turn_G, group in zip(_by_turn(groups, credit, history, weights), groups, strict=True)
    ]
    if not isinstance(credit, EpisodeCredit):
        return found
    return [
        _of_equal(place, group, of_group, credit, entropies=entropies, seed=seed, step=step)
        if len(group.rewards_G) > 1 and are_equal(group.rewards_G) and not is_dropped(group, credit)
        else of_group
        for place, (group, of_group) in enumerate(zip(groups, found, strict=True))
    ]


def _by_turn(
    groups: Sequence[Group], credit: WithoutCritic, history: TaskHistory, weights: Mapping[str, float]
) -> TurnCredit:
    match credit:
        case EpisodeCredit():
            return _of_episodes(episode_advantages(groups, credit, history), groups)
        case ScoresCredit():
            return _of_episodes(score_advantages(groups, credit, weights), groups)
        case ImitationCredit():
            return _of_episodes([_joined(group) for group in groups], groups)
        case DiscountedCredit():
            return discounted(groups, credit, history)
        case TurnScoresCredit():
            return turn_scores(groups, credit, history)
        case StatesCredit():
            return states(groups, credit, history)


def _of_episodes(found: Sequence[FloatArray], groups: Sequence[Group]) -> TurnCredit:
    return [of_members(of_G, group) for of_G, group in zip(found, groups, strict=True)]


def _joined(group: Group) -> FloatArray:
    is_one = len(group.rewards_G) > 1 and len(group.is_joined_G) > 0
    return np.array(group.is_joined_G, dtype=np.float64) if is_one else np.zeros(len(group.rewards_G))


def _of_equal(
    index: int,
    group: Group,
    by_baseline: list[FloatArray],
    credit: EpisodeCredit,
    *,
    entropies: TokenCredit | None,
    seed: int,
    step: int,
) -> list[FloatArray]:
    match credit.equal_groups:
        case ByBaseline():
            return by_baseline
        case ByCoin(size=size):
            given = by_coin(size=size, seed=seed, step=step, index=index)
            return [np.full(len(of_tokens), given) for of_tokens in by_baseline]
        case ByEntropy(alpha=alpha):
            entropies_G = [] if entropies is None else entropies[index]
            if [len(one) for one in entropies_G] != [len(one) for one in by_baseline]:
                raise ValueError(
                    f"the members of task {group.task_id} wrote {[len(one) for one in by_baseline]} tokens and "
                    f"entropies came of {[len(one) for one in entropies_G]}: each token needs its own"
                )
            return by_entropy(group, entropies_G, alpha=alpha)
