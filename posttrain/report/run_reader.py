"""Reads the files of a run below `reports/` as typed values: the one reader of a tree's folder and
of the bytes of git objects.

`read_object` and `read_lines` are strict, because a page must not be silent about a damaged file.
The `parse_…` functions take bytes of any commit, and give a sentence on what they cannot read.
"""

import json
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from posttrain.evals.groups import DEFINITION_VERSION
from posttrain.runtime.exits import DataError

Share = Annotated[float, Field(ge=0, le=1)]
# Half a surrogate pair, which JSON can write and UTF-8 cannot, becomes a question mark: an agent's
# garbage must not stop the report.
Text = Annotated[
    str, BeforeValidator(lambda text: text.encode(errors="replace").decode() if isinstance(text, str) else text)
]
Read = TypeVar("Read", bound=BaseModel)
HELD_OUT = "test"  # the split of the figures that are claimed
_TRANSCRIPT = b', "transcript": '  # keys are sorted: the results stand before it
_OBJECT = TypeAdapter(dict[str, Any])


class Measure(Enum):
    """Measures of a policy; sampled: success of episodes at temperature 1, not greedy."""

    STRICT = "strict success"
    PLAIN = "success"
    SAMPLED = "sampled"


class Source(BaseModel):
    """One object of a file that another stage wrote."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Rate(NamedTuple):
    """Share of tasks with its interval."""

    share: float
    low: float
    high: float


class Success(Source):
    """Success rates over `num_tasks` tasks, greedy, each with its interval."""

    success_rate: Share
    ci_low: Share
    ci_high: Share
    strict_success_rate: Share
    strict_ci_low: Share
    strict_ci_high: Share
    num_tasks: int

    @property
    def plain(self) -> Rate:
        return Rate(self.success_rate, self.ci_low, self.ci_high)

    @property
    def strict(self) -> Rate:
        return Rate(self.strict_success_rate, self.strict_ci_low, self.strict_ci_high)


class ScoreMean(Source):
    """The mean of a score over the `num_tasks` tasks that test it, and its standard deviation."""

    mean: float | None
    std: float | None = None
    num_tasks: int


class CostRate(Source):
    """The share of tasks with harm, played greedily, with its interval, and of sampled plays."""

    rate: Share
    ci_low: Share
    ci_high: Share
    sampled_rate: Share | None
    num_tasks: int


class Evaluation(Success):
    """`reports/evaluate/<policy>.json`. `pass_hat_4` is None where no task has four episodes that
    were not aborted, and `paraphrase` where that split is empty. `failures` counts the classes that
    occurred, `scores` are those that the world gave, by name; `beside` has the rates of the other
    splits that were played; `num_lost` aborted episodes count nowhere. `processor` is the kind that
    computed it."""

    pass_hat_4: Share | None
    strict_pass_hat_4: Share | None
    num_lost: int
    scores: dict[str, ScoreMean]
    costs: dict[str, CostRate] = {}
    turns_mean: float
    reward_mean: float
    failures: dict[str, int]
    by: dict[str, dict[str, Success]]
    paraphrase: Success | None
    beside: dict[str, Success] = {}
    processor: str = ""


class TranscriptMessage(Source):
    """`calls` are (tool, arguments as written)."""

    role: str
    content: Text = ""
    reasoning: Text = ""
    calls: list[tuple[Text, Text]] = []


class TaskRecord(Source):
    """A line of `reports/evaluate/<policy>.tasks.jsonl`; `cell` is the values of the task's labels
    (`tool_selection/zh/1`), `failure` None for a success, `wanted` the goal for a reader."""

    task_id: str
    split: str
    cell: str
    success: bool
    strict_success: bool
    reward: float
    turns: int
    stop_reason: str
    failure: str | None
    transcript: list[TranscriptMessage]
    wanted: Text = ""


class _ResultLine(Source):
    model_config = ConfigDict(strict=True)
    task_id: str
    split: str
    cell: str
    success: bool
    strict_success: bool
    samples: list[int]
    failure: str | None


class TaskResult(NamedTuple):
    """A task's results; `text` is its line of `<policy>.tasks.jsonl`, transcript included.

    `success` is 0 or 1, or the mean where another tool repeated the task. `strict_success` is None
    where another tool evaluated it, `sampled` also where all sampled episodes were aborted.
    """

    task_id: str
    split: str
    cell: str
    success: float
    failure: str | None
    text: bytes
    strict_success: float | None = None
    sampled: float | None = None

    def outcome(self, measure: Measure) -> float | None:
        by = {Measure.STRICT: self.strict_success, Measure.PLAIN: self.success, Measure.SAMPLED: self.sampled}
        return by[measure]


class SftLine(Source):
    """A line of `reports/train_sft/metrics.jsonl`, of a training step or of an evaluation: either
    loss may be absent. None stands for no number."""

    step: int
    loss: float | None = None
    loss_reasoning: float | None = None
    loss_call: float | None = None
    eval_loss: float | None = None


class GrpoLine(Source):
    """A line of `reports/train_policy/metrics.jsonl` of training online."""

    step: int
    success: Share
    strict_success: Share
    reward_mean: float
    reward_std: float
    reward_std_batch: float
    frac_reward_zero_std: Share
    frac_reward_zero_std_all_bad: Share
    frac_reward_zero_std_all_good: Share
    frac_reward_zero_std_other: Share
    frac_tokens_nonzero_advantage: Share
    tool_failures: float
    entropy: float
    kl: float | None
    length: float
    turns: float
    learnt_reward_mean: float | None = None
    cost_write_before_consent: float | None = None
    cost_weight_write_before_consent: float | None = None
    alarms: str | None = None


class DpoLine(Source):
    """A line of the same file of training on pairs (DPO, KTO, ORPO)."""

    step: int
    loss: float
    pair_accuracy: Share
    margin: float


class OwnLine(Source):
    """A line of the same file of rejection sampling: of a round's plays, of an optimizer step on
    the accepted episodes, or of dev tasks."""

    step: int
    loss: float | None = None
    success: Share | None = None
    strict_success: Share | None = None
    dev_success: Share | None = None
    dev_strict_success: Share | None = None


PolicyLine = GrpoLine | DpoLine | OwnLine


class ValidationSummary(Source):
    """`reports/validate_data/summary.json`."""

    num_demonstrations: int
    num_kept: int
    num_quarantined: int
    quarantined_frac: Share
    quarantined_by_rule: dict[str, int]


class CellCounts(Source):
    """Demonstrations of one cell after validation and after resampling."""

    validated: int
    after: int


class ResamplingSummary(Source):
    """`reports/resample_data/summary.json`; `contamination` is the share of synthetic points whose
    neighbours are mostly of another cell."""

    num_validated: int
    num_after_quality: int
    num_after_coreset: int
    num_realised: int
    num_duplicated: int
    num_after: int
    contamination: Share
    cells: dict[str, CellCounts]


class PreferencesSummary(Source):
    """`reports/sample_preferences/summary.json`."""

    num_tasks: int = 0  # that episodes were sampled of; of imported preferences nothing more is known
    num_samples: int = 0
    num_pairs: int
    num_ties: int = 0
    success_rate: Share = 0.0
    strict_success_rate: Share = 0.0
    num_success_over_failure: int
    num_strict_over_plain: int
    num_said: int = 0
    num_verdicts: int = 0


class ReliabilityBin(Source):
    """Held-out pairs of one bin of confidence, which is the mean predicted probability."""

    num_pairs: int
    confidence: Share
    accuracy: Share


class BestOf(Source):
    """Success when one of four episodes is picked by the model, at random, or by an oracle."""

    num_groups: int
    picked: Share
    random: Share
    oracle: Share


class RewardModelSummary(Source):
    """`reports/train_reward_model/summary.json`, all on tasks that the model never saw."""

    num_pairs: int
    num_held_out_pairs: int
    accuracy: Share | None = None  # where nothing was compared
    accuracy_low: Share | None = None  # unknown to reports of older code
    accuracy_high: Share | None = None
    accuracy_by_length: Share = 0.5
    accuracy_by_turns: Share = 0.5
    calibration_error: float = 0.0
    reliability: list[ReliabilityBin] = []
    best_of_4: BestOf | None = None
    best_of_8: BestOf | None = None

    @property
    def is_better_than_counting(self) -> bool:
        return (self.accuracy or 0.0) > max(self.accuracy_by_length, self.accuracy_by_turns)


def read_object(path: Path, kind: type[Read]) -> Read:
    """Read a JSON file. Raises DataError that names file, field and remedy."""
    return _validated(path, kind, _text(path), where="")


def read_policy_lines(path: Path) -> list[PolicyLine]:
    """Read `reports/train_policy/metrics.jsonl`, whose lines are of one kind, or of several where
    phases follow each other."""
    return read_lines(path, _policy_kind)


def _policy_kind(line: str) -> type[PolicyLine]:
    if '"pair_accuracy"' in line:
        return DpoLine
    return GrpoLine if '"reward_std"' in line else OwnLine


def read_lines(path: Path, kind: type[Read] | Callable[[str], type[Read]]) -> list[Read]:
    """Read a JSONL file of lines of a kind, or of the kind that a function tells by the text.
    Raises DataError as `read_object` does, and where it has no line."""
    lines = [line for line in _text(path).split("\n") if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty, so there is nothing to draw: run `{_maker(path)}`")
    return [
        _validated(
            path,
            kind if isinstance(kind, type) else kind(line),
            line,
            where=f", line {number} of {len(lines)},",
        )
        for number, line in enumerate(lines, 1)
    ]


def parse_object(kind: type[Read], content: bytes) -> Read:
    """Parse one object. Raises ValueError with the first field that is missing or wrong."""
    try:
        return kind.model_validate(json.loads(content))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"it has another schema ({'.'.join(map(str, first['loc']))}: {first['msg']})") from error


def parse_results(
    content: bytes, known: dict[bytes, TaskResult | None] | None = None
) -> tuple[dict[str, TaskResult], str]:
    """Parse a `.tasks.jsonl` into results by task, and a sentence on the lines that are none.
    `known` holds lines of other runs, many of which are the same; these are added to it."""
    lines, known = content.splitlines(), {} if known is None else known
    known |= {line: _result(line) for line in lines if line not in known}
    results = [known[line] for line in lines]
    num_bad = results.count(None)
    problem = f" has {num_bad:,} lines that are no result of a task" if num_bad else ""
    return {result.task_id: result for result in results if result is not None}, problem


def parse_metrics(content: bytes) -> tuple[list[dict[str, Any]], str]:
    """Parse a `metrics.jsonl` up to the first line that cannot be read, which a training that runs
    may still be writing; and a sentence on that line."""
    lines: list[dict[str, Any]] = []
    texts = content.splitlines()
    for number, text in enumerate(texts, 1):
        try:
            line = _OBJECT.validate_json(text)
            if not isinstance(line["step"], int):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            return lines, f" is cut off in line {number} of {len(texts)}"
        if (version := line.get("definition_version", DEFINITION_VERSION)) != DEFINITION_VERSION:
            return [], f" measures groups by definition {version}, and this page by {DEFINITION_VERSION}"
        lines.append(line)
    return lines, ""


def held_out_outcomes(results: Mapping[str, TaskResult], measure: Measure) -> dict[str, float]:
    """Outcomes of the held-out tasks; tasks that did not record the measure are left out."""
    held_out = {name: result.outcome(measure) for name, result in results.items() if result.split == HELD_OUT}
    return {name: outcome for name, outcome in held_out.items() if outcome is not None}


def _result(line: bytes) -> TaskResult | None:
    """Result of a task; None where the line is cut off, or of another schema."""
    head, is_cut, _ = line.partition(_TRANSCRIPT)
    try:
        one = _ResultLine.model_validate_json(head + b"}" if is_cut else line)
    except ValidationError:
        return None
    sampled = sum(one.samples) / len(one.samples) if one.samples else None
    strict = float(one.strict_success)
    return TaskResult(one.task_id, one.split, one.cell, float(one.success), one.failure, line, strict, sampled)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing, and the report would be silent about it: run `{_maker(path)}`") from error
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): delete it and run `{_maker(path)}`") from error


def _validated(path: Path, kind: type[Read], text: str, *, where: str) -> Read:
    try:
        # NaN and infinity are refused: a chart would not show them.
        return kind.model_validate(json.loads(text, parse_constant=_refuse_constant))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}" for one in error.errors()]
        raise DataError(
            f"{path}{where} is not what the report reads ({'; '.join(problems[:4])}): it comes from other code; "
            f"run `{_maker(path)}`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}{where} is not whole JSON ({error}): delete it and run `{_maker(path)}`") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _maker(path: Path) -> str:
    """Command that writes a file of `reports/`, by its folder, which is a stage's."""
    stage = path.parent.name
    if stage == "experiments":
        return f"python -m flows.experiments experiments/{path.stem}.yaml"
    return f"dvc repro {stage}@{path.name.partition('.')[0]}" if stage == "evaluate" else f"dvc repro {stage}"
