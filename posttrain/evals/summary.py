"""What is said about a policy: one record per task for people and later analyses, and one summary
of them all.

Each task is played once greedily, which is what a user would get, and several times at temperature
1, which shows how reliable it is. Interval and breakdowns are of the greedy plays. The paraphrased
split is reported beside, never mixed in.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posttrain.evals.failures import Failure, failure_of
from posttrain.evals.passk import pass_hat_k
from posttrain.evals.significance import LEVEL, share_interval
from posttrain.rewards.agent_actions import agent_messages, calls_made, holds
from posttrain.rewards.completion import is_success
from posttrain.rewards.efficiency import efficiency
from posttrain.rewards.timing import timing
from posttrain.types import Gold, Message, Task, Trajectory

_MAX_K = 8


@dataclass(frozen=True, slots=True)
class EvaluatedTask:
    """A task with its greedy play, scored, and the successes of its sampled plays; no samples where
    the split is played greedily alone."""

    task: Task
    greedy: Trajectory
    samples: tuple[bool, ...]

    @property
    def is_success(self) -> bool:
        return is_success(self.greedy, self.task)


def evaluated_tasks(
    tasks: Sequence[Task], greedy: Sequence[Trajectory], sampled: Sequence[Trajectory], *, num_samples: int
) -> list[EvaluatedTask]:
    """Join the plays: `greedy[i]` is of `tasks[i]`; `sampled` holds `num_samples` plays in a row
    for each of the first tasks, none for the others."""
    evaluated = []
    for index, (task, play) in enumerate(zip(tasks, greedy, strict=True)):
        own = sampled[index * num_samples : (index + 1) * num_samples]
        evaluated.append(EvaluatedTask(task, play, tuple(is_success(sample, task) for sample in own)))
    return evaluated


def task_record(evaluated: EvaluatedTask) -> dict[str, Any]:
    """One line of `<policy>.tasks.jsonl`. `cell` is kind/market/language/difficulty; `failure` is
    null for a success; `wanted` is the answer for a reader."""
    task, greedy = evaluated.task, evaluated.greedy
    return {
        "task_id": task.task_id,
        "split": task.split,
        "cell": f"{task.kind}/{task.market}/{task.language}/{task.difficulty}",
        "success": evaluated.is_success,
        "samples": [int(success) for success in evaluated.samples],
        "reward": greedy.reward,
        "scores": dict(greedy.scores),
        "turns": len(agent_messages(greedy)),
        "stop_reason": str(greedy.stop_reason),
        "failure": failure_of(greedy, task),
        "transcript": [_brief(message) for message in greedy.messages if message.role != "system"],
        "wanted": _wanted(task.gold),
    }


def summarise(evaluated: Sequence[EvaluatedTask], *, num_samples: int) -> dict[str, Any]:
    """The content of `<policy>.json`. All tasks of the split `test` count; those of
    `test_paraphrase` are under `paraphrase`.

    `success_rate` (also as `end_to_end_success`) with `ci_low` and `ci_high`, Wilson's interval at
    `ci_level`; `pass_hat_k` for each k up to the number of samples; of the greedy plays
    `tool_selection_accuracy`, `plan_success`, `step_efficiency`, `timing_precision` (see
    `_abilities`), `failures` (a count for each class), and `by` kind, market, language, difficulty.
    Raises ValueError where there is no test task.
    """
    test = [one for one in evaluated if one.task.split == "test"]
    paraphrase = [one for one in evaluated if one.task.split == "test_paraphrase"]
    samples = [one.samples for one in test]
    failures = Counter(failure_of(one.greedy, one.task) for one in test)
    success = _success(test)
    return {
        **success,
        "end_to_end_success": success["success_rate"],
        "num_samples": num_samples,
        "ci_level": LEVEL,
        **{f"pass_hat_{k}": _round(pass_hat_k(samples, k)) for k in range(1, min(num_samples, _MAX_K) + 1)},
        **_abilities(test),
        "reward_mean": _mean([one.greedy.reward or 0.0 for one in test]),
        "turns_mean": _mean([len(agent_messages(one.greedy)) for one in test]),
        "failures": {str(failure): failures[failure] for failure in Failure},
        "by": {name: _success_by(name, test) for name in ("kind", "market", "language", "difficulty")},
        "paraphrase": _success(paraphrase) if paraphrase else None,
    }


def _abilities(evaluated: Sequence[EvaluatedTask]) -> dict[str, float | int | None]:
    """Four abilities, each null where no task tests it.

    tool_selection_accuracy: of the `num_tool_tasks` that need a tool, the share whose first call is
    of a needed one. plan_success: of the `num_plan_tasks` that need two calls or more, the share in
    which all that hold the answer came back. step_efficiency, timing_precision: the mean scores
    `efficiency`, `timing`.
    """
    needing = [one for one in evaluated if one.task.gold.calls]
    planned = [one for one in needing if len(one.task.gold.calls) > 1]
    return {
        "tool_selection_accuracy": _mean([_is_first_call_needed(one) for one in needing]),
        "num_tool_tasks": len(needing),
        "plan_success": _mean([holds(calls_made(one.greedy), one.task.gold) for one in planned]),
        "num_plan_tasks": len(planned),
        "step_efficiency": _mean([efficiency(one.greedy, one.task).value for one in evaluated]),
        "timing_precision": _mean([timing(one.greedy, one.task).value for one in evaluated]),
    }


def _is_first_call_needed(one: EvaluatedTask) -> bool:
    calls = calls_made(one.greedy)
    return bool(calls) and calls[0].name in {gold.name for gold in one.task.gold.calls}


def _success_by(name: str, evaluated: Sequence[EvaluatedTask]) -> dict[str, Mapping[str, float]]:
    groups: dict[str, list[EvaluatedTask]] = {}
    for one in evaluated:
        groups.setdefault(str(getattr(one.task, name)), []).append(one)
    return {value: _success(members) for value, members in sorted(groups.items())}


def _success(evaluated: Sequence[EvaluatedTask]) -> dict[str, float]:
    num, num_successes = len(evaluated), sum(one.is_success for one in evaluated)
    low, high = share_interval(num_successes, num)
    return {
        "success_rate": _round(num_successes / num),
        "ci_low": _round(low),
        "ci_high": _round(high),
        "num_tasks": num,
    }


def _wanted(gold: Gold) -> str:
    """`380.20 HKD, by get_hk_realtime_quote(code=00700.HK)`; of each argument the first value that
    is accepted."""
    calls = [
        f"{call.name}({', '.join(f'{name}={values[0]}' for name, values in call.arguments.items())})"
        for call in gold.calls
    ]
    asked = [f"after asking for the {gold.asks}"] if gold.asks else []
    by = [f"by {' and '.join(calls)}"] if calls else []
    return ", ".join([f"{gold.answer.value} {gold.answer.unit}".strip(), *asked, *by])


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
