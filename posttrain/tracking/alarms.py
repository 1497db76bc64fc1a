"""Health alarms: rules over the metrics of a training, each with advice.

A rule compares each step with its limit in `params.yaml`, often relative to the first steps of the
same training, and is raised where `steps` steps in a row broke it; after a step that kept it, it
can be raised again. A rule reads nothing but the lines of `metrics.jsonl`, so a resumed training
raises the same alarms as an undisturbed one. A null is a number that was not finite and counts as
infinite; a rule whose metrics are not in a line is skipped.
"""

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from posttrain.runtime.exits import StoppedByAlarm
from posttrain.tracking.params import AlarmParams

KEY = "alarms"  # in a line of metrics.jsonl: the names of the rules raised at it, with spaces between

Numbers = Mapping[str, float]
Line = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One health rule. `is_broken` and `what` (for `str.format`) get the numbers of a step, earlier
    numbers to compare with, and the limit, which `params.yaml` has under `name`."""

    name: str
    metrics: tuple[str, ...]
    is_broken: Callable[[Numbers, Numbers, float], bool]
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that was broken at a step. `what` has the value and the limit."""

    step: int
    name: str
    what: str
    advice: str


_HOLD = "raise train_policy.algorithm.kl.weight (with a kl of type none: take type loss)"

RULES = (
    Rule(
        "zero_std",
        ("frac_reward_zero_std",),
        lambda now, _, limit: now["frac_reward_zero_std"] > limit,
        "{now[frac_reward_zero_std]:.0%} of the groups have equal rewards, above {limit:.0%}",
        "where all failed take easier tasks or a reward with more steps; where all succeeded harder tasks, or end here",
    ),
    Rule(
        "no_signal",
        ("frac_tokens_nonzero_advantage",),
        lambda now, _, limit: now["frac_tokens_nonzero_advantage"] <= limit,
        "{now[frac_tokens_nonzero_advantage]:.1%} of the tokens have an advantage, not above {limit:.1%}",
        "nothing is learnt: take tasks in which some episodes succeed and some fail, or larger groups",
    ),
    Rule(
        "turns_collapse",
        ("turns",),
        lambda now, before, limit: now["turns"] < limit * before["turns"],
        "{now[turns]:.2f} turns per episode, below {limit:g} of the {before[turns]:.2f} at first",
        "the agent gives up its tools: look what an answer without them earns, and lower train_policy.lr",
    ),
    Rule(
        "short_turns",
        ("turns", "length"),
        lambda now, before, limit: (
            _tokens_per_turn(now) < limit * _tokens_per_turn(before) and limit * now["turns"] > before["turns"]
        ),
        "{now[length]:.1f} tokens in {now[turns]:.2f} turns, {before[length]:.1f} in {before[turns]:.2f} at first; "
        "per turn below {limit:g} of that",
        "the reward pays for many short turns: let needless turns cost something",
    ),
    Rule(
        "entropy_collapse",
        ("entropy",),
        lambda now, before, limit: now["entropy"] < limit * before["entropy"],
        "entropy {now[entropy]:.2g} nats per token, below {limit:g} of the {before[entropy]:.2g} at first",
        "the episodes of a task become one: lower train_policy.lr, or raise train_policy.algorithm.temperature",
    ),
    Rule(
        "entropy_eruption",
        ("entropy",),
        lambda now, before, limit: now["entropy"] > limit * before["entropy"],
        "entropy {now[entropy]:.2g} nats per token, above {limit:g} times the {before[entropy]:.2g} at first",
        f"the policy comes apart: lower train_policy.lr, or {_HOLD}",
    ),
    Rule(
        "kl",
        ("kl",),
        lambda now, _, limit: now["kl"] > limit,
        "KL to the start {now[kl]:.2g} nats per token, above {limit:g}",
        f"the policy runs away from where it began: lower train_policy.lr, or {_HOLD}",
    ),
    Rule(
        "reward_hacking",
        ("reward_mean", "strict_success"),
        lambda now, before, limit: (
            now["strict_success"] < before["best_success"] - limit and now["reward_mean"] > before["reward_at_best"]
        ),
        "strict success {now[strict_success]:.2f} at a reward of {now[reward_mean]:.2f}, after "
        "{before[best_success]:.2f} at {before[reward_at_best]:.2f}; it fell by more than {limit:g} while the "
        "reward rose",
        "what is paid is not what is wanted: read failed episodes of high reward, and mend the reward",
    ),
    Rule(
        "engine_mismatch",
        ("logprob_gap_turn",),
        lambda now, _, limit: now["logprob_gap_turn"] > limit,
        "engine and trainer differ by {now[logprob_gap_turn]:.2g} nats per token in a turn, above {limit:g}",
        "the engine plays another model than the trainer's: compare weights, temperature, precision and token ids",
    ),
    Rule(
        "forgetting",
        ("demonstration_loss",),
        lambda now, before, limit: now["demonstration_loss"] > limit * before["demonstration_loss"],
        "loss on demonstrations {now[demonstration_loss]:.2g}, above {limit:g} times the "
        "{before[demonstration_loss]:.2g} at first",
        f"what SFT taught is forgotten: lower train_policy.lr or train_policy.algorithm.max_steps, or {_HOLD}",
    ),
)
_ADVICE = {rule.name: rule.advice for rule in RULES}


class Alarms:
    """The rules of one training, and the numbers of its steps so far."""

    def __init__(self, limits: AlarmParams, *, on_alarm: Literal["warn", "stop"]) -> None:
        self._limits, self._on_alarm = limits, on_alarm
        self._first: list[Numbers] = []
        self._num_broken: Counter[str] = Counter()  # steps in a row, of each rule
        self._last: deque[tuple[float, float]] = deque(maxlen=limits.steps)  # strict success and reward of each
        self._best = (-math.inf, -math.inf)  # the highest mean of those successes so far, with that of the rewards

    def observe(self, line: Line) -> list[Alarm]:
        """The alarms raised at this line, the next one of `metrics.jsonl`."""
        is_judged = any(line.keys() >= set(rule.metrics) for rule in RULES)
        if not is_judged or line.keys() & {"round", "loss"}:
            return []  # of a phase of rejection sampling or on pairs, before one online
        now = {name: math.inf if value is None else value for name, value in line.items() if not isinstance(value, str)}
        if len(self._first) < self._limits.start_steps:
            self._first.append(now)
        before = {name: fmean(first[name] for first in self._first if name in first) for name in self._first[0]}
        before |= {"best_success": self._best[0], "reward_at_best": self._best[1]}
        raised = []
        for rule in RULES:
            limit: float | None = getattr(self._limits, rule.name)
            if limit is None or not now.keys() >= set(rule.metrics):
                continue
            is_broken = rule.is_broken(now, before, limit)
            self._num_broken[rule.name] = self._num_broken[rule.name] + 1 if is_broken else 0
            if self._num_broken[rule.name] == self._limits.steps:
                what = rule.what.format(now=now, before=before, limit=limit)
                raised.append(Alarm(int(now["step"]), rule.name, what, rule.advice))
        if now.keys() >= {"strict_success", "reward_mean"}:
            self._last.append((now["strict_success"], now["reward_mean"]))
        if len(self._last) == self._limits.steps:
            successes, rewards = zip(*self._last, strict=True)
            self._best = max(self._best, (fmean(successes), fmean(rewards)))
        return raised

    def act(self, raised: Sequence[Alarm]) -> None:
        """Print the alarms on stderr, a line each. Raises StoppedByAlarm under `on_alarm: stop`."""
        texts = [f"step {alarm.step}, alarm {alarm.name}: {alarm.what}. Advice: {alarm.advice}" for alarm in raised]
        if raised and self._on_alarm == "stop":
            raise StoppedByAlarm(
                "; ".join(texts) + ". train_policy.on_alarm is stop: running again as it is ends here again; change "
                "knobs, or set on_alarm to warn"
            )
        for line in texts:
            print(line, file=sys.stderr, flush=True)


def read_alarms(lines: Iterable[Line]) -> list[tuple[int, str, str]]:
    """Step, rule and advice of the alarms in the lines of a `metrics.jsonl`, in their order; the
    advice is empty for a rule that is not here."""
    return [
        (int(line["step"] or 0), name, _ADVICE.get(name, ""))
        for line in lines
        for name in str(line.get(KEY) or "").split()
    ]


def alarms_markdown(lines: Iterable[Line]) -> str:
    """`read_alarms` as a table, or that there are none."""
    rows = [f"| {step} | {name} | {advice} |" for step, name, advice in read_alarms(lines)]
    return "\n".join(["| step | alarm | advice |", "| ---: | --- | --- |", *rows]) if rows else "No alarm was raised."


def _tokens_per_turn(numbers: Numbers) -> float:
    return numbers["length"] / max(numbers["turns"], 1.0)
