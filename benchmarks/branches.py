"""A repository whose branches hold made-up results: the committed run of this one, with knobs
turned, plays flipped and curves shifted as a setting and its seeds would."""

import json
import random
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posttrain.evals.significance import share_interval
from posttrain.provenance.costs import Cost
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import RECORDS, entry_key
from posttrain.runtime.plain_yaml import load_yaml

HERE = Path(__file__).parents[1]
FILES = [
    "params.yaml",
    "dvc.lock",
    "reports/evaluate/policy.json",
    "reports/evaluate/policy.tasks.jsonl",
    "reports/validate_data/summary.json",
    "reports/resample_data/summary.json",
    "reports/train_sft/metrics.jsonl",
    "reports/train_policy/metrics.jsonl",
]
GRAPH = ["dvc.yaml", ".dvc/config", ".dvcignore"]
COMMITTER = "Ada Example <ada@example.org> 1763900000 +0800"


@dataclass(frozen=True)
class Branch:
    """`success` is what the setting truly has; `files` replace whole texts, None leaves one out. Of
    the episodes that succeed `needless` do with needless calls."""

    name: str
    seed: int = 1
    success: float = 0.9
    knobs: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
    needless: float = 0.0


def make_repository(folder: Path, branches: Iterable[Branch], *, spread: float = 0.03, has_graph: bool = False) -> Path:
    """With a commit on each branch, and no files beside. The runs of a setting lie apart by
    `spread`, one standard deviation. `has_graph`: with what DVC needs of a tree, too."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=folder, check=True)
    texts = {path: (HERE / path).read_text(encoding="utf-8") for path in (*FILES, *GRAPH * has_graph)}
    stages = lock_entries(HERE)
    stream = bytearray()
    for branch in branches:
        files = {**_made(texts, branch, spread), RECORDS.as_posix(): _records(stages, branch), **branch.files}
        stream += f"commit refs/heads/{branch.name}\nauthor {COMMITTER}\ncommitter {COMMITTER}\ndata 5\nmade\n".encode()
        for path, text in files.items():
            if text is not None:
                data = text.encode(errors="surrogateescape")
                stream += f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n"
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=bytes(stream), check=True)
    return folder


def _made(texts: Mapping[str, str], branch: Branch, spread: float) -> dict[str, str]:
    draw, difficulty = random.Random(f"{branch.name} {branch.seed}"), random.Random(0)
    needless = random.Random(branch.seed)
    rate = min(max(draw.gauss(branch.success, spread), 0.02), 0.98)
    params = load_yaml(texts["params.yaml"], "params.yaml")
    params["seed"] = branch.seed
    for name, value in branch.knobs.items():
        section, _, knob = name.rpartition(".")
        (params[section] if section else params)[knob] = value
    tasks = []
    for line in texts["reports/evaluate/policy.tasks.jsonl"].splitlines():
        record = json.loads(line)
        record["success"] = draw.random() < rate + difficulty.uniform(-1, 1) * min(rate, 1 - rate)
        record["strict_success"] = record["success"] and needless.random() >= branch.needless
        record["failure"] = None if record["success"] else "wrong_market"
        if not record["success"]:
            record["transcript"][-1]["content"] = "ANSWER: 1"
        tasks.append(record)
    test = [record for record in tasks if record["split"] == "test"]
    summary = json.loads(texts["reports/evaluate/policy.json"])
    summary["success_rate"] = sum(record["success"] for record in test) / len(test)
    strict = sum(record["strict_success"] for record in test)
    low, high = share_interval(strict, len(test))
    summary |= {"strict_success_rate": strict / len(test), "strict_ci_low": low, "strict_ci_high": high}
    lines = [json.loads(line) for line in texts["reports/train_policy/metrics.jsonl"].splitlines()]
    for line in lines:
        line.update({key: value * draw.uniform(0.9, 1.1) for key, value in line.items() if isinstance(value, float)})
    return {
        **texts,
        "params.yaml": yaml.safe_dump(params, sort_keys=False),
        "reports/evaluate/policy.json": json.dumps(summary),
        "reports/evaluate/policy.tasks.jsonl": _lines(tasks),
        "reports/train_policy/metrics.jsonl": _lines(lines),
    }


def _records(stages: Mapping[str, Any], branch: Branch) -> str:
    """Costs of each stage; a policy of seed 2 was stopped after step 40."""
    records = []
    for index, (stage, entry) in enumerate(stages.items(), 1):
        resumed_at = (40,) if stage == "train_policy" and branch.seed == 2 else ()
        cost = Cost(
            stage,
            seconds=10.0 * index,
            whole_s=12.0 * index,
            peak_mib=900.0,
            is_resumed=bool(resumed_at),
            at=1763900000.0 + index,
            resumed_at=resumed_at,
            version="4cb9056" + 33 * "0",
            processor="AMD, AVX-512",
            num_threads=2,
            num_gpus=int(stage.startswith("train_")),
            key=entry_key(entry),
        )
        records.append(asdict(cost))
    return _lines(records)


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False, sort_keys=True) + "\n" for record in records)
