"""Summarises an evaluation: one record per task for people and later analyses, and one summary of
all.

Each task is run once greedily, as a user would get it, and several times at temperature 1, which
shows how reliable the policy is. Interval and breakdowns are of the greedy episodes. The
paraphrased split is reported beside, never mixed in.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.evals.groups import pass_hat_k
from posttrain.evals.params import STYLE
from posttrain.evals.significance import LEVEL, share_interval
from posttrain.runtime.exits import Interrupted
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.made_calls import agent_messages

_MAX_K = 8
_ABILITIES = {  # the name in a summary: the score
    "tool_selection_accuracy": "tool_selection_accuracy",
    "plan_success": "plan_success",
    "step_efficiency": "efficiency",
    "timing_precision": "timing",
}
Play = Callable[[Sequence[Task], float], Sequence[Trajectory]]  # tasks and temperature; a scored episode of each


@dataclass(frozen=True, slots=True)
class EvaluatedTask:
    """A task with its scored greedy episode and its sampled episodes that were not aborted; none
    where the split is run greedily alone."""

    task: Task
    greedy: Trajectory
    samples: tuple[Trajectory, ...]


def evaluate_policy(
    play: Play, tasks: Sequence[Task], *, num_samples: int, by: Sequence[str], costs: Sequence[str]
) -> tuple[list[EvaluatedTask], dict[str, Any]]:
    """Play all tasks greedily, and those of the split `test` `num_samples` times at temperature 1;
    gives the plays of each task and the summary of all. Raises Interrupted where every greedy play
    of a test task was lost: nothing can be said then."""
    greedy = play(tasks, 0.0)
    sampled = play([task for task in tasks if task.split == "test" for _ in range(num_samples)], 1.0)
    evaluated = evaluated_tasks(tasks, greedy, sampled, num_samples=num_samples)
    if all(one.greedy.is_aborted for one in evaluated if one.task.split == "test"):
        raise Interrupted("every greedy play was lost: nothing can be said; run it again")
    return evaluated, summarise(evaluated, num_samples=num_samples, by=by, costs=costs)


def evaluated_tasks(
    tasks: Sequence[Task], greedy: Sequence[Trajectory], sampled: Sequence[Trajectory], *, num_samples: int
) -> list[EvaluatedTask]:
    """Join episodes to tasks: `greedy[i]` is of `tasks[i]`; `sampled` holds `num_samples` episodes
    in a row for each of the first tasks, none for the others."""
    evaluated = []
    for index, (task, episode) in enumerate(zip(tasks, greedy, strict=True)):
        own = sampled[index * num_samples : (index + 1) * num_samples]
        evaluated.append(EvaluatedTask(task, episode, tuple(sample for sample in own if not sample.is_aborted)))
    return evaluated


def task_record(evaluated: EvaluatedTask, *, wanted: Callable[[Task], str] | None = None) -> dict[str, Any]:
    """One line of `<policy>.tasks.jsonl`, of a greedy episode that was not aborted. `cell` has the
    labels; `failure` is null for a success; `wanted` is the goal in the world's words for a reader,
    or as its JSON text. `delegated` has the conversations of workers, where there are any."""
    task, greedy = evaluated.task, evaluated.greedy
    assert greedy.outcome is not None, "an aborted episode has no line"
    return {
        "task_id": task.task_id,
        "split": task.split,
        "cell": "/".join(task.labels.values()),
        "success": greedy.is_success,
        "strict_success": greedy.is_strict_success,
        "samples": [int(sample.is_success) for sample in evaluated.samples],
        "reward": greedy.reward,
        "scores": dict(greedy.scores),
        "turns": len(agent_messages(greedy)),
        "stop_reason": str(greedy.stop_reason),
        "failure": greedy.outcome.failure or None,
        "transcript": _transcript(greedy.messages),
        "wanted": wanted(task) if wanted else task.goal,
        **({"delegated": [_transcript(one.messages) for one in greedy.delegated]} if greedy.delegated else {}),
    }


def summarise(
    evaluated: Sequence[EvaluatedTask], *, num_samples: int, by: Sequence[str], costs: Sequence[str]
) -> dict[str, Any]:
    """The content of `<policy>.json`. Tasks of the split `test` count unless their greedy episode
    was aborted (`num_lost` were); those of other splits are under `beside` by their split, and of
    `test_paraphrase` under `paraphrase`, too.

    `strict_success_rate` and `success_rate` (also as `end_to_end_success`), each with its interval
    (`strict_ci_low`, `ci_low`, …), Wilson's at `ci_level`; `pass_hat_k` and `strict_pass_hat_k` for
    each k up to the number of samples; of the greedy episodes `scores` (mean, standard deviation
    over tasks and number of the tasks that test it, by name), `costs` (of those scores that are
    named, the share of tasks with harm, its interval, and the share of sampled plays), `failures`
    (a count for each class that occurred, the most frequent first), and under `by` the success
    rates for each value of each label that is named. Raises ValueError where there is no test task.
    """
    test = [one for one in evaluated if one.task.split == "test" and not one.greedy.is_aborted]
    others: dict[str, list[EvaluatedTask]] = {}
    for one in evaluated:
        if one.task.split != "test" and not one.greedy.is_aborted:
            others.setdefault(one.task.split, []).append(one)
    beside = {split: _success(own) for split, own in others.items()}
    samples = [[sample.is_success for sample in one.samples] for one in test]
    strict_samples = [[sample.is_strict_success for sample in one.samples] for one in test]
    failures = Counter(one.greedy.outcome.failure for one in test if one.greedy.outcome and one.greedy.outcome.failure)
    success = _success(test)
    scores = _scores([one.greedy for one in test])
    ks = range(1, min(num_samples, _MAX_K) + 1)
    return {
        **success,
        "end_to_end_success": success["success_rate"],
        "num_lost": sum(one.greedy.is_aborted for one in evaluated),
        "num_samples": num_samples,
        "num_lost_samples": num_samples * len(test) - sum(map(len, samples)),
        "ci_level": LEVEL,
        **{f"pass_hat_{k}": _pass_hat(samples, k) for k in ks},
        **{f"strict_pass_hat_{k}": _pass_hat(strict_samples, k) for k in ks},
        **_abilities(scores),
        "scores": scores,
        "costs": {name: _cost(name, test) for name in costs if name in scores},
        "reward_mean": _mean([one.greedy.reward or 0.0 for one in test]),
        "turns_mean": _mean([len(agent_messages(one.greedy)) for one in test]),
        "failures": dict(failures.most_common()),
        "by": {label: _success_by(label, test) for label in by},
        "paraphrase": beside.get("test_paraphrase"),
        "beside": beside,
    }


def _pass_hat(samples: Sequence[Sequence[bool]], k: int) -> float | None:
    """pass^k over the tasks with k samples or more; None where there is none."""
    enough = [own for own in samples if len(own) >= k]
    return _round(pass_hat_k(enough, k)) if enough else None


def _abilities(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Scores of a world with lookups, under the names that reports read; null where no task tests
    them."""
    none = {"mean": None, "std": None, "num_tasks": 0}
    return {
        "num_tool_tasks": scores.get("tool_selection_accuracy", none)["num_tasks"],
        "num_plan_tasks": scores.get("plan_success", none)["num_tasks"],
        **{
            f"{shown}{suffix}": scores.get(name, none)[figure]
            for shown, name in _ABILITIES.items()
            for suffix, figure in (("", "mean"), ("_std", "std"))
        },
    }


def _scores(episodes: Sequence[Trajectory]) -> dict[str, dict[str, float | int | None]]:
    names = sorted({name for one in episodes for name in one.scores})
    values = {name: [one.scores[name] for one in episodes if name in one.scores] for name in names}
    return {
        name: {"mean": _mean(own), "std": _round(float(np.std(own))), "num_tasks": len(own)}
        for name, own in values.items()
    }


def _cost(name: str, test: Sequence[EvaluatedTask]) -> dict[str, float | int | None]:
    """Harm is a score above 0."""
    harmful = [one.greedy.scores[name] > 0 for one in test if name in one.greedy.scores]
    sampled = [play.scores[name] > 0 for one in test for play in one.samples if name in play.scores]
    low, high = share_interval(sum(harmful), len(harmful))
    rate = _round(sum(harmful) / len(harmful))
    return {
        "rate": rate,
        "ci_low": _round(low),
        "ci_high": _round(high),
        "sampled_rate": _mean(sampled),
        "num_tasks": len(harmful),
    }


def _success_by(label: str, evaluated: Sequence[EvaluatedTask]) -> dict[str, Mapping[str, float]]:
    groups: dict[str, list[EvaluatedTask]] = {}
    for one in evaluated:
        value = _style(one.greedy) if label == STYLE else one.task.labels.get(label, "-")
        groups.setdefault(value, []).append(one)
    return {value: _success(members) for value, members in sorted(groups.items())}


def _style(episode: Trajectory) -> str:
    """`reasoning` where the agent reasoned, else `tools`."""
    return "reasoning" if any(one.reasoning_content for _, one in agent_messages(episode)) else "tools"


def _success(evaluated: Sequence[EvaluatedTask]) -> dict[str, float]:
    num = len(evaluated)
    figures: dict[str, float] = {}
    for prefix, successes in (
        ("strict_", [one.greedy.is_strict_success for one in evaluated]),
        ("", [one.greedy.is_success for one in evaluated]),
    ):
        low, high = share_interval(sum(successes), num)
        figures |= {
            f"{prefix}success_rate": _round(sum(successes) / num),
            f"{prefix}ci_low": _round(low),
            f"{prefix}ci_high": _round(high),
        }
    return {**figures, "num_tasks": num}


def _transcript(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_brief(message) for message in messages if message.role != "system"]


def _brief(message: Message) -> dict[str, Any]:
    """A message for a reader: ids left out, calls as `[name, arguments]`, empty parts absent."""
    parts: dict[str, Any] = {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning_content,
        "calls": [[call.name, call.arguments] for call in message.tool_calls],
    }
    return {name: part for name, part in parts.items() if part}


def _mean(values: Sequence[float]) -> float | None:
    return _round(float(np.mean(values))) if len(values) else None


def _round(value: float) -> float:
    """Six decimals: enough for a share of a million tasks, and a diff that a person reads."""
    return round(value, 6)
