"""Reads results of other tools, by task, as runs that can be compared: Inspect's logs
(`.eval`, `.json`), lm-eval's samples (`samples_*.jsonl`, or a folder of them), and the
`.tasks.jsonl` of an evaluation of ours.

A task is identified by its prompt and target, not by its place in a file. One that was sampled
several times (Inspect's epochs) has the mean of its scores. A sample that ended in an error is left
out: that the endpoint was away says nothing of a model.
"""

import copy
import hashlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from posttrain.evals.health import INSPECT_VALUES, is_unscored
from posttrain.report.comparison.runs import LockedStage, RunResults
from posttrain.report.run_reader import HELD_OUT, TaskResult, parse_results
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.limits import reason

_OTHER_FORM = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, NotImplementedError)
_ZSTANDARD = 93  # as zip files name it; zipfile reads it from Python 3.14 on
_SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?\.jsonl")  # as lm-eval names them: task, time
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError)


@dataclass(frozen=True, slots=True)
class _Sample:
    """An episode of a task. `task` is prompt and target as JSON; `scores` by name, none where it
    ended in an error."""

    task: Any
    scores: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()


@dataclass(slots=True)
class _Log:
    """Samples of a file; `problem` says that the run did not end well."""

    samples: list[_Sample] = field(default_factory=list)
    problem: str = ""


def are_files(name: str) -> bool:
    """True where a name is of a file, of several with commas between, or of folders with lm-eval's
    samples; else it is a branch's."""
    return all(Path(part).is_file() or _samples_of(Path(part)) for part in name.split(","))


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
        tasks, problem = parse_results(file.read_bytes())
        return tasks, [f"it{problem}"] if problem else []
    log = _read_log(file)
    tasks, num_without = _tasks(log.samples, _counted_score(file, log, score))
    problems = [log.problem] if log.problem else []
    if num_without:
        left_out = "ended in an error or have no score: they are left out, and are no failures"
        problems.append(f"{num_without:,} of {len(log.samples):,} plays {left_out}")
    return tasks, problems


def _counted_score(file: Path, log: _Log, wanted: str) -> str:
    names = list(dict.fromkeys(name for sample in log.samples for name in sample.scores))
    if not names:
        raise DataError(f"{file} holds no scored sample{f': {log.problem}' if log.problem else ''}")
    if wanted in names or (len(names) == 1 and not wanted):
        return wanted or names[0]
    raise ConfigurationError(
        f"{file} has the scores {reason(', '.join(names))}: name the one that counts, with --score"
    )


def _tasks(samples: Sequence[_Sample], score: str) -> tuple[dict[str, TaskResult], int]:
    """Results by a digest of the prompt and target, and the number of samples without a score."""
    by_task: dict[str, tuple[list[float], _Sample]] = {}
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


def _read_log(file: Path) -> _Log:
    """Parse a file, or a folder of lm-eval's samples, which is a run of several tasks."""
    if file.is_dir():
        return _lm_eval_folder(file)
    with file.open("rb") as raw:
        if raw.read(2) == b"PK":
            return _inspect_archive(file)
    if file.suffix == ".jsonl":
        return _lm_eval(file)
    tree = json.loads(file.read_bytes())
    return _inspect(tree, tree.get("samples") or ())


def _samples_of(folder: Path) -> list[Path]:
    """lm-eval's files of samples in a folder; none of what is no folder."""
    return sorted(file for file in folder.glob("samples_*.jsonl") if file.is_file()) if folder.is_dir() else []


def _inspect_archive(file: Path) -> _Log:
    """A log of Inspect as a zip file. That of a run which was killed has the status `killed`."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
        is_killed = "header.json" not in entries
        header = json.loads(_unpacked(archive, entries["_journal/start.json" if is_killed else "header.json"]))
        if is_killed:
            header["status"] = "killed"
        return _inspect(header, (json.loads(_unpacked(archive, entry)) for entry in samples))


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Content of an entry. Raises ValueError or BadZipFile where it is damaged."""
    if entry.compress_type != _ZSTANDARD:
        with archive.open(entry) as file:
            return file.read(entry.file_size + 1)  # `read()` would unpack a bomb whole before it looks at the size
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError("this log is compressed by Zstandard: `pip install zstandard` to read it") from error
    # The packed bytes: to zipfile the entry is one that is stored as it is and has no checksum.
    stored = copy.copy(entry)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, entry.compress_size
    del stored.CRC
    packed = archive.read(stored)
    try:
        # One byte more than the archive says, whatever size the packed bytes claim.
        content = bytes(zstandard.ZstdDecompressor().stream_reader(packed).read(entry.file_size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(f"{entry.filename}: {error}") from error
    if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
        raise ValueError(f"{entry.filename} is not what its archive says it is")
    return content


def _inspect(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> _Log:
    log = _Log(problem="" if header["status"] == "success" else f"the run ended as {header['status']}")
    for sample in samples:
        is_void = sample.get("error") or sample.get("invalidation")
        scores = {} if is_void else dict(_inspect_scores(sample.get("scores") or {}))
        messages = [{**one, "content": _plain(one.get("content"))} for one in sample.get("messages") or ()]
        # An id that was not given is the sample's place, and a message's is drawn for each run.
        given_id = sample["id"] if isinstance(sample["id"], str) else None
        asked = sample["input"]
        if isinstance(asked, list):
            asked = [{**message, "id": None} for message in asked]
        log.samples.append(_Sample([given_id, asked, sample["target"]], scores, messages))
    return log


def _inspect_scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A scorer that gives several values has each by its own name: `scorer.value`."""
    for name, score in scores.items():
        if isinstance(values := score["value"], dict):
            yield from ((f"{name}.{part}", _inspect_value(value)) for part, value in values.items())
        else:
            yield name, _inspect_value(values)


def _inspect_value(value: Any) -> Any:
    """Convert as Inspect's own metrics do."""
    if not isinstance(value, str):
        return value
    return INSPECT_VALUES.get(value, INSPECT_VALUES.get(value.lower(), value))


def _lm_eval_folder(folder: Path) -> _Log:
    """All tasks of a run, as one."""
    files = _samples_of(folder)
    tasks = [found[1] for file in files if (found := _SAMPLES.fullmatch(file.name))]
    if several := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ConfigurationError(
            f"{folder} holds several runs of {reason(', '.join(several))}: move each to a folder of its own"
        )
    return _Log(list(chain.from_iterable(_lm_eval(file).samples for file in files)))


def _lm_eval(file: Path) -> _Log:
    """Parse lm-eval's samples; with several filters of the answers, scores have the filter's
    name."""
    by_document: dict[tuple[Any, ...], tuple[dict[tuple[str, str], Any], Mapping[str, Any]]] = {}
    with file.open("rb") as raw:
        for line in (json.loads(text) for text in raw if text.strip()):
            if "metrics" not in line:
                raise ValueError("its lines do not name their metrics, as those of lm-eval from 0.4.8 on do")
            place = line["doc_id"], line["doc_hash"], line["target_hash"]
            kept = {name: line[name] for name in ("doc", "doc_hash", "target_hash", "filtered_resps")}
            scores, _ = by_document.setdefault(place, ({}, kept))
            scores |= {(name, line["filter"]): line[name] for name in line["metrics"]}
    filters = {filtered for scores, _ in by_document.values() for _, filtered in scores}
    return _Log(
        [
            _Sample(
                [line["doc_hash"], line["target_hash"]],
                {",".join(key) if len(filters) > 1 else key[0]: value for key, value in scores.items()},
                [
                    {"role": "user", "content": _plain(line["doc"])},
                    {"role": "assistant", "content": _plain(line["filtered_resps"])},
                ],
            )
            for scores, line in by_document.values()
        ]
    )


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
