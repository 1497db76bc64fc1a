"""A run of the pipeline as a commit holds it: knobs, hashes, results of each task, curves.

A branch may come from other code, be half done or damaged. What cannot be read of it is a sentence
in `problems`, and the rest is shown; only a name that git does not know ends a comparison.
"""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from posttrain.pipeline.git import git
from posttrain.provenance.costs import Cost
from posttrain.provenance.run_records import RECORDS, parse_records, result_key
from posttrain.report.arms import Arms
from posttrain.report.comparison.git_objects import object_ids, read_objects
from posttrain.report.comparison.worktrees import branches_with_edits
from posttrain.report.knobs import SEED, parse_knobs
from posttrain.report.sources import HELD_OUT, Evaluation, Read, ResamplingSummary, Source, ValidationSummary
from posttrain.runtime.exits import ConfigurationError

CURVES = {"SFT": "reports/train_sft/metrics.jsonl", "policy": "reports/train_policy/metrics.jsonl"}
DEFINITION_VERSION = 2  # of the metrics of groups: those of another one measure something else

_CODE, _REPORT, _TABLE = ("posttrain/", "stages/"), "report", ".parquet"
_PARAMS, _LOCK, _SEEDS = "params.yaml", "dvc.lock", "reports/experiments/seeds.json"
_RECORDS = RECORDS.as_posix()
_VALIDATION, _RESAMPLING = "reports/validate_data/summary.json", "reports/resample_data/summary.json"
# DVC writes its lock as no other tool does; as YAML a hundred of them would take seconds
_STAGE = re.compile(r"^  (?=\S)", re.MULTILINE)
_HASHED = re.compile(r"^    - path: (.+)\n(?:      hash: md5\n)?      md5: ([0-9a-f]{32}(?:\.dir)?)$", re.MULTILINE)
_CONFLICT = re.compile(rb"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
_TRANSCRIPT = b', "transcript": '
_OBJECT = TypeAdapter(dict[str, Any])


class PlayedTask(NamedTuple):
    """A line of an evaluation's `.tasks.jsonl`; `text` is the whole of it, with the transcript.
    `success` is 0 or 1; of several plays of the task it is their mean. `strict_success` is None
    where it was not recorded."""

    task_id: str
    split: str
    cell: str
    success: float
    failure: str | None
    text: bytes
    strict_success: float | None = None


class _TaskLine(Source):
    model_config = ConfigDict(strict=True)
    task_id: str
    split: str
    cell: str
    success: bool
    strict_success: bool | None = None
    failure: str | None


@dataclass(frozen=True, slots=True)
class LockedStage:
    """What a stage read and wrote, the MD5s by path."""

    deps: Mapping[str, str]
    outs: Mapping[str, str]

    @property
    def key(self) -> str:
        """As `posttrain.provenance.run_records` has it."""
        return result_key(self.deps, self.outs)


@dataclass(frozen=True)
class Run:
    """`name` is as it was asked for. `knobs` are by their place, `train_sft.lr`; `stages` what
    dvc.lock records of each; `curves` the lines of each training's metrics, by the keys of CURVES;
    `seed_rates` the success in reports/experiments/seeds.json with these knobs and other seeds, and
    `strict_seed_rates` the strict one; `costs` what
    each stage took to make these results, as far as its record was committed. `root` is the tree
    that it was read in, None of a run from elsewhere."""

    name: str
    commit: str
    author: str
    committed_at: str
    knobs: Mapping[str, Any]
    stages: Mapping[str, LockedStage]
    evaluation: Evaluation | None
    tasks: Mapping[str, PlayedTask]
    curves: Mapping[str, Sequence[Mapping[str, Any]]]
    validation: ValidationSummary | None
    resampling: ResamplingSummary | None
    seed_rates: Sequence[float]
    problems: Sequence[str]
    is_dirty: bool
    strict_seed_rates: Sequence[float] = ()
    costs: Mapping[str, Cost] = field(default_factory=dict)
    root: Path | None = None

    @property
    def seed(self) -> Any:
        return self.knobs.get(SEED)

    @cached_property
    def outcomes(self) -> dict[str, float]:
        """Of the held-out tasks."""
        return {name: task.success for name, task in self.tasks.items() if task.split == HELD_OUT}

    @cached_property
    def strict_outcomes(self) -> dict[str, float] | None:
        """Strict success; None where it was not recorded of every held-out task."""
        held_out = {name: task.strict_success for name, task in self.tasks.items() if task.split == HELD_OUT}
        strict = {name: success for name, success in held_out.items() if success is not None}
        return strict if len(strict) == len(held_out) else None

    def outcomes_by(self, *, is_strict: bool) -> dict[str, float]:
        """Strict success, where it was recorded, or success."""
        return (self.strict_outcomes if is_strict else None) or self.outcomes

    @cached_property
    def data(self) -> dict[str, str]:
        """The MD5s, by path, of the tables that the stages made."""
        made = [stage.outs for stage in self.stages.values()]
        return {path: md5 for outs in made for path, md5 in outs.items() if path.endswith(_TABLE)}

    @cached_property
    def code(self) -> dict[str, str]:
        """The MD5s, by path, of what all stages ran that a policy's figures come from."""
        read = [stage.deps for name, stage in self.stages.items() if name != _REPORT]
        return {path: md5 for deps in read for path, md5 in deps.items() if path.startswith(_CODE)}


def read_runs(root: Path, names: Sequence[str], *, policy: str = "policy") -> list[Run]:
    """Of branches, tags or commits, in their order. `root` is the pipeline's folder, which may lie
    below its repository's. Raises ConfigurationError for a name that git does not know."""
    commits = object_ids(root, [f"{name}^{{commit}}" for name in names])
    if unknown := [name for name, commit in zip(names, commits, strict=True) if commit is None]:
        raise ConfigurationError(f"git knows no branch, tag or commit of the name {', '.join(map(repr, unknown))}")
    evaluation, played = f"reports/evaluate/{policy}.json", f"reports/evaluate/{policy}.tasks.jsonl"
    files = [
        _File(_PARAMS, lambda content: (parse_knobs(content), ""), {}),
        _File(_LOCK, _stages, {}),
        _File(evaluation, partial(parse_object, Evaluation), None),
        _File(played, partial(parse_tasks, known={}), {}),
        _File(_VALIDATION, partial(parse_object, ValidationSummary), None, is_needed=False),
        _File(_RESAMPLING, partial(parse_object, ResamplingSummary), None, is_needed=False),
        _File(_SEEDS, partial(parse_object, Arms), Arms(), is_needed=False),
        _File(_RECORDS, lambda content: (parse_records(content), ""), {}, is_needed=False),
        *(_File(path, parse_curve, ()) for path in CURVES.values()),
    ]
    blobs = object_ids(root, [f"{commit}:./{file.path}" for commit in commits for file in files])
    read, signed = _read_once(root, files, blobs), _signatures(root, [str(commit) for commit in commits])
    with_edits = branches_with_edits(root, names)
    runs = []
    for index, (name, commit) in enumerate(zip(names, commits, strict=True)):
        values, problems = {}, []
        for file, blob in zip(files, blobs[index * len(files) :], strict=False):
            values[file.path], problem = read[file.path, blob]
            problems += [problem] * bool(problem)
        author, committed_at = signed[str(commit)]
        runs.append(
            Run(
                name=name,
                commit=str(commit),
                author=author,
                committed_at=committed_at,
                knobs=values[_PARAMS],
                stages=values[_LOCK],
                evaluation=values[evaluation],
                tasks=values[played],
                curves={name: values[path] for name, path in CURVES.items()},
                validation=values[_VALIDATION],
                resampling=values[_RESAMPLING],
                seed_rates=values[_SEEDS].seed_rates(policy, values[_PARAMS], is_strict=False),
                strict_seed_rates=values[_SEEDS].seed_rates(policy, values[_PARAMS], is_strict=True),
                problems=problems,
                is_dirty=name in with_edits,
                costs=_costs_of(values[_LOCK], values[_RECORDS]),
                root=root,
            )
        )
    return runs


def _costs_of(stages: Mapping[str, LockedStage], records: Mapping[tuple[str, str], Cost]) -> dict[str, Cost]:
    """A branch from before they were committed has none, and so has what another tree's cache had
    already."""
    if not records:
        return {}
    keys = {name: stage.key for name, stage in stages.items()}
    return {name: records[name, key] for name, key in keys.items() if (name, key) in records}


def _read_once(
    root: Path, files: Sequence["_File"], blobs: Sequence[str | None]
) -> dict[tuple[str, str | None], tuple[Any, str]]:
    """What is in each of `blobs`, by its file's path and its hash; they are of `files` in turn."""
    read: dict[tuple[str, str | None], tuple[Any, str]] = {(file.path, None): file.read(None) for file in files}
    readers: dict[str, dict[str, _File]] = {}
    for file, blob in zip(itertools.cycle(files), blobs, strict=False):
        if blob is not None:
            readers.setdefault(blob, {})[file.path] = file
    for blob, content in read_objects(root, readers):
        read |= {(path, blob): file.read(content) for path, file in readers[blob].items()}
    return read


@dataclass(frozen=True, slots=True)
class _File:
    """How one file of a run is read. `parse` raises ValueError with what is wrong; `empty` stands
    for what cannot be had, which is a problem where `is_needed`."""

    path: str
    parse: Callable[[bytes], tuple[Any, str]]
    empty: Any
    is_needed: bool = True

    def read(self, content: bytes | None) -> tuple[Any, str]:
        """What it holds, and a sentence on what is wrong with it, or none."""
        if content is None:
            return self.empty, f"no {self.path}" if self.is_needed else ""
        try:
            value, problem = self.parse(content)
        except (ValueError, RecursionError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            value, problem = self.empty, f" cannot be read: {lines[0]}"
        if problem and _CONFLICT.search(content):
            return self.empty, f"{self.path} has a conflict of a merge"
        return value, f"{self.path}{problem}" if problem else ""


def _stages(content: bytes) -> tuple[dict[str, LockedStage], str]:
    if _CONFLICT.search(content):
        raise ValueError("it is two locks")
    stages = {}
    for block in _STAGE.split(content.decode())[1:]:
        read, _, written = block.partition("\n    outs:\n")
        name = block.partition(":\n")[0].strip("'\"")
        stages[name] = LockedStage(dict(_HASHED.findall(read)), dict(_HASHED.findall(written)))
    return stages, "" if stages or not content.strip() else " names no stage: it is no dvc.lock"


def parse_object(kind: type[Read], content: bytes) -> tuple[Read, str]:
    """One object of a file, and nothing. Raises ValueError where it is none of this kind."""
    try:
        return kind.model_validate(json.loads(content)), ""
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"it has another schema ({'.'.join(map(str, first['loc']))}: {first['msg']})") from error


def parse_tasks(
    content: bytes, known: dict[bytes, PlayedTask | None] | None = None
) -> tuple[dict[str, PlayedTask], str]:
    """The lines of a `.tasks.jsonl` by task, and what is wrong with those that are none. `known`
    are lines of other runs, which play many a task alike; these are added to it."""
    lines, known = content.splitlines(), {} if known is None else known
    known |= {line: _task(line) for line in lines if line not in known}
    tasks = [known[line] for line in lines]
    num_bad = tasks.count(None)
    problem = f" has {num_bad:,} lines that are no played task" if num_bad else ""
    return {task.task_id: task for task in tasks if task is not None}, problem


def _task(line: bytes) -> PlayedTask | None:
    """None where the line is cut, or other code wrote it."""
    head, is_cut, _ = line.partition(_TRANSCRIPT)
    try:
        one = _TaskLine.model_validate_json(head + b"}" if is_cut else line)
    except ValidationError:
        return None
    strict = None if one.strict_success is None else float(one.strict_success)
    return PlayedTask(one.task_id, one.split, one.cell, float(one.success), one.failure, line, strict)


def parse_curve(content: bytes) -> tuple[list[dict[str, Any]], str]:
    """The lines of a `metrics.jsonl` before the first that cannot be read, and what is wrong with
    that."""
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


def _signatures(root: Path, commits: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Author, and when it was committed, with its zone: `2026-11-23T15:05:01+08:00`."""
    text = git(root, "rev-list", "--no-walk", "--stdin", "--format=%H%x00%an%x00%cI", text="\n".join(commits))
    rows = [line.split("\0") for line in text.splitlines()[1::2]]  # git names each commit in a line before
    return {commit: (author, committed_at) for commit, author, committed_at in rows}
