"""Results of each task that other tools wrote, as runs that can be compared: Inspect's logs
(`.eval`, `.json`), lm-eval's samples (`samples_*.jsonl`, or a folder of them), promptfoo's results
(`.json`), and the `.tasks.jsonl` of an evaluation of ours.

A task is known by what it asks and wants, not by its place in a file. One that was played several
times (Inspect's epochs) has the mean of its scores. A play that ended in an error has none, and is
left out: that the endpoint was away says nothing of a model.
"""

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
from typing import IO, Any

from posttrain.comparison.runs import LockedStage, PlayedTask, Run, parse_tasks
from posttrain.exits import ConfigurationError, DataError
from posttrain.limits import MAX_LINE_BYTES, reason

_MAX_JSON_BYTES = 2**29  # of a file that is one value: in memory it is several times as large
_MAX_UNPACKED_BYTES = 2**34  # of all samples of a log, which are read one by one
_ZSTANDARD = 93  # a way to compress in zip files that zipfile knows from Python 3.14 on
_LOCAL_HEADER = struct.Struct("<26xHH")  # of an entry in a zip file; its name and extra fields follow
_SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?\.jsonl")  # as lm-eval names them: task, time
_INSPECT_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_PROMPTFOO_ERROR = 2  # as a result's `failureReason`; 1 is an assertion that does not hold

_NOT_READ = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)  # of JSON in another form


@dataclass(frozen=True, slots=True)
class _Play:
    """`task` is what was asked and wanted, as JSON has it; `scores` by name, as they were written,
    and none where it ended in an error; `source` whose play it is, where a file holds those of
    several."""

    task: Any
    scores: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()
    source: str = ""


@dataclass(slots=True)
class _Log:
    """A file's plays; `problem` says that it did not end well."""

    plays: list[_Play] = field(default_factory=list)
    problem: str = ""


def are_files(name: str) -> bool:
    """Whether what was given in a branch's place is a file, or several with commas between; or
    folders with lm-eval's samples."""
    return all(Path(part).is_file() or _samples(Path(part)) for part in name.split(","))


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


def _samples(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("samples_*.jsonl") if file.is_file()) if folder.is_dir() else []


def _runs(file: Path, setting: str, seed: int, score: str) -> Iterator[Run]:
    try:
        if file.name.endswith(".tasks.jsonl"):
            tasks, problem = parse_tasks(_content(file))
            yield _run(str(file), setting, seed, tasks, [f"it{problem}"] if problem else [])
            return
        log = _log(file)
        counted = _counted_score(file, log, score)
        sources: dict[str, list[_Play]] = {}
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


def _counted_score(file: Path, log: _Log, wanted: str) -> str:
    names = list(dict.fromkeys(name for play in log.plays for name in play.scores))
    if not names:
        raise DataError(f"{file} holds no scored play{f': {log.problem}' if log.problem else ''}")
    if wanted in names or (len(names) == 1 and not wanted):
        return wanted or names[0]
    raise ConfigurationError(
        f"{file} has the scores {reason(', '.join(names))}: name the one that counts, with --score"
    )


def _tasks(plays: Sequence[_Play], score: str) -> tuple[dict[str, PlayedTask], int]:
    """By what is asked, and how many plays have no score."""
    by_task: dict[str, tuple[list[float], _Play]] = {}
    num_without = 0
    for play in plays:
        value = play.scores.get(score)
        if value is None or value != value:  # not a number: Inspect's way to say that it was not scored
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


def _log(file: Path) -> _Log:
    if file.is_dir():
        return _lm_eval_folder(file)
    with file.open("rb") as raw:
        if raw.read(2) == b"PK":
            return _inspect_zip(raw)
    if file.suffix == ".jsonl":
        return _lm_eval(file)
    tree = json.loads(_content(file))
    if "eval" in tree:
        return _inspect(tree, tree.get("samples") or ())
    return _promptfoo(tree["results"])


def _content(file: Path) -> bytes:
    if (size := file.stat().st_size) > _MAX_JSON_BYTES:
        raise ValueError(f"its {size:,} bytes are more than {_MAX_JSON_BYTES:,}")
    return file.read_bytes()


def _inspect(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> _Log:
    log = _Log(problem="" if header["status"] == "success" else f"the run ended as {header['status']}")
    for sample in samples:
        is_void = sample.get("error") or sample.get("invalidation")
        scores = {} if is_void else dict(_inspect_scores(sample.get("scores") or {}))
        messages = [{**one, "content": _plain(one.get("content"))} for one in sample.get("messages") or ()]
        # one that was not given is the sample's place, and a message's is drawn for each run
        given_id = sample["id"] if isinstance(sample["id"], str) else None
        asked = sample["input"]
        if isinstance(asked, list):
            asked = [{**message, "id": None} for message in asked]
        log.plays.append(_Play([given_id, asked, sample["target"]], scores, messages))
    return log


def _inspect_scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A scorer that gives several values has each by its own name: `scorer.value`."""
    for name, score in scores.items():
        if isinstance(values := score["value"], dict):
            yield from ((f"{name}.{part}", _inspect_value(value)) for part, value in values.items())
        else:
            yield name, _inspect_value(values)


def _inspect_value(value: Any) -> Any:
    """As Inspect's own metrics take it."""
    if not isinstance(value, str):
        return value
    return _INSPECT_VALUES.get(value, _INSPECT_VALUES.get(value.lower(), value))


def _inspect_zip(raw: IO[bytes]) -> _Log:
    with zipfile.ZipFile(raw) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
    if (size := sum(entry.file_size for entry in samples)) > _MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {size:,} bytes, more than {_MAX_UNPACKED_BYTES:,}")
    is_killed = "header.json" not in entries
    header = json.loads(_unpacked(raw, entries["_journal/start.json" if is_killed else "header.json"]))
    if is_killed:
        header["status"] = "killed"
    return _inspect(header, (json.loads(_unpacked(raw, entry)) for entry in samples))


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
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, entry.file_size + 1)  # 0 were no limit
    if entry.compress_type != _ZSTANDARD:
        raise ValueError(f"{entry.filename} is compressed in a way that is not known here ({entry.compress_type})")
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError("this log is compressed by Zstandard: `pip install zstandard` to read it") from error
    try:
        # whatever size the packed says that it has
        return bytes(zstandard.ZstdDecompressor().stream_reader(packed).read(entry.file_size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(f"{entry.filename}: {error}") from error


def _lm_eval_folder(folder: Path) -> _Log:
    """All tasks of a run, as one."""
    files = _samples(folder)
    tasks = [found[1] for file in files if (found := _SAMPLES.fullmatch(file.name))]
    if several := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ConfigurationError(
            f"{folder} holds several runs of {reason(', '.join(several))}: move each to a folder of its own"
        )
    return _Log(list(chain.from_iterable(_lm_eval(file).plays for file in files)))


def _lm_eval(file: Path) -> _Log:
    """Where answers went through several filters, each filter's scores have its name."""
    by_document: dict[tuple[Any, ...], tuple[dict[tuple[str, str], Any], Mapping[str, Any]]] = {}
    with file.open("rb") as raw:
        while text := raw.readline(MAX_LINE_BYTES + 1):
            if len(text) > MAX_LINE_BYTES:
                raise ValueError(f"a line has more than {MAX_LINE_BYTES:,} bytes")
            if not text.strip():
                continue
            line = json.loads(text)
            if "metrics" not in line:
                raise ValueError("its lines do not name their metrics, as those of lm-eval from 0.4.8 on do")
            place = line["doc_id"], line["doc_hash"], line["target_hash"]
            kept = {name: line[name] for name in ("doc", "doc_hash", "target_hash", "filtered_resps")}
            scores, _ = by_document.setdefault(place, ({}, kept))
            scores |= {(name, line["filter"]): line[name] for name in line["metrics"]}
    filters = {filtered for scores, _ in by_document.values() for _, filtered in scores}
    return _Log(
        [
            _Play(
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


def _promptfoo(results: Mapping[str, Any]) -> _Log:
    """Each column of its table is a run: a provider, with each of several prompts."""
    log, columns = _Log(), _column_names(results["results"])
    for one in results["results"]:
        answer = _plain((one.get("response") or {}).get("output"))
        log.plays.append(
            _Play(
                [one["vars"], (one.get("testCase") or {}).get("assert")],
                {} if one["failureReason"] == _PROMPTFOO_ERROR else {"success": one["success"]},
                [
                    {"role": "user", "content": _plain(one["prompt"].get("raw"))},
                    {"role": "assistant", "content": answer},
                ],
                columns[one["promptIdx"]],
            )
        )
    return log


def _column_names(results: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """By the provider; with the prompt where there are several, with the place where two are called
    the same."""
    providers = {one["promptIdx"]: one["provider"].get("label") or one["provider"]["id"] for one in results}
    prompts = {one["promptIdx"]: one["prompt"]["label"] for one in results}
    if len(set(prompts.values())) > 1:
        providers = {place: f"{name}: {prompts[place]}" for place, name in providers.items()}
    names = list(providers.values())
    return {
        place: f"{name} (column {place + 1})" if names.count(name) > 1 else name for place, name in providers.items()
    }


def _share(value: Any) -> float:
    """Raises ValueError for what is no share of a success."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ValueError(f"the score {value!r} is no success between 0 and 1")
    return float(value)


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
