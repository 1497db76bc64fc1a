"""Results of each task that other tools wrote, as runs that can be compared: Inspect's logs
(`.eval`, `.json`), lm-eval's samples (`samples_*.jsonl`, or a folder of them), promptfoo's results
(`.json`), and the `.tasks.jsonl` of an evaluation of ours.

A task is known by what it asks and wants, not by its place in a file. One that was played several
times (Inspect's epochs) has the mean of its scores. A play that ended in an error has none, and is
left out: that the endpoint was away says nothing of a model.
"""

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.evals.rollout_files import is_unscored
from posttrain.report.comparison.foreign_logs import Log, Play, content_of, read_log, samples_of
from posttrain.report.comparison.runs import LockedStage, PlayedTask, Run, parse_tasks
from posttrain.report.sources import HELD_OUT
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.limits import reason

_NOT_READ = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)  # of JSON in another form


def are_files(name: str) -> bool:
    """Whether what was given in a branch's place is a file, or several with commas between; or
    folders with lm-eval's samples."""
    return all(Path(part).is_file() or samples_of(Path(part)) for part in name.split(","))


def read_files(name: str, *, score: str = "") -> list[Run]:
    """The runs of a setting: one for each file, or each column of a promptfoo file (a model and a
    prompt), which are settings of their own. `score` names the one that counts, where plays have
    several.

    Raises DataError for a file that is damaged or in no known format, ConfigurationError where it
    has several scores and `score` is none of them, or is named twice."""
    parts = name.split(",")
    if len({Path(part).resolve() for part in parts}) < len(parts):
        raise ConfigurationError(f"{name} names a file twice: one play is not two seeds; name it once")
    return [run for seed, part in enumerate(parts, 1) for run in _runs(Path(part), name, seed, score)]


def _runs(file: Path, setting: str, seed: int, score: str) -> Iterator[Run]:
    try:
        if file.name.endswith(".tasks.jsonl"):
            tasks, problem = parse_tasks(content_of(file))
            yield _run(str(file), setting, seed, tasks, [f"it{problem}"] if problem else [])
            return
        log = read_log(file)
        counted = _counted_score(file, log, score)
        sources: dict[str, list[Play]] = {}
        for play in log.plays:
            sources.setdefault(play.source, []).append(play)
        for source, plays in sources.items():
            name, label = (f"{whole}: {source}" if len(sources) > 1 else whole for whole in (str(file), setting))
            tasks, num_without = _tasks(plays, counted)
            problems = [log.problem] if log.problem else []
            if num_without:
                left_out = "ended in an error or have no score: they are left out, and are no failures"
                problems.append(f"{num_without:,} of {len(plays):,} plays {left_out}")
            yield _run(name, label, seed, tasks, problems)
    except (*_NOT_READ, zipfile.BadZipFile, zlib.error, struct.error, OSError) as error:
        what = reason(" ".join(f"{type(error).__name__}: {error}".split()))
        raise DataError(
            f"{file} is damaged, or no log of Inspect, lm-eval or promptfoo ({what}): write it anew, or leave it out"
        ) from error


def _run(name: str, setting: str, seed: int, tasks: Mapping[str, PlayedTask], problems: Sequence[str]) -> Run:
    return Run(
        name=name,
        commit="",
        author="",
        committed_at="",
        knobs={"results": setting, "seed": seed},
        stages={"": LockedStage({}, {})},
        evaluation=None,
        tasks=tasks,
        curves={"SFT": (), "policy": ()},
        validation=None,
        resampling=None,
        seed_rates=(),
        problems=problems,
        is_dirty=False,
    )


def _counted_score(file: Path, log: Log, wanted: str) -> str:
    names = list(dict.fromkeys(name for play in log.plays for name in play.scores))
    if not names:
        raise DataError(f"{file} holds no scored play{f': {log.problem}' if log.problem else ''}")
    if wanted in names or (len(names) == 1 and not wanted):
        return wanted or names[0]
    raise ConfigurationError(
        f"{file} has the scores {reason(', '.join(names))}: name the one that counts, with --score"
    )


def _tasks(plays: Sequence[Play], score: str) -> tuple[dict[str, PlayedTask], int]:
    """By what is asked, and how many plays have no score."""
    by_task: dict[str, tuple[list[float], Play]] = {}
    num_without = 0
    for play in plays:
        value = play.scores.get(score)
        if is_unscored(value):
            num_without += 1
            continue
        text = json.dumps(play.task, sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
        by_task.setdefault(name, ([], play))[0].append(_share(value))
    tasks = {
        name: PlayedTask(
            task_id=name,
            split=HELD_OUT,
            cell="",
            success=sum(shares) / len(shares),
            failure=None,
            text=json.dumps({"transcript": list(first.messages)}).encode(),
        )
        for name, (shares, first) in by_task.items()
    }
    return tasks, num_without


def _share(value: Any) -> float:
    """Raises ValueError for what is no share of a success."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ValueError(f"the score {value!r} is no success between 0 and 1")
    return float(value)
