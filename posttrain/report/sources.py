"""What the report reads: the small JSON and JSONL files of the other stages, as typed values.

The report is the last stage and its page is what people believe, so it is strict: a file that is
missing, cut off or lacks a field ends it with a message that names file, field and remedy. Fields
it has no use for are ignored, so that a stage may add some.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from posttrain.runtime.exits import DataError

Share = Annotated[float, Field(ge=0, le=1)]
# Half a surrogate pair, which JSON can write and UTF-8 cannot, becomes a question mark: an agent's
# garbage must not stop the report.
Text = Annotated[
    str, BeforeValidator(lambda text: text.encode(errors="replace").decode() if isinstance(text, str) else text)
]
Read = TypeVar("Read", bound=BaseModel)
HELD_OUT = "test"  # the split of the figures that are claimed
_TRANSCRIPT = ', "transcript": '  # in a played task's line what is asked for stands before it


class Source(BaseModel):
    """One object of a file that another stage wrote."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Rate(NamedTuple):
    """A share of tasks, and the interval that it lies in."""

    share: float
    low: float
    high: float


class Success(Source):
    """Success rates over `num_tasks` tasks, greedy, each with its interval; the strict one is None
    in files from before it was recorded."""

    success_rate: Share
    ci_low: Share
    ci_high: Share
    num_tasks: int
    strict_success_rate: Share | None = None
    strict_ci_low: Share | None = None
    strict_ci_high: Share | None = None

    @property
    def plain(self) -> Rate:
        return Rate(self.success_rate, self.ci_low, self.ci_high)

    @property
    def strict(self) -> Rate | None:
        """None where it was not recorded."""
        share, low, high = self.strict_success_rate, self.strict_ci_low, self.strict_ci_high
        return None if share is None or low is None or high is None else Rate(share, low, high)

    @property
    def leading(self) -> Rate:
        """The strict success where it was recorded, else the plain one."""
        return self.strict or self.plain


class ScoreMean(Source):
    """The mean of a score over the `num_tasks` tasks that test it."""

    mean: float | None
    num_tasks: int


class Evaluation(Success):
    """`reports/evaluate/<policy>.json`. `pass_hat_4` is None where no task has four plays that were
    not lost, and `paraphrase` where that split is empty. `failures` counts the classes that
    occurred, `scores` are those that the world gave, by name, and `num_lost` plays count nowhere.
    `processor` is the kind that computed it.

    Files from before `scores` have four abilities in their place, None where no task tests one, and
    `num_tool_tasks` and `num_plan_tasks`, how many tasks need a tool, and two calls or more."""

    pass_hat_4: Share | None
    strict_pass_hat_4: Share | None = None
    num_lost: int = 0
    scores: dict[str, ScoreMean] = {}
    tool_selection_accuracy: Share | None = None
    plan_success: Share | None = None
    timing_precision: Share | None = None
    turns_mean: float
    reward_mean: float
    failures: dict[str, int]
    by: dict[str, dict[str, Success]]
    paraphrase: Success | None
    processor: str = ""
    num_tool_tasks: int = 0
    num_plan_tasks: int = 0


class TranscriptMessage(Source):
    """`calls` are (tool, arguments as written)."""

    role: str
    content: Text = ""
    reasoning: Text = ""
    calls: list[tuple[Text, Text]] = []


class TaskRecord(Source):
    """A line of `reports/evaluate/<policy>.tasks.jsonl`; `cell` is the values of the task's labels
    (`tool_selection/zh/1`), `failure` None for a success, `wanted` the goal for a reader.
    `strict_success` is None in files from before it was recorded."""

    task_id: str
    split: str
    cell: str
    success: bool
    strict_success: bool | None = None
    reward: float
    turns: int
    stop_reason: str
    failure: str | None
    transcript: list[TranscriptMessage]
    wanted: Text = ""


class SftLine(Source):
    """A line of `reports/train_sft/metrics.jsonl`, of a training step or of an evaluation: either
    loss may be absent. None stands for no number."""

    step: int
    loss: float | None = None
    loss_reasoning: float | None = None
    loss_call: float | None = None
    eval_loss: float | None = None


class GrpoLine(Source):
    """A line of `reports/train_policy/metrics.jsonl` where groups of episodes were played."""

    step: int
    success: Share
    strict_success: Share | None = None
    reward_mean: float
    reward_std: float
    reward_std_batch: float
    frac_reward_zero_std: Share
    frac_reward_zero_std_all_bad: Share
    frac_reward_zero_std_all_good: Share
    frac_reward_zero_std_other: Share
    frac_tokens_nonzero_advantage: Share
    entropy: float
    kl: float | None
    length: float
    turns: float
    alarms: str | None = None


class DpoLine(Source):
    """The same file where it was learnt from pairs, by DPO, KTO or ORPO: `pair_accuracy` is the
    share of a step's pairs in the right order."""

    step: int
    loss: float
    pair_accuracy: Share
    margin: float


class ValidationSummary(Source):
    """`reports/validate_data/summary.json`."""

    num_demonstrations: int
    num_kept: int
    num_quarantined: int
    quarantined_frac: Share
    quarantined_by_rule: dict[str, int]


class CellCounts(Source):
    """Demonstrations of one cell: as validated, and as training sees them."""

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

    num_tasks: int
    num_samples: int
    num_pairs: int
    num_ties: int
    success_rate: Share
    strict_success_rate: Share | None = None
    num_success_over_failure: int | None = None  # None, as the next, from before it was recorded
    num_strict_over_plain: int | None = None


class ReliabilityBin(Source):
    """Held-out pairs by how sure the model was: mean probability of the winner it predicted, and
    how often it was right."""

    num_pairs: int
    confidence: Share
    accuracy: Share


class BestOf(Source):
    """Success when one of four episodes is taken: by the reward model, at random, and by one who
    knows."""

    num_groups: int
    picked: Share
    random: Share
    oracle: Share


class RewardModelSummary(Source):
    """`reports/train_reward_model/summary.json`, all on tasks that the model never saw."""

    num_pairs: int
    num_held_out_pairs: int
    accuracy: Share
    accuracy_by_length: Share
    accuracy_by_turns: Share
    calibration_error: float
    reliability: list[ReliabilityBin]
    best_of_4: BestOf

    @property
    def is_better_than_counting(self) -> bool:
        return self.accuracy > max(self.accuracy_by_length, self.accuracy_by_turns)


def read_object(path: Path, kind: type[Read]) -> Read:
    """The object in a JSON file. Raises DataError as above."""
    try:
        return kind.model_validate(_parsed(_text(path)))
    except ValidationError as error:
        raise DataError(_complaint(path, error)) from error
    except ValueError as error:
        raise DataError(f"{path} is not whole JSON ({error}): delete it and run `{_maker(path)}`") from error


def read_lines(path: Path, kind: type[Read]) -> list[Read]:
    """The objects in a JSONL file, in order. Raises DataError as above, with the line's number; a
    file without lines is an error too."""
    lines = [line for line in _text(path).split("\n") if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty, so there is nothing to draw: run `{_maker(path)}`")
    objects: list[Read] = []
    for number, line in enumerate(lines, 1):
        try:
            objects.append(kind.model_validate(_parsed(line)))
        except ValidationError as error:
            raise DataError(_complaint(path, error, line=number)) from error
        except ValueError as error:
            cut = "the last line is cut off" if number == len(lines) else f"line {number} of {len(lines)} is not JSON"
            raise DataError(f"{path}: {cut} ({error}): delete it and run `{_maker(path)}`") from error
    return objects


def held_out_outcomes(text: str, *, is_strict: bool = False) -> dict[str, float]:
    """Success by task, 0 or 1, of the held-out tasks in a `.tasks.jsonl`, or their strict success;
    lines that are none, or did not record it, are left out."""
    field = "strict_success" if is_strict else "success"
    return _held_out(text, lambda record: float(record[field] is True))


def held_out_samples(text: str) -> dict[str, float]:
    """The share of successes among each held-out task's sampled plays; a task that lost all of
    them is left out, and so are lines that are none."""
    return _held_out(text, lambda record: sum(record["samples"]) / len(record["samples"]))


def _held_out(text: str, figure: Callable[[Mapping[str, Any]], float]) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        try:
            record = json.loads(line.partition(_TRANSCRIPT)[0] + "}" if _TRANSCRIPT in line else line)
            if record["split"] == HELD_OUT:
                found[str(record["task_id"])] = figure(record)
        except (ValueError, KeyError, TypeError, RecursionError, ZeroDivisionError):
            continue
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing, and the report would be silent about it: run `{_maker(path)}`") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}): delete it and run `{_maker(path)}`") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): move away what is in its place and run `{_maker(path)}`"
        ) from error


def _parsed(text: str) -> Any:
    """Raises ValueError for NaN and infinity too: no stage writes them, and a chart would be silent
    about them."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _complaint(path: Path, error: ValidationError, *, line: int | None = None) -> str:
    where = f"{path}, line {line}" if line else str(path)
    problems: Sequence[str] = [
        f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}" for problem in error.errors()
    ]
    return (
        f"{where} is not what the report reads ({'; '.join(problems[:4])}): it comes from other code; "
        f"run `{_maker(path)}`"
    )


def _maker(path: Path) -> str:
    """The command that writes a file of `reports/`. A folder is its stage's; `evaluate@sft` is one
    policy's evaluation."""
    stage = path.parent.name
    if stage == "experiments":
        return f"python -m flows.experiments experiments/{path.stem}.yaml"
    return f"dvc repro {stage}@{path.name.partition('.')[0]}" if stage == "evaluate" else f"dvc repro {stage}"
