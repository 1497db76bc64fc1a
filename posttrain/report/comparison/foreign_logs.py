"""Parses logs of Inspect, lm-eval and promptfoo as those tools mean them: prompt, target, and
scores by their names.

All functions raise ValueError, KeyError and the like for a file in another form; the caller turns
them into one sentence.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from posttrain.evals.rollout_files import INSPECT_VALUES
from posttrain.report.comparison.inspect_archive import read_archive
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_LINE_BYTES, reason

_MAX_JSON_BYTES = 2**29  # of a file that is one value: in memory it is several times as large
_SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?\.jsonl")  # as lm-eval names them: task, time
_PROMPTFOO_ERROR = 2  # of a result's `failureReason`; 1 is a failed assertion


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode of a task. `task` is prompt and target as JSON; `scores` by name, none where it
    ended in an error; `source` the model and prompt, where a file holds those of several."""

    task: Any
    scores: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()
    source: str = ""


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
            return _inspect(*read_archive(raw))
    if file.suffix == ".jsonl":
        return _lm_eval(file)
    tree = json.loads(content_of(file))
    if "eval" in tree:
        return _inspect(tree, tree.get("samples") or ())
    return _promptfoo(tree["results"])


def samples_of(folder: Path) -> list[Path]:
    """lm-eval's files of samples in a folder; none of what is no folder."""
    return sorted(file for file in folder.glob("samples_*.jsonl") if file.is_file()) if folder.is_dir() else []


def content_of(file: Path) -> bytes:
    """Read a file at once. Raises ValueError where that would fill the memory."""
    if (size := file.stat().st_size) > _MAX_JSON_BYTES:
        raise ValueError(f"its {size:,} bytes are more than {_MAX_JSON_BYTES:,}")
    return file.read_bytes()


def _inspect(header: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> Log:
    log = Log(problem="" if header["status"] == "success" else f"the run ended as {header['status']}")
    for sample in samples:
        is_void = sample.get("error") or sample.get("invalidation")
        scores = {} if is_void else dict(_inspect_scores(sample.get("scores") or {}))
        messages = [{**one, "content": _plain(one.get("content"))} for one in sample.get("messages") or ()]
        # one that was not given is the sample's place, and a message's is drawn for each run
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


def _promptfoo(results: Mapping[str, Any]) -> Log:
    """Each column of its table is a run: a provider, with each of several prompts."""
    log, columns = Log(), _column_names(results["results"])
    for one in results["results"]:
        answer = _plain((one.get("response") or {}).get("output"))
        log.samples.append(
            Sample(
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
    """Columns by the provider's name; with the prompt where there are several, with the place where
    two have the same name."""
    providers = {one["promptIdx"]: one["provider"].get("label") or one["provider"]["id"] for one in results}
    prompts = {one["promptIdx"]: one["prompt"]["label"] for one in results}
    if len(set(prompts.values())) > 1:
        providers = {place: f"{name}: {prompts[place]}" for place, name in providers.items()}
    names = list(providers.values())
    return {
        place: f"{name} (column {place + 1})" if names.count(name) > 1 else name for place, name in providers.items()
    }


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
