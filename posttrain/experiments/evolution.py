"""Rounds of self-improvement: each is a run of the whole graph that begins from what the round
before it left, on rl tasks of its own (AgentEvol, arXiv 2406.04151).

A round is an experiment like any other, with a branch `exp/NAME-roundK-seedN`, whose
`data/earlier_run` holds, tracked by DVC, the policy and the replay buffer of round K - 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import pydantic

from posttrain.config.params import read_knobs
from posttrain.experiments.plan import Given, Override, Plan, Variant, variants
from posttrain.report.arms import Arm
from posttrain.report.run_reader import Measure
from posttrain.report.table import markdown_lines, percent
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knob_errors import why_unread
from posttrain.tracking.metrics_log import MetricValue

DEV = "dev_strict_success"
START, TASKS = "train_policy.start", "train_policy.task_part"
Curve = list[tuple[float, float]]  # generated tokens, strict success on dev


class Evolution(Given):
    """A file for `flows.evolve`. `round` are the knobs of every round; `beside` are arms to compare
    with, of which the first is the baseline. `include`: an experiment file, whose knobs come first.
    A seed's rounds end after `rounds`, after `patience` rounds in a row whose
    strict success on dev was no higher than the best before, or once `max_generated_tokens` have
    been written in play."""

    name: str
    about: str = ""
    include: str = ""
    rounds: Annotated[int, pydantic.Field(ge=1, le=100)]
    patience: Annotated[int, pydantic.Field(ge=1)] = 1
    max_generated_tokens: int | None = None
    seeds: list[int] = pydantic.Field(default_factory=list)
    base: dict[str, Any] = pydantic.Field(default_factory=dict)
    knobs: dict[str, Any] = pydantic.Field(default_factory=dict, alias="set")
    round: dict[str, Any]
    beside: list[Override] = pydantic.Field(default_factory=list)

    def plan(self) -> Plan:
        """The plan of all rounds and of what is beside them."""
        if TASKS in {*self.knobs, *self.round}:
            raise ConfigurationError(f"{TASKS} is set by the rounds themselves: leave it out")
        rounds = [
            Override(
                name=f"round{number}",
                about=f"round {number} of {self.rounds}",
                set={
                    **self.round,
                    TASKS: {"part": number, "of": self.rounds},
                    **({START: "sft"} if number == 1 else {}),
                },
            )
            for number in range(1, self.rounds + 1)
        ]
        overrides = [*self.beside, *rounds]
        return Plan.model_validate(
            {
                **self.model_dump(include={"name", "about", "seeds", "base"}),
                "targets": ["evaluate@policy"],
                "set": self.knobs,
                "overrides": [one.model_dump(by_alias=True) for one in overrides],
                "baseline": overrides[0].name,
            }
        )

    def chosen(self, params_text: str, seeds: Sequence[int] = ()) -> tuple[Plan, list[Variant]]:
        """The plan and its experiments; a round names the one before it. Raises
        ConfigurationError."""
        plan = self.plan()
        if seeds:
            plan = plan.model_copy(update={"seeds": list(seeds)})
        found = variants(plan, params_text)
        names = {(one.override, one.knobs["seed"]): one.name for one in found}
        before = {f"round{number + 1}": f"round{number}" for number in range(1, self.rounds)}
        return plan, [
            replace(one, earlier=names.get((before.get(one.override, ""), one.knobs["seed"]), "")) for one in found
        ]

    def goes_on(self, dev: Sequence[float], tokens: Sequence[int]) -> bool:
        """True where a seed that has come to these figures, one of each round, plays another."""
        if len(dev) >= self.rounds or sum(tokens) >= (self.max_generated_tokens or np.inf):
            return False
        best = int(np.argmax(dev)) if dev else 0
        return len(dev) - 1 - best < self.patience


def read_evolution(file: Path) -> Evolution:
    """Raises ConfigurationError."""
    try:
        evolution = Evolution.model_validate(read_knobs(file.read_bytes(), source=str(file)))
        if not evolution.include:
            return evolution
        shared = Plan.model_validate(
            read_knobs((included := file.parent / evolution.include).read_bytes(), source=str(included))
        )
        return evolution.model_copy(update={"base": {**shared.base, **shared.knobs, **evolution.base}})
    except (OSError, pydantic.ValidationError, TypeError) as error:
        why = why_unread(error, Evolution)
        raise ConfigurationError(f"no rounds can be read from {file}, so none was run: {why}") from error


def dev_curve(metrics: Sequence[Mapping[str, MetricValue]]) -> Curve:
    """Strict success on dev by the tokens written so far, from the lines of a `metrics.jsonl`."""
    found, tokens = [], 0.0
    for line in metrics:
        if isinstance(value := line.get("generated_tokens"), int | float):
            tokens = float(value)
        if isinstance(value := line.get(DEV), int | float):
            found.append((tokens, float(value)))
    return found


def rounds_markdown(rounds: Sequence[Sequence[Arm]], beside: Mapping[str, Sequence[Curve]]) -> str:
    """A row for each round, means over its seeds: tokens so far, strict success on dev and on
    held-out tasks; and for each arm beside them what its curve on dev was at as many tokens. Empty
    where no round ended."""
    if not any(rounds):
        return ""
    beside = {name: [curve for curve in curves if curve] for name, curves in beside.items() if any(curves)}
    titles = ["round", "seeds", "tokens so far", "strict on dev", "strict", "sampled", *beside]
    rows, chart, tokens = [], {name: list[float]() for name in ("rounds", *beside)}, dict[int, int]()
    places = []
    for number, arms in enumerate(rounds, 1):
        for arm in arms:
            tokens[arm.seed] = tokens.get(arm.seed, 0) + (arm.training.generated_tokens if arm.training else 0)
        place = fmean(tokens[arm.seed] for arm in arms)
        dev = fmean(arm.training.dev_last.get(DEV, 0.0) for arm in arms if arm.training)
        read = {name: _at(curves, place) for name, curves in beside.items()}
        shares = [fmean(_share(arm, measure) for arm in arms) for measure in (Measure.STRICT, Measure.SAMPLED)]
        rows.append(
            [
                *(str(number), str(len(arms)), f"{place:,.0f}", *map(percent, (dev, *shares))),
                *map(percent, read.values()),
            ]
        )
        places.append(place)
        for name, one in {"rounds": dev, **read}.items():
            chart[name].append(100 * one)
    drawn = [f"  line [{', '.join(f'{one:.1f}' for one in values)}]" for values in chart.values()]
    return "\n".join(
        [
            "## Rounds",
            "",
            "Means over seeds; an arm beside the rounds is read off its own curve on dev at as many tokens.",
            "",
            *markdown_lines(titles, rows),
            "",
            "```mermaid",
            "xychart-beta",
            f'  title "Strict success on dev, %, by tokens in play: {", ".join(chart)}"',
            f"  x-axis [{', '.join(f'{one / 1000:.0f}k' for one in places)}]",
            "  y-axis 0 --> 100",
            *drawn,
            "```",
            "",
        ]
    )


def _share(arm: Arm, measure: Measure) -> float:
    return fmean(arm.policies["policy"].outcomes(measure).values())


def _at(curves: Sequence[Curve], tokens: float) -> float:
    """Mean of the curves at so many tokens, linear between their points."""
    points = [np.array(curve) for curve in curves]
    return fmean(float(np.interp(tokens, one[:, 0], one[:, 1])) for one in points)
