"""Results of each task that other tools wrote, as runs that can be compared: Inspect's logs
(`.eval`, `.json`), lm-eval's samples (`samples_*.jsonl`), promptfoo's results (`.json`), and the
`.tasks.jsonl` of an evaluation of ours.

A task is known by what it asks and wants, not by its place in a file. One that was played several
times (Inspect's epochs) has the mean of its scores.
"""

import hashlib
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from posttrain.comparison.runs import LockedStage, PlayedTask, Run, parse_tasks
from posttrain.exits import ConfigurationError, DataError
from posttrain.limits import MAX_LINE_BYTES
from posttrain.report.sources import HELD_OUT

_ZSTANDARD = 93  # a way to compress in zip files that zipfile knows from Python 3.14 on
_LOCAL_HEADER = struct.Struct("<26xHH")  # of an entry in a zip file; its name and extra fields follow
_INSPECT_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}

_NOT_READ = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)  # of JSON in another form


@dataclass(frozen=True, slots=True)
class _Play:
    """`task` is what was asked and wanted, as JSON has it; `scores` by name; `source` whose play it
    is, where a file holds those of several."""

    task: Any
    scores: Mapping[str, float]
    messages: Sequence[Mapping[str, Any]] = ()
    source: str = ""


@dataclass(slots=True)
class _Log:
    """A file's plays. `num_without` more have no score; `problem` says that it did not end well."""

    plays: list[_Play] = field(default_factory=list)
    num_without: int = 0
    problem: str = ""


def are_files(name: str) -> bool:
    """Whether what was given in a branch's place is a file, or several with commas between."""
    return all(Path(part).is_file() for part in name.split(","))


def read_files(name: str, *, score: str = "") -> list[Run]:
    """The runs of a setting: one for each file, or each model and prompt of a promptfoo file, which
    are settings of their own. `score` names the one that counts, where plays have several.

    Raises DataError for a file that is damaged or in no known format, ConfigurationError where it
    has several scores and `score` is none of them."""
    parts = name.split(",")
    return [run for seed, part in enumerate(parts, 1) for run in _runs(Path(part), name, seed, score)]


def _runs(file: Path, setting: str, seed: int, score: str) -> Iterator[Run]:
    try:
        content = file.read_bytes()
        if file.name.endswith(".tasks.jsonl"):
            tasks, problem = parse_tasks(content)
            yield _run(str(file), setting, seed, tasks, [f"{file}{problem}"] if problem else [])
            return
        log = _log(file, content)
    except (*_NOT_READ, zipfile.BadZipFile, zlib.error, struct.error, OSError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"{file} is damaged, or no log of Inspect, lm-eval or promptfoo ({what})") from error
    sources = dict.fromkeys(play.source for play in log.plays)
    if not sources:
        raise DataError(f"{file} holds no scored play{f': {log.problem}' if log.problem else ''}")
    counted = _counted_score(file, log.plays, score)
    problems = [f"{file}: {log.problem}"] if log.problem else []
    if log.num_without:
        problems.append(f"{file}: {log.num_without:,} plays have no score, and are left out")
    for source in sources:
        plays = [play for play in log.plays if play.source == source]
        named = f"{file}: {source}" if len(sources) > 1 else str(file)
        yield _run(
            named, f"{setting}: {source}" if len(sources) > 1 else setting, seed, _tasks(plays, counted), problems
        )


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


def _counted_score(file: Path, plays: Sequence[_Play], wanted: str) -> str:
    names = list(dict.fromkeys(name for play in plays for name in play.scores))
    if wanted in names or (len(names) == 1 and not wanted):
        return wanted or names[0]
    raise ConfigurationError(f"{file} has the scores {', '.join(names)}: name the one that counts, with --score")


def _tasks(plays: Sequence[_Play], score: str) -> dict[str, PlayedTask]:
    by_task: dict[str, list[_Play]] = {}
    for play in plays:
        if score in play.scores:
            text = json.dumps(play.task, sort_keys=True, ensure_ascii=False)
            by_task.setdefault(hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16], []).append(play)
    return {
        name: PlayedTask(
            task_id=name,
            split=HELD_OUT,
            cell="",
            success=sum(play.scores[score] for play in played) / len(played),
            failure=None,
            text=json.dumps({"transcript": list(played[0].messages)}).encode(),
        )
        for name, played in by_task.items()
    }


def _log(file: Path, content: bytes) -> _Log:
    if content.startswith(b"PK"):
        return _inspect(*_inspect_zip(file))
    if file.suffix == ".jsonl":
        return _lm_eval([json.loads(line) for line in content.splitlines() if line.strip()])
    tree = json.loads(content)
    return _inspect(tree, tree["samples"]) if "samples" in tree else _promptfoo(tree["results"])


def _inspect(header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> _Log:
    log = _Log(problem="" if header["status"] == "success" else f"the run ended as {header['status']}")
    for sample in samples:
        scores = {name: _inspect_value(one["value"]) for name, one in (sample.get("scores") or {}).items()}
        log.num_without += not scores
        if scores:
            messages = [{**one, "content": _plain(one.get("content"))} for one in sample.get("messages") or ()]
            log.plays.append(_Play([sample["id"], sample["input"], sample["target"]], scores, messages))
    return log


def _inspect_value(value: Any) -> float:
    return _share(_INSPECT_VALUES.get(value, value) if isinstance(value, str) else value)


def _inspect_zip(file: Path) -> tuple[Any, list[Any]]:
    with zipfile.ZipFile(file) as archive, file.open("rb") as raw:
        entries = {entry.filename: entry for entry in archive.infolist()}
        names = [name for name in entries if name.startswith("samples/")]
        is_killed = "header.json" not in entries
        header = json.loads(_unpacked(raw, entries["_journal/start.json" if is_killed else "header.json"]))
        samples = [json.loads(_unpacked(raw, entries[name])) for name in names]
        return {**header, "status": "killed"} if is_killed else header, samples


def _unpacked(raw: IO[bytes], entry: zipfile.ZipInfo) -> bytes:
    """Of an entry, whichever way it is compressed. Raises ValueError where it is damaged, or too
    large."""
    if max(entry.file_size, entry.compress_size) > MAX_LINE_BYTES:
        raise ValueError(f"{entry.filename} is larger than {MAX_LINE_BYTES:,} bytes")
    raw.seek(entry.header_offset)
    header = raw.read(_LOCAL_HEADER.size)
    *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    raw.seek(name_size + extra_size, 1)
    content = _decompressed(raw.read(entry.compress_size), entry)
    if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
        raise ValueError(f"{entry.filename} is not what its archive says it is")
    return content


def _decompressed(packed: bytes, entry: zipfile.ZipInfo) -> bytes:
    if entry.compress_type == zipfile.ZIP_STORED:
        return packed
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, entry.file_size)
    if entry.compress_type != _ZSTANDARD:
        raise ValueError(f"{entry.filename} is compressed in a way that is not known here ({entry.compress_type})")
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError("this log is compressed by Zstandard: `pip install zstandard` to read it") from error
    try:
        return bytes(zstandard.ZstdDecompressor().decompress(packed, max_output_size=entry.file_size))
    except zstandard.ZstdError as error:
        raise ValueError(f"{entry.filename}: {error}") from error


def _lm_eval(lines: Sequence[Mapping[str, Any]]) -> _Log:
    """Where answers went through several filters, each filter's scores have its name."""
    log, filters = _Log(), {line["filter"] for line in lines}
    by_document: dict[tuple[str, str], tuple[dict[str, float], Mapping[str, Any]]] = {}
    for line in lines:
        scores = by_document.setdefault((line["doc_hash"], line["target_hash"]), ({}, line))[0]
        for name in line["metrics"]:
            scores[f"{name},{line['filter']}" if len(filters) > 1 else name] = _share(line[name])
    for key, (scores, line) in by_document.items():
        answers = [{"role": "assistant", "content": _plain(line.get("filtered_resps"))}]
        log.plays.append(_Play(list(key), scores, [{"role": "user", "content": _plain(line.get("doc"))}, *answers]))
    return log


def _promptfoo(results: Mapping[str, Any]) -> _Log:
    """A provider is a run of its own; each of its prompts is one, where there are several."""
    log, num_prompts = _Log(), len({one["prompt"]["label"] for one in results["results"]})
    for one in results["results"]:
        source = one["provider"].get("label") or one["provider"]["id"]
        if num_prompts > 1:
            source = f"{source}: {one['prompt']['label']}"
        if one.get("error") and one.get("response") is None:
            log.num_without += 1
            continue
        case = one.get("testCase") or {}
        task = [one["vars"], case.get("assert"), case.get("description")]
        answer = _plain((one.get("response") or {}).get("output"))
        messages = [{"role": "user", "content": _plain(one["prompt"].get("raw"))}]
        scores = {"success": float(bool(one["success"]))}
        log.plays.append(_Play(task, scores, [*messages, {"role": "assistant", "content": answer}], source))
    return log


def _share(value: Any) -> float:
    """Raises ValueError for what is no share of a success."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ValueError(f"the score {value!r} is no success between 0 and 1")
    return float(value)


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
