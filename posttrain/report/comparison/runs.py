"""Reads the results of runs out of git's objects, through one process and without a checkout:
knobs, hashes, results of each task, curves.

A branch may come from other code, be half done or damaged. A file that cannot be read is a sentence
in `problems`, and the rest is shown; only a name that git does not know ends a comparison.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.pipeline.git import git, succeeds
from posttrain.provenance.costs import Cost
from posttrain.provenance.run_records import RECORDS, parse_records, result_key
from posttrain.report.arms import Arms
from posttrain.report.knobs import SEED, Knobs, parse_knobs
from posttrain.report.run_reader import (
    Evaluation,
    Measure,
    Read,
    ResamplingSummary,
    TaskResult,
    ValidationSummary,
    held_out_outcomes,
    parse_metrics,
    parse_object,
    parse_results,
)
from posttrain.runtime.exits import ConfigurationError

CURVES = {"SFT": "reports/train_sft/metrics.jsonl", "policy": "reports/train_policy/metrics.jsonl"}

_CODE, _REPORT, _TABLE = ("posttrain/", "stages/"), "report", ".parquet"
_PARAMS, _LOCK, _SEEDS = "params.yaml", "dvc.lock", "reports/experiments/seeds.json"
_RECORDS = RECORDS.as_posix()
_VALIDATION, _RESAMPLING = "reports/validate_data/summary.json", "reports/resample_data/summary.json"
# DVC writes its lock as no other tool does; as YAML a hundred of them would take seconds
_STAGE = re.compile(r"^  (?=\S)", re.MULTILINE)
_HASHED = re.compile(r"^    - path: (.+)\n(?:      hash: md5\n)?      md5: ([0-9a-f]{32}(?:\.dir)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LockedStage:
    """Inputs and outputs of a stage in dvc.lock, MD5s by path."""

    deps: Mapping[str, str]
    outs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Results of one run of the pipeline, read from a commit or from files of another tool.

    `name` is as it was asked for. `stages` is what dvc.lock records; `curves` the metrics of each
    training, by the keys of CURVES; `seed_rates` the policy's success in reports/experiments with
    these knobs and other seeds; `costs` of the stages that made these results, as far as they were
    committed.
    """

    name: str
    commit: str = ""
    author: str = ""
    committed_at: str = ""
    knobs: Knobs
    stages: Mapping[str, LockedStage]
    evaluation: Evaluation | None = None
    tasks: Mapping[str, TaskResult]
    curves: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=lambda: dict.fromkeys(CURVES, ()))
    validation: ValidationSummary | None = None
    resampling: ResamplingSummary | None = None
    seed_rates: Mapping[Measure, Sequence[float]] = field(default_factory=dict)
    problems: Sequence[str]
    is_dirty: bool = False
    costs: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def seed(self) -> Any:
        return self.knobs.get(SEED)

    def outcomes(self, measure: Measure = Measure.PLAIN) -> dict[str, float]:
        """Outcomes of the held-out tasks, those that recorded the measure."""
        return self._outcomes[measure]

    @cached_property
    def _outcomes(self) -> dict[Measure, dict[str, float]]:
        return {measure: held_out_outcomes(self.tasks, measure) for measure in Measure}

    @property
    def has_strict(self) -> bool:
        """True where strict success is known of every held-out task; other tools record none."""
        return self.outcomes().keys() == self.outcomes(Measure.STRICT).keys()

    @property
    def data(self) -> dict[str, str]:
        """MD5s, by path, of the tables that the stages made."""
        made = [stage.outs for stage in self.stages.values()]
        return {path: md5 for outs in made for path, md5 in outs.items() if path.endswith(_TABLE)}

    @property
    def code(self) -> dict[str, str]:
        """MD5s, by path, of the code that a policy's figures come from."""
        read = [stage.deps for name, stage in self.stages.items() if name != _REPORT]
        return {path: md5 for deps in read for path, md5 in deps.items() if path.startswith(_CODE)}


def read_runs(root: Path, names: Sequence[str], *, policy: str = "policy") -> list[RunResults]:
    """Read branches, tags or commits, in their order. `root` is the pipeline's folder, which may
    lie below its repository's. Raises ConfigurationError for a name that git does not know."""
    runs = read_commits(root, [_commit(root, name) for name in names], policy=policy)
    edited = _edited_branches(root)
    return [replace(run, is_dirty=_full_name(root, run.name) in edited) for run in runs]


class Commit(NamedTuple):
    """`name` is as it was asked for; `committed_at` has its zone: `2026-11-23T15:05:01+08:00`."""

    name: str
    id: str
    author: str
    committed_at: str


def read_commits(root: Path, commits: Sequence[Commit], *, policy: str = "policy") -> list[RunResults]:
    """Read commits in their order; whether a working tree has edits is not looked at."""
    files = _files(policy)
    objects = read_objects(root, [f"{commit.id}:./{file.path}" for commit in commits for file in files.values()])
    parsed: dict[tuple[str, str], tuple[Any, str]] = {}  # by path and hash: commits share most files
    runs = []
    for commit in commits:
        values, problems = dict[str, Any](), dict[str, str]()
        for kind, file in files.items():
            found = next(objects)
            if found is None:
                values[kind], problems[kind] = file.read(None)
                continue
            key = file.path, found.id
            if key not in parsed:
                parsed[key] = file.read(found.content)
            values[kind], problems[kind] = parsed[key]
        if "another schema" in problems["evaluation"]:  # a commit of other code: one sentence says so
            problems |= dict.fromkeys(("tasks", *CURVES), "")
        arms, records, curves = values.pop("arms"), values.pop("costs"), {name: values.pop(name) for name in CURVES}
        # Results from another tree's cache have no costs on record.
        keys = {name: result_key(stage.deps, stage.outs) for name, stage in values["stages"].items()} if records else {}
        runs.append(
            RunResults(
                name=commit.name,
                commit=commit.id,
                author=commit.author,
                committed_at=commit.committed_at,
                **values,
                curves=curves,
                seed_rates={one: arms.seed_rates(policy, values["knobs"], one) for one in Measure},
                problems=[problem for problem in problems.values() if problem],
                costs={name: records[name, key] for name, key in keys.items() if (name, key) in records},
            )
        )
    return runs


def _commit(root: Path, name: str) -> Commit:
    git(root, "rev-parse", "--git-dir")  # refuses a folder that is in no repository
    try:
        commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return Commit(name, *git(root, "show", "--no-patch", "--format=%H%x00%an%x00%cI", commit).split("\0"))
    except ConfigurationError as error:
        raise ConfigurationError(f"git knows no branch, tag or commit of the name {name!r}") from error


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a run and its parser. `parse` raises ValueError with what is wrong; `empty` stands
    for what cannot be had, which is a problem where `is_needed`."""

    path: str
    parse: Callable[[bytes], tuple[Any, str]]
    empty: Any
    is_needed: bool = True

    def read(self, content: bytes | None) -> tuple[Any, str]:
        """Its value, and a sentence on what is wrong with it, or none."""
        if content is None:
            return self.empty, f"no {self.path}" if self.is_needed else ""
        try:
            value, problem = self.parse(content)
        except (ValueError, RecursionError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            value, problem = self.empty, f" cannot be read: {lines[0]}"
        return value, f"{self.path}{problem}" if problem else ""


def _files(policy: str) -> dict[str, _File]:
    def object_at(path: str, kind: type[Read], empty: Read | None = None, *, is_needed: bool = False) -> _File:
        return _File(path, lambda content: (parse_object(kind, content), ""), empty, is_needed)

    evaluation = f"reports/evaluate/{policy}"
    return {
        "knobs": _File(_PARAMS, lambda content: (parse_knobs(content), ""), {}),
        "stages": _File(_LOCK, _stages, {}),
        "evaluation": object_at(f"{evaluation}.json", Evaluation, is_needed=True),
        "tasks": _File(f"{evaluation}.tasks.jsonl", partial(parse_results, known={}), {}),
        "validation": object_at(_VALIDATION, ValidationSummary),
        "resampling": object_at(_RESAMPLING, ResamplingSummary),
        "arms": object_at(_SEEDS, Arms, Arms()),
        "costs": _File(_RECORDS, lambda content: (parse_records(content), ""), {}, is_needed=False),
        **{name: _File(path, parse_metrics, ()) for name, path in CURVES.items()},
    }


def _stages(content: bytes) -> tuple[dict[str, LockedStage], str]:
    if re.search(rb"^<<<<<<< ", content, flags=re.MULTILINE):
        raise ValueError("it has a conflict of a merge, so it is two locks")
    stages = {}
    for block in _STAGE.split(content.decode())[1:]:
        read, _, written = block.partition("\n    outs:\n")
        name = block.partition(":\n")[0].strip("'\"")
        stages[name] = LockedStage(dict(_HASHED.findall(read)), dict(_HASHED.findall(written)))
    return stages, "" if stages or not content.strip() else " names no stage: it is no dvc.lock"


class Object(NamedTuple):
    """An object of git; `id` is its hash, equal for equal contents."""

    id: str
    content: bytes


def read_objects(root: Path, names: Sequence[str]) -> Iterator[Object | None]:
    """The object of each name, such as `0123abc:./params.yaml` (the dot is `root` itself); None of
    a name that git does not know. One at a time: all together would fill the memory.

    A name is a line to git, so it holds no newline: name commits by their hashes."""
    # A file, because git would stop reading names from a pipe while nobody reads its answers.
    with tempfile.TemporaryFile() as asked:
        asked.write("".join(f"{name}\n" for name in names).encode())
        asked.seek(0)
        command = ["git", "cat-file", "--buffer", "--batch=%(objectname) %(objectsize)"]
        with subprocess.Popen(command, cwd=root, stdin=asked, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for name in names:
                answer = process.stdout.readline()
                if not answer:
                    raise ConfigurationError(f"git cannot read {name} of {root}: `git fsck` says what is damaged")
                object_id, _, size = answer.decode().strip().rpartition(" ")
                if not size.isdigit():  # the name and `missing`, or `ambiguous`
                    yield None
                    continue
                yield Object(object_id, process.stdout.read(int(size)))
                process.stdout.read(1)  # the newline that git puts behind


def _full_name(root: Path, name: str) -> str:
    """`refs/heads/main` of `main`, and of `HEAD` where that is checked out; empty of a commit."""
    with contextlib.suppress(ConfigurationError):
        return git(root, "rev-parse", "--symbolic-full-name", "--verify", "--quiet", name)
    return ""


def _edited_branches(root: Path) -> set[str]:
    """Full names of the branches whose working tree has edits of tracked files."""
    found = set()
    for block in git(root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        folder, branch = Path(lines.get("worktree", "")), lines.get("branch")
        # a worktree's folder may have been deleted by hand
        if branch and folder.is_dir() and not succeeds(folder, "diff", "--quiet", "HEAD"):
            found.add(branch)
    return found
