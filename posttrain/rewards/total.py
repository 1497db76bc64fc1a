"""Computes an episode's reward: the weighted sum of its world's scores, plus penalties, plus a
user's extra scores. A world's own reward, where it gives one, replaces the sum of weights and
penalties.

The sum is not clipped at 0: clipping gives different failures one reward, and a group of equal
rewards teaches nothing. It is added up exactly (`math.fsum`) in a fixed order, so that equal scores
give equal rewards, bit by bit, which the count of such groups relies on.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from posttrain.rewards.params import ExtraScore, JudgeParams, RewardParams
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.runtime.knobs import nearest
from posttrain.types import BadNumber, Message, Score, Task, Trajectory, number
from posttrain.worlds.made_calls import agent_messages

ScoreFunction = Callable[[Trajectory, Task], Score]

FREE_TOKENS_PER_MESSAGE = 64  # a call with one sentence of reasoning; twice as many is too long altogether
BYTES_PER_TOKEN = 4  # of text whose tokens are not known (a text-only policy)


def length_penalty(trajectory: Trajectory, task: Task, *, target_tokens: int = FREE_TOKENS_PER_MESSAGE) -> Score:
    """A score that wants a negative weight: 0.0 up to `target_tokens` for each message that was
    written (`free` in all), so that it never pays to write less than is needed, then rising
    linearly to 1.0 at twice that: DAPO's overlong term (arXiv 2503.14476, eq. 13).

    A message with a call and an answer (128 free at 64): 160 tokens cost (160 - 128) / 128 = 0.25.
    """
    del task  # the same measure for every task
    free = target_tokens * max(len(agent_messages(trajectory)), 1)
    written = (
        sum(trajectory.mask)
        if trajectory.mask
        else sum(_num_bytes(message) for _, message in agent_messages(trajectory)) / BYTES_PER_TOKEN
    )
    value = min(max(written - free, 0) / free, 1.0)
    return Score(
        value,
        {"tokens_free": float(free), "tokens_written": float(written)},
        f"{written:.0f} tokens where {free} do." if value else "",
    )


JUDGED = "judge_"  # how the names of a judge's scores begin
EXTRA_SCORES: dict[str, ScoreFunction] = {"length_penalty": length_penalty}


@dataclass(frozen=True, slots=True)
class Term:
    """One summand: `weight` times the score of that name, by `function` or, where it is None, by
    the world (0.0 where a task does not test it)."""

    name: str
    weight: float
    function: ScoreFunction | None = None


@dataclass(frozen=True, slots=True)
class RuleReward:
    """The reward of params.yaml, made by `load_reward`."""

    world_terms: tuple[Term, ...]
    extra_terms: tuple[Term, ...]

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each score in the reward."""
        return {term.name: term.weight for term in (*self.world_terms, *self.extra_terms)}

    def score_all(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
        """`score` of each; what a judge says is asked for at once."""
        for term in self.extra_terms:
            if prepare := getattr(term.function, "prepare", None):
                prepare([one for one in trajectories if one.outcome is not None])
        return [self.score(*one) for one in zip(trajectories, tasks, strict=True)]

    def score(self, trajectory: Trajectory, task: Task) -> Trajectory:
        """The trajectory with its `scores`, all of its world's included, and its `reward`. An
        aborted episode, which no world graded, comes back unchanged. Raises ConfigurationError
        where a user's function returns no score."""
        outcome = trajectory.outcome
        if outcome is None:
            return trajectory
        scores = dict(outcome.scores) | {
            term.name: _checked(term, term.function(trajectory, task)).value
            for term in self.extra_terms
            if term.function
        }
        earned = [term.weight * scores.get(term.name, 0.0) for term in self.world_terms]
        extra = [term.weight * scores.get(term.name, 0.0) for term in self.extra_terms]
        own = earned if outcome.reward is None else [outcome.reward]
        return replace(trajectory, scores=scores, reward=math.fsum([*own, *extra]))


def load_reward(params: RewardParams, known: Sequence[str]) -> RuleReward:
    """Read the section `reward`; `known` are the world's scores (`domains.score_names`). Raises
    ConfigurationError, before any work, where a name is no score, or a user's function does not
    exist or cannot take `(trajectory, task)`."""
    weights = {f"reward.weights.{name}": Term(name, weight) for name, weight in params.weights.items()}
    penalties = {f"reward.penalties.{name}": Term(name, weight) for name, weight in params.penalties.items()}
    if unknown := {knob: term.name for knob, term in {**weights, **penalties}.items() if term.name not in known}:
        meant = "".join(nearest(name, known) for name in unknown.values())
        raise ConfigurationError(
            f"{', '.join(unknown)}: the world gives no such score; it gives {', '.join(known)}.{meant}"
        )
    extra = [Term(one.name, one.weight, _function(one, params.judge, known)) for one in params.extra]
    return RuleReward((*weights.values(), *penalties.values()), tuple(extra))


def _function(extra: ExtraScore, judge: JudgeParams | None, known: Sequence[str]) -> ScoreFunction | None:
    if extra.name.startswith(JUDGED) and extra.name not in known:
        if judge is None:
            raise ConfigurationError(f"reward.extra names {extra.name!r}, and reward.judge names no model")
        make = load_named("posttrain.rollout.judge:judged_score", knob="reward.judge is read by")
        judged: ScoreFunction = make(judge, extra.name.removeprefix(JUDGED))
        return judged
    if extra.target_tokens is not None:
        return partial(length_penalty, target_tokens=extra.target_tokens)
    return _find(extra.name, known)


def _find(name: str, known: Sequence[str]) -> ScoreFunction | None:
    """The function of that name; None where the world gives the score."""
    if name in EXTRA_SCORES:
        return EXTRA_SCORES[name]
    if name in known:
        return None
    if ":" not in name:
        named = (*EXTRA_SCORES, *known)
        raise ConfigurationError(
            f"reward.extra names {name!r}: no such score; there are {', '.join(named)}, and your own is written "
            f"module:function.{nearest(name, named)}"
        )
    function: ScoreFunction = load_named(name, knob="reward.extra names")
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError) as error:  # ValueError: Python does not know its arguments
        raise ConfigurationError(
            f"reward.extra names {name!r}: {error}; it must take (trajectory, task) and return a Score"
        ) from error
    return function


def _checked(term: Term, score: Score) -> Score:
    try:
        number(score.value, "its value", low=0, high=1)
    except (AttributeError, BadNumber) as error:
        raise ConfigurationError(
            f"the score {term.name!r} must return posttrain.types.Score with a value in [0, 1]: {error}"
        ) from None
    return score


def _num_bytes(message: Message) -> int:
    calls = [call.name + call.arguments for call in message.tool_calls]
    return len("".join([message.content, message.reasoning_content or "", *calls]).encode())
