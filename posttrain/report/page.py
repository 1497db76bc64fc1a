"""Renders the report: one HTML file that opens offline. The same figures give the same bytes, so it
holds no time and no path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.evals.significance import Spread, Verdict, difference, share_interval, spread_over
from posttrain.report.arms import Arms
from posttrain.report.charts import (
    DPO_CHARTS,
    GRPO_CHARTS,
    OWN_CHARTS,
    SFT_CHARTS,
    SPREAD_CHARTS,
    Chart,
    Charts,
    calibration_chart,
    drawn,
)
from posttrain.report.failures import failure_classes, shown_failures
from posttrain.report.html import rendered
from posttrain.report.knobs import Knobs
from posttrain.report.run_reader import (
    HELD_OUT,
    CostRate,
    DpoLine,
    Evaluation,
    GrpoLine,
    OwnLine,
    PolicyLine,
    PreferencesSummary,
    ResamplingSummary,
    RewardModelSummary,
    ScoreMean,
    SftLine,
    Success,
    TaskRecord,
    ValidationSummary,
    read_lines,
    read_object,
    read_policy_lines,
)
from posttrain.report.table import INTERVAL, gain_verdict, percent, percent_range, points, read_evaluations
from posttrain.runtime.exits import DataError
from posttrain.tracking.alarms import read_alarms

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
BREAKDOWN = "evaluate.by"  # the knob that names the labels in a person's order
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, slots=True)
class Reports:
    """Contents of the page. `arms` are the runs of experiments, of which those of these `knobs`
    tell how far seeds lie apart."""

    evaluations: Mapping[str, Evaluation]
    sft_records: Sequence[TaskRecord]
    policy_records: Sequence[TaskRecord]
    sft_lines: Sequence[SftLine]
    policy_lines: Sequence[PolicyLine]
    validation: ValidationSummary
    resampling: ResamplingSummary
    preferences: PreferencesSummary
    reward_model: RewardModelSummary
    arms: Arms
    knobs: Knobs

    @property
    def spread(self) -> Spread | None:
        """Spread of the policy's strict success over the seeds that were run with these knobs."""
        return spread_over(self.arms.seed_rates("policy", self.knobs))

    @property
    def gain(self) -> Verdict | None:
        """Verdict on the policy against the SFT model; None where the two ran other tasks."""
        before, after = (
            {record.task_id: float(record.strict_success) for record in _held_out(records)}
            for records in (self.sft_records, self.policy_records)
        )
        try:
            return difference([before], [after], spread=self.spread)
        except DataError:
            return None


def _held_out(records: Sequence[TaskRecord]) -> list[TaskRecord]:
    return [record for record in records if record.split == HELD_OUT]


def read_reports(folder: Path, knobs: Knobs) -> Reports:
    """Read `reports/`, of a run with these knobs. Raises DataError that names the file, what is
    wrong with it and which stage writes it."""
    return Reports(
        evaluations=read_evaluations(folder),
        sft_records=read_lines(folder / "evaluate" / "sft.tasks.jsonl", TaskRecord),
        policy_records=read_lines(folder / "evaluate" / "policy.tasks.jsonl", TaskRecord),
        sft_lines=read_lines(folder / "train_sft" / "metrics.jsonl", SftLine),
        policy_lines=()
        if knobs.get("train_policy.algorithm.type") == "none"
        else read_policy_lines(folder / "train_policy" / "metrics.jsonl"),
        validation=read_object(folder / "validate_data" / "summary.json", ValidationSummary),
        resampling=read_object(folder / "resample_data" / "summary.json", ResamplingSummary),
        preferences=read_object(folder / "sample_preferences" / "summary.json", PreferencesSummary),
        reward_model=read_object(folder / "train_reward_model" / "summary.json", RewardModelSummary),
        arms=read_object(folder / "experiments" / "seeds.json", Arms),
        knobs=knobs,
    )


def render_page(reports: Reports, *, num_failures_shown: int) -> str:
    """Render the HTML text."""
    evaluations, arms = reports.evaluations, reports.arms
    episodes = _held_out(reports.policy_records)
    failures = shown_failures(episodes, num_failures_shown)
    seeds = arms.of_setting(reports.knobs)
    algorithm, policy_charts, spread_charts = _policy_charts(reports.policy_lines, reports.knobs)
    charts = {
        "learning": [*drawn(SFT_CHARTS, reports.sft_lines), *policy_charts],
        "spread": spread_charts,
        "calibration": [calibration_chart(reports.reward_model.reliability)],
    }
    return rendered(
        _TEMPLATE,
        data={"charts": charts, "failures": failures},
        title="Did the agent get better?",
        algorithm=algorithm,
        spread_charts=spread_charts,
        percent=_percent,
        percent_range=percent_range,
        points=points,
        gain_verdict=gain_verdict,
        between=_between,
        interval_name=INTERVAL,
        knobs=reports.knobs,
        alarms=read_alarms(line.model_dump() for line in reports.policy_lines),
        evaluations=evaluations,
        sft=evaluations["sft"],
        policy=evaluations["policy"],
        lost={name: one.num_lost for name, one in evaluations.items() if one.num_lost},
        gain=reports.gain,
        abilities=_abilities(evaluations),
        costs=_costs(evaluations),
        cells=_cells(evaluations, order=reports.knobs.get(BREAKDOWN)),
        validation=reports.validation,
        resampling=reports.resampling,
        class_counts=sorted(reports.resampling.cells.items(), key=lambda item: (-item[1].validated, item[0])),
        preferences=reports.preferences,
        reward_model=reports.reward_model,
        failure_classes=failure_classes(reports.sft_records, reports.policy_records),
        num_failures=sum(record.failure is not None for record in episodes),
        num_shown=len(failures),
        seeds=seeds,
        spread=reports.spread,
        other_arms={name: arm for name, arm in arms.arms.items() if name not in seeds},
    )


def _percent(share: float) -> str:
    return percent(share).replace(" ", NO_BREAK_SPACE)


def _between(share: float, num: int) -> tuple[float, float]:
    """Wilson's interval of a share of `num`; the whole range where `num` is 0."""
    return share_interval(share * num, num) if num else (0.0, 1.0)


def _abilities(evaluations: Mapping[str, Evaluation]) -> list[tuple[str, list[ScoreMean | None]]]:
    """For each score that some policy has its mean of every policy."""
    names = dict.fromkeys(name for one in evaluations.values() for name in one.scores)
    return [(name, [one.scores.get(name) for one in evaluations.values()]) for name in names]


def _costs(evaluations: Mapping[str, Evaluation]) -> list[tuple[str, list[CostRate | None]]]:
    """For each cost that some policy has its rate of every policy."""
    names = dict.fromkeys(name for one in evaluations.values() for name in one.costs)
    return [(name, [one.costs.get(name) for one in evaluations.values()]) for name in names]


def _policy_charts(lines: Sequence[PolicyLine], knobs: Knobs) -> tuple[str, list[Chart], list[Chart]]:
    """The algorithms in their order, the charts of training and those of the spread of rewards."""
    of_pairs = {"kto": "KTO", "orpo": "ORPO"}.get(knobs.get("train_policy.algorithm.type", ""), "DPO")
    kinds: Mapping[type, tuple[str, Charts]] = {
        OwnLine: ("rejection sampling", OWN_CHARTS),
        GrpoLine: ("learning online", GRPO_CHARTS),
        DpoLine: (of_pairs, DPO_CHARTS),
    }
    by_kind = {kind: [line for line in lines if type(line) is kind] for kind in dict.fromkeys(map(type, lines))}
    charts = [chart for kind, own in by_kind.items() for chart in drawn(kinds[kind][1], own)]
    online = by_kind.get(GrpoLine, [])
    return ", then ".join(kinds[kind][0] for kind in by_kind), charts, drawn(SPREAD_CHARTS, online)


def _cells(
    evaluations: Mapping[str, Evaluation], *, order: Any
) -> list[tuple[str, list[tuple[str, int, list[Success | None]]]]]:
    """For each label its values, each with the number of its tasks and the success of every policy;
    first the labels that the knob `order` names."""
    by = evaluations["policy"].by
    places = {name: place for place, name in enumerate(order)} if isinstance(order, Sequence) else {}
    return [
        (
            dimension,
            [
                (value, one.num_tasks, [other.by.get(dimension, {}).get(value) for other in evaluations.values()])
                for value, one in values.items()
            ],
        )
        for dimension, values in sorted(by.items(), key=lambda item: places.get(item[0], len(places)))
    ]
