"""Quality of a process reward model on held-out tasks: calibration, and whether it finds the flawed
turn. Pure functions of values.

*Error propagation* asks of each turn whether a flaw has happened by its end (the field's usual
measure, AgentProcessBench, arXiv 2603.14465); *localisation* which of a failed episode's turns it
was. Two baselines: the Monte-Carlo labels in place of the model's values, of which the last is the
episode's own outcome, and the guess that the first call is the flaw.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.train.advantages.groups import FloatArray
from posttrain.types import Trajectory

NUM_BINS, NUM_RESAMPLES = 10, 1000
_NO_TURN = np.zeros((0, 2))


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """An episode of K turns with the `labels` of its K + 1 states, NaN where there is none.
    `flawed_turn`: the first, from 0, at which the expert would have written otherwise; None where
    there is none or no expert. `first_call`: the first turn with a call, or 0."""

    trajectory: Trajectory
    labels: FloatArray
    flawed_turn: int | None = None
    first_call: int = 0


def judge(
    episodes_P_G: Sequence[Sequence[LabelledEpisode]], values_P_G: Sequence[Sequence[FloatArray]], *, has_expert: bool
) -> dict[str, Any]:
    """Figures for a summary; an AUC stands with its interval. Without an expert nobody knows the
    flawed turns, and there is none."""
    of_tasks = [list(zip(*both, strict=True)) for both in zip(episodes_P_G, values_P_G, strict=True)]
    labels = np.concatenate([one.labels for of_task in of_tasks for one, _ in of_task])
    values = np.concatenate([own for of_task in of_tasks for _, own in of_task])[~np.isnan(labels)]
    labels = labels[~np.isnan(labels)]
    bins = reliability(values, labels)
    found: dict[str, Any] = {
        "num_held_out_tasks": len(of_tasks),
        "num_held_out_states": len(labels),
        "brier": float(((values - labels) ** 2).mean()),
        "brier_of_their_mean": float(labels.var()),
        "calibration_error": sum(one["num"] * abs(one["label"] - one["value"]) for one in bins) / len(labels),
        "reliability": bins,
    }
    for measure in (error_propagation, localisation) if has_expert else ():
        figures: dict[str, Any] = {}
        for name, way in _WAYS.items():
            turns_P = [
                np.concatenate([_NO_TURN, *(measure(one, way(one, own)) for one, own in of_task)])
                for of_task in of_tasks
            ]
            figures[name] = auc_over_tasks(turns_P)
            figures |= {"num_turns": sum(map(len, turns_P)), "num_positive": int(np.concatenate(turns_P)[:, 0].sum())}
        found[measure.__name__] = figures
    return found


_WAYS: dict[str, Callable[[LabelledEpisode, FloatArray], FloatArray]] = {
    "model": lambda _, values: values,
    "labels": lambda episode, _: episode.labels,
    # if the first call were where success is lost: 1 up to it, 0 behind
    "first_call": lambda episode, values: (np.arange(len(values)) <= episode.first_call).astype(np.float64),
}


def error_propagation(episode: LabelledEpisode, values: FloatArray) -> FloatArray:
    """A row (truth, score) for each turn, by the values of the K + 1 states: whether it is at or
    behind the flawed turn of a failed episode, which none of a strict success is, and minus the
    value behind it. No row of other episodes."""
    is_strict, flawed = episode.trajectory.is_strict_success, episode.flawed_turn
    if not is_strict and (episode.trajectory.is_success or flawed is None):
        return _NO_TURN
    first = len(values) if is_strict or flawed is None else flawed
    return np.column_stack([np.arange(len(values) - 1) >= first, -values[1:]])


def localisation(episode: LabelledEpisode, values: FloatArray) -> FloatArray:
    """The same of a failed episode's turns: whether it is the flawed one, and the fall of the value
    over it."""
    if episode.trajectory.is_success or episode.flawed_turn is None:
        return _NO_TURN
    return np.column_stack([np.arange(len(values) - 1) == episode.flawed_turn, values[:-1] - values[1:]])


def auc(turns_N: FloatArray) -> float:
    """Chance that a true row scores above a false one, an equal score counting half; NaN without
    either. Scores 3, 1 of true and 1, 0 of false rows: (2 + 3/2) / 4."""
    is_true, scores = turns_N[:, 0] == 1, turns_N[:, 1]
    positive, negative = scores[is_true], np.sort(scores[~is_true])
    if not len(positive) or not len(negative):
        return math.nan
    below, upto = (np.searchsorted(negative, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(negative))


def auc_over_tasks(turns_P_N: Sequence[FloatArray]) -> list[float] | None:
    """The AUC over all turns, and its 95 % interval by a bootstrap over tasks: turns of one task
    are no independent draws. None where all turns are true, or none; one without a score counts for
    nothing."""
    known = [own[~np.isnan(own[:, 1])] for own in turns_P_N]
    if math.isnan(of_all := auc(np.concatenate(known))):
        return None
    draws = np.random.default_rng(0).integers(len(known), size=(NUM_RESAMPLES, len(known)))
    found = [auc(np.concatenate([known[place] for place in places])) for places in draws]
    return [of_all, *np.nanquantile(found, [0.025, 0.975]).tolist()]


def reliability(values_N: FloatArray, labels_N: FloatArray) -> list[dict[str, float]]:
    """`NUM_BINS` equal bins of the value, from 0 to 1: how many, mean value, mean label; no empty
    ones."""
    # a value of exactly 1 belongs to the last bin
    places = np.minimum((values_N * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = [places == place for place in np.unique(places)]
    means = [(int(own.sum()), float(values_N[own].mean()), float(labels_N[own].mean())) for own in bins]
    return [{"num": num, "value": value, "label": label} for num, value, label in means]
