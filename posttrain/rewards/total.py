"""What one episode earns: the weighted sum of its scores, plus its penalties, plus what a user
adds.

The sum is not clipped at 0: clipping gives different failures one reward, and a group of equal
rewards teaches nothing. It is added up exactly (`math.fsum`) in a fixed order, so that equal scores
give equal rewards, bit by bit, which the count of such groups relies on.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from posttrain.exits import ConfigurationError
from posttrain.named import load_named
from posttrain.params import RewardParams
from posttrain.rewards.accuracy import accuracy
from posttrain.rewards.completion import completion
from posttrain.rewards.efficiency import efficiency
from posttrain.rewards.format import format as format_score
from posttrain.rewards.length_penalty import length_penalty
from posttrain.rewards.penalties import format_error, redundant_call, timeout, wrong_tool
from posttrain.rewards.step import step
from posttrain.rewards.timing import timing
from posttrain.rewards.tool_accuracy import tool_accuracy
from posttrain.types import Score, Task, Trajectory

ScoreFunction = Callable[[Trajectory, Task], Score]

EXTRA_SCORES: dict[str, ScoreFunction] = {"accuracy": accuracy, "length_penalty": length_penalty, "step": step}


@dataclass(frozen=True, slots=True)
class Term:
    """One summand: `weight` times the function's value."""

    name: str
    weight: float
    function: ScoreFunction


@dataclass(frozen=True, slots=True)
class RuleReward:
    """The reward of `params.yaml`, read once. Made by `load_reward`."""

    terms: tuple[Term, ...]

    def explain(self, trajectory: Trajectory, task: Task) -> dict[str, Score]:
        """Every score by name, penalties included, each unweighted. Raises ConfigurationError where
        a user's function returns no score."""
        return {term.name: _checked(term, term.function(trajectory, task)) for term in self.terms}

    def score(self, trajectory: Trajectory, task: Task) -> Trajectory:
        """The trajectory with its `scores` and `reward`."""
        scores = {name: score.value for name, score in self.explain(trajectory, task).items()}
        return replace(
            trajectory, scores=scores, reward=math.fsum(term.weight * scores[term.name] for term in self.terms)
        )


def load_reward(params: RewardParams) -> RuleReward:
    """Raises ConfigurationError, before any work, where an extra score does not exist or cannot
    take `(trajectory, task)`."""
    weights, penalties = params.weights, params.penalties
    terms = [
        Term("completion", weights.completion, completion),
        Term("tool_accuracy", weights.tool_accuracy, tool_accuracy),
        Term("efficiency", weights.efficiency, efficiency),
        Term("timing", weights.timing, timing),
        Term("format", weights.format, format_score),
        Term("wrong_tool", penalties.wrong_tool, wrong_tool),
        Term("redundant_call", penalties.redundant_call, redundant_call),
        Term("format_error", penalties.format_error, format_error),
        Term("timeout", penalties.timeout, timeout),
    ]
    extra = [Term(extra.name, extra.weight, _find(extra.name)) for extra in params.extra]
    return RuleReward((*terms, *extra))


def _find(name: str) -> ScoreFunction:
    if name in EXTRA_SCORES:
        return EXTRA_SCORES[name]
    function: ScoreFunction = load_named(name, knob="reward.extra names")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(
            f"reward.extra names {name!r}, whose signature is {inspect.signature(function)}; "
            "it must take (trajectory, task) and return a Score"
        ) from error
    return function


def _checked(term: Term, score: Score) -> Score:
    if not isinstance(score, Score) or not 0 <= score.value <= 1:
        raise ConfigurationError(
            f"the score {term.name!r} returned {score!r}; it must return posttrain.types.Score with a value in [0, 1]"
        )
    return score
