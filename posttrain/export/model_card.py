"""Writes the model card (README.md) of an exported model, as the Hugging Face hub reads it: figures
of exactly these weights, and what they were made from.

All of it is of `dvc.lock` and the reports that it records. Knobs that were edited since are of
another model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.pipeline.git import edited_files, git
from posttrain.provenance.fingerprint import file_states, lock_form
from posttrain.provenance.lockfile import LOCK, lock_entries
from posttrain.report.committed import refuse_unrecorded
from posttrain.report.run_reader import Evaluation, Success, read_object
from posttrain.report.table import interval, percent, percent_or_unknown
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.plain_yaml import load_yaml

_STAGES = {"sft": ("train_sft",), "policy": ("train_sft", "train_policy")}  # of whose knobs a model is made
_DATA = ("data/raw", "data/validated", "data/resampled", "data/preferences")
_EDITED_FREELY = ("reports/log.md", "docs", "README.md")


def model_card(root: Path, name: str, *, licence: str | None) -> str:
    """Text of the card of `data/models/NAME` (sft or policy) below `root`. `licence` as the hub
    spells it; None asks the base model's card.

    Raises ConfigurationError where nothing was evaluated or the folder is not here, DataError where
    it or the report is not the one that dvc.lock records.
    """
    entries = lock_entries(root)
    evaluated, report = entries.get(f"evaluate@{name}"), root / "reports" / "evaluate" / f"{name}.json"
    if name not in _STAGES or evaluated is None or not report.exists():
        raise ConfigurationError(
            f"data/models/{name} has no evaluation in {LOCK}: one of {', '.join(_STAGES)} can be exported, after "
            f"`dvc repro evaluate@{name}`"
        )
    folder = f"data/models/{name}"
    if not (root / folder).is_dir():
        raise ConfigurationError(f"{folder} is not here, only its figures are: `dvc repro evaluate@{name}` makes it")
    [now] = lock_form([folder], file_states([folder], root))
    if now["md5"] not in {dep.get("md5") for dep in evaluated["deps"] if dep["path"] == folder}:
        raise DataError(
            f"{folder} is not the model that was evaluated: its figures are another's. Run `dvc repro evaluate@{name}`"
        )
    refuse_unrecorded([report], root / LOCK)
    evaluation = read_object(report, Evaluation)
    model = evaluated["params"]["params.yaml"]["model"]
    base = model["name"] if model["type"] == "pretrained" else None
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tool-use", "posttrain"],
        "license": licence or (base and _licence_of(root / base)) or "unknown",
        **({"base_model": base} if base and not (root / base).exists() else {}),
    }
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(head, sort_keys=False).strip()}\n---",
            f"# {name}, a tool-using agent\n",
            f"{_origin(model)}, trained as dvc.lock of commit `{_commit(root)}` records it.\n",
            "## Measured\n",
            *_table(evaluation),
            "",
            f"Greedy episodes of tasks that nothing was learnt from, Wilson intervals; strict success takes no call "
            f"outside of what the goal accepts. {_failures(evaluation)}Products were {model['dtype']}, on "
            f"{evaluation.processor or 'a processor that was not recorded'}.\n",
            "## How it was made\n",
            f"```yaml\n{yaml.safe_dump(_knobs(entries, name), sort_keys=False, allow_unicode=True).strip()}\n```\n",
            "Data, by the MD5 that DVC knows it by:\n",
            *(f"- `{path}` {md5}" for path, md5 in _data(entries)),
            "",
        ]
    )


def _origin(model: Mapping[str, Any]) -> str:
    if model["type"] == "pretrained":
        revision = f" (revision {model['revision']})" if model.get("revision") else ""
        return f"`{model['name']}`{revision}"
    return "A model from scratch"


def _licence_of(base: Path) -> str | None:
    """Licence in the card of a base model's folder; None where there is none."""
    try:
        _, head, _ = (base / "README.md").read_text(encoding="utf-8").split("---\n", 2)
        found = load_yaml(head, "README.md").get("license")
    except (OSError, ValueError, AttributeError, ConfigurationError):
        return None
    return str(found) if found else None


def _commit(root: Path) -> str:
    edited = [file for file in edited_files(root) if not file.startswith(_EDITED_FREELY)]
    return git(root, "rev-parse", "HEAD") + (f" with edits of {', '.join(edited[:3])}" if edited else "")


def _table(evaluation: Evaluation) -> list[str]:
    rows = [_row("held out", evaluation, evaluation.pass_hat_4)]
    if evaluation.paraphrase:
        rows.append(_row("held out, in other words", evaluation.paraphrase, None))
    rows += [
        _row(f"{label} {value}", success, None)
        for label, values in evaluation.by.items()
        for value, success in values.items()
    ]
    return ["| tasks | number | strict success | success | pass^4 |", "| --- | ---: | ---: | ---: | ---: |", *rows]


def _row(tasks: str, success: Success, pass_hat_4: float | None) -> str:
    rates = [f"{percent(rate.share)} ({interval(rate)})" for rate in (success.strict, success.plain)]
    return f"| {tasks} | {success.num_tasks} | {' | '.join(rates)} | {percent_or_unknown(pass_hat_4)} |"


def _failures(evaluation: Evaluation) -> str:
    counts = ", ".join(f"{count} {failure}" for failure, count in evaluation.failures.items())
    return f"Failures: {counts}. " if counts else ""


def _knobs(entries: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    knobs: dict[str, Any] = {}
    for stage in _STAGES[name]:
        knobs |= entries[stage]["params"]["params.yaml"]
    return knobs


def _data(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    return sorted(
        (out["path"], out["md5"])
        for entry in entries.values()
        for out in entry.get("outs") or ()
        if out["path"].startswith(_DATA)
    )
