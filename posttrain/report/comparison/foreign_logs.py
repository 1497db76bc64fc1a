"""Parses logs of Inspect (`.eval`, `.json`) and lm-eval (`samples_*.jsonl`) as those tools mean
them: prompt, target, and scores by their names.

All functions raise ValueError, KeyError and the like for a file in another form; the caller turns
them into one sentence.
"""

import copy
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from posttrain.evals.rollout_files import INSPECT_VALUES
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_LINE_BYTES, reason

_MAX_JSON_BYTES = 2**29  # of a file that is one value: in memory it is several times as large
_MAX_UNPACKED_BYTES = 2**34  # of all samples of an archive
_ZSTANDARD = 93  # as zip files name it; zipfile reads it from Python 3.14 on
_SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?\.jsonl")  # as lm-eval names them: task, time


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode of a task. `task` is prompt and target as JSON; `scores` by name, none where it
    ended in an error."""

    task: Any
    scores: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()


@dataclass(slots=True)
class Log:
    """Samples of a file; `problem` says that the run did not end well."""

    samples: list[Sample] = field(default_factory=list)
    problem: str = ""


def read_log(file: Path) -> Log:
    """Parse a file, or a folder of lm-eval's samples, which is a run of several tasks."""
    if file.is_dir():
        return _lm_eval_folder(file)
    with file.open("rb") as raw:
        if raw.read(2) == b"PK":
            return _inspect_archive(file)
    if file.suffix == ".jsonl":
        return _lm_eval(file)
    tree = json.loads(content_of(file))
    return _inspect(tree, tree.get("samples") or ())


def samples_of(folder: Path) -> list[Path]:
    """lm-eval's files of samples in a folder; none of what is no folder."""
    return sorted(file for file in folder.glob("samples_*.jsonl") if file.is_file()) if folder.is_dir() else []


def content_of(file: Path) -> bytes:
    """Read a file at once. Raises ValueError where that would fill the memory."""
    if (size := file.stat().st_size) > _MAX_JSON_BYTES:
        raise ValueError(f"its {size:,} bytes are more than {_MAX_JSON_BYTES:,}")
    return file.read_bytes()


def _inspect_archive(file: Path) -> Log:
    """A log of Inspect as a zip file. That of a run which was killed has the status `killed`."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
        if (size := sum(entry.file_size for entry in samples)) > _MAX_UNPACKED_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {_MAX_UNPACKED_BYTES:,}")
        is_killed = "header.json" not in entries
        header = json.loads(_unpacked(archive, entries["_journal/start.json" if is_killed else "header.json"]))
        if is_killed:
            header["status"] = "killed"
        return _inspect(header, (json.loads(_unpacked(archive, entry)) for entry in samples))


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Content of an entry. Raises ValueError or BadZipFile where it is damaged or too large."""
    if max(entry.file_size, entry.compress_size) > MAX_LINE_BYTES:
        raise ValueError(f"{entry.filename} is larger than {MAX_LINE_BYTES:,} bytes")
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


def _inspect(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> Log:
    log = Log(problem="" if header["status"] == "success" else f"the run ended as {header['status']}")
    for sample in samples:
        is_void = sample.get("error") or sample.get("invalidation")
        scores = {} if is_void else dict(_inspect_scores(sample.get("scores") or {}))
        messages = [{**one, "content": _plain(one.get("content"))} for one in sample.get("messages") or ()]
        # An id that was not given is the sample's place, and a message's is drawn for each run.
        given_id = sample["id"] if isinstance(sample["id"], str) else None
        asked = sample["input"]
        if isinstance(asked, list):
            asked = [{**message, "id": None} for message in asked]
        log.samples.append(Sample([given_id, asked, sample["target"]], scores, messages))
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


def _lm_eval_folder(folder: Path) -> Log:
    """All tasks of a run, as one."""
    files = samples_of(folder)
    tasks = [found[1] for file in files if (found := _SAMPLES.fullmatch(file.name))]
    if several := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise ConfigurationError(
            f"{folder} holds several runs of {reason(', '.join(several))}: move each to a folder of its own"
        )
    return Log(list(chain.from_iterable(_lm_eval(file).samples for file in files)))


def _lm_eval(file: Path) -> Log:
    """Parse lm-eval's samples; with several filters of the answers, scores have the filter's
    name."""
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
    return Log(
        [
            Sample(
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
