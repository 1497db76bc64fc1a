"""Reads results of other tools, by task, as runs that can be compared: Inspect's logs
(`.eval`, `.json`), lm-eval's samples (`samples_*.jsonl`, or a folder of them), and the
`.tasks.jsonl` of an evaluation of ours.

A task is identified by its prompt and target, not by its place in a file. One that was sampled
several times (Inspect's epochs) has the mean of its scores. A sample that ended in an error is left
out: that the endpoint was away says nothing of a model.
"""

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.evals.rollout_files import is_unscored
from posttrain.report.comparison.foreign_logs import Log, Sample, content_of, read_log, samples_of
from posttrain.report.comparison.runs import LockedStage, RunResults
from posttrain.report.run_reader import HELD_OUT, TaskResult, parse_results
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.limits import reason

_OTHER_FORM = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, NotImplementedError)
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError)


def are_files(name: str) -> bool:
    """True where a name is of a file, of several with commas between, or of folders with lm-eval's
    samples; else it is a branch's."""
    return all(Path(part).is_file() or samples_of(Path(part)) for part in name.split(","))


def read_files(name: str, *, score: str = "") -> list[RunResults]:
    """The runs of a setting, one for each file. `score` names the one that counts, where samples
    have several.

    Raises DataError for a file that is damaged or in no known format, ConfigurationError where it
    has several scores and `score` is none of them, or is named twice."""
    parts = name.split(",")
    if len({Path(part).resolve() for part in parts}) < len(parts):
        raise ConfigurationError(f"{name} names a file twice: one run is not two seeds; name it once")
    return [_run(Path(part), name, seed, score) for seed, part in enumerate(parts, 1)]


def _run(file: Path, setting: str, seed: int, score: str) -> RunResults:
    try:
        tasks, problems = _results(file, score)
    except (*_OTHER_FORM, *_DAMAGED) as error:
        what = reason(" ".join(f"{type(error).__name__}: {error}".split()))
        raise DataError(
            f"{file} is damaged, or no log of Inspect or lm-eval ({what}): write it anew, or leave it out"
        ) from error
    knobs = {"results": setting, "seed": seed}
    return RunResults(name=str(file), knobs=knobs, stages={"": LockedStage({}, {})}, tasks=tasks, problems=problems)


def _results(file: Path, score: str) -> tuple[dict[str, TaskResult], list[str]]:
    """Results by task, and sentences on what is wrong."""
    if file.name.endswith(".tasks.jsonl"):
        tasks, problem = parse_results(content_of(file))
        return tasks, [f"it{problem}"] if problem else []
    log = read_log(file)
    tasks, num_without = _tasks(log.samples, _counted_score(file, log, score))
    problems = [log.problem] if log.problem else []
    if num_without:
        left_out = "ended in an error or have no score: they are left out, and are no failures"
        problems.append(f"{num_without:,} of {len(log.samples):,} plays {left_out}")
    return tasks, problems


def _counted_score(file: Path, log: Log, wanted: str) -> str:
    names = list(dict.fromkeys(name for sample in log.samples for name in sample.scores))
    if not names:
        raise DataError(f"{file} holds no scored sample{f': {log.problem}' if log.problem else ''}")
    if wanted in names or (len(names) == 1 and not wanted):
        return wanted or names[0]
    raise ConfigurationError(
        f"{file} has the scores {reason(', '.join(names))}: name the one that counts, with --score"
    )


def _tasks(samples: Sequence[Sample], score: str) -> tuple[dict[str, TaskResult], int]:
    """Results by a digest of the prompt and target, and the number of samples without a score."""
    by_task: dict[str, tuple[list[float], Sample]] = {}
    num_without = 0
    for sample in samples:
        value = sample.scores.get(score)
        if is_unscored(value):
            num_without += 1
            continue
        text = json.dumps(sample.task, sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
        by_task.setdefault(name, ([], sample))[0].append(_share(value))
    return {name: _mean(name, shares, first.messages) for name, (shares, first) in by_task.items()}, num_without


def _mean(name: str, shares: Sequence[float], messages: Sequence[Mapping[str, Any]]) -> TaskResult:
    text = json.dumps({"transcript": list(messages)}).encode()
    return TaskResult(name, HELD_OUT, cell="", success=sum(shares) / len(shares), failure=None, text=text)


def _share(value: Any) -> float:
    """The score as a share. Raises ValueError where it is none."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ValueError(f"the score {value!r} is no success between 0 and 1")
    return float(value)
