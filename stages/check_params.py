"""Checks the whole `params.yaml`: refuses knobs that no stage would read, or that a stage would
refuse after hours.

That is a misspelt knob, which DVC alone ignores because no stage lists it, a name that leads
nowhere, and knobs that contradict each other. Its output is constant: every stage depends on it,
and none runs again because an unrelated knob was edited. No name is looked up in a network.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.config.params import Params, refusal
from posttrain.data.params import ImportSource, ScriptedSource
from posttrain.evals.params import STYLE, ExpertTeacher
from posttrain.models.params import LIKE_QWEN3, LoraAdapter, PretrainedModel, local_config, target_problem
from posttrain.provenance.fingerprint import read_all_inputs
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.provenance.undeclared_deps import FEEDBACK_KNOB, SOURCE_KNOB, tree_root, undeclared
from posttrain.rewards.total import load_reward
from posttrain.runtime.exits import ConfigurationError, DataError, Problem
from posttrain.runtime.knobs import nearest
from posttrain.train.online.constraints import TOKENS
from posttrain.train.online.trainer_choice import is_on_server, server_refusals
from posttrain.train.params import SampledPairs
from posttrain.train.replay import ExpertReplay, HintReplay
from posttrain.train.sampling.horizon import HorizonSampling
from posttrain.train.sampling.orders import SpreadSampling
from posttrain.worlds.catalog import make_domain, require_expert, require_regeneration, score_names
from posttrain.worlds.protocol import Domain

CARDS = "POSTTRAIN_CARDS"  # of the GPUs that are reserved, as infra/dispatch.yaml has it: `train_sft=80,default=24` GiB
MAX_READ_BYTES = 8 * 2**20  # of an import: a second's work; of a larger one the next stage says what is wrong
NUM_TASKS_SEEN = 300  # enough to see every value of a label


def check_params(run: StageRun) -> None:
    hidden = undeclared(read_all_inputs(Path("dvc.yaml")), run.params, checked_by="check_params")
    problems = [Problem(knob.partition(":")[0], "undeclared", line) for knob, line in hidden]
    # of an undeclared file nothing more can be said: it is not in the copy that this stage works in
    problems = problems or [*_world(run.params), *_import(run.params), *_feedback(run.params)]
    problems += _model(run.params)
    if is_on_server():
        refused = server_refusals(run.params.train_policy, run.params.model)
        problems += [
            Problem("train_policy", "not_on_server", f"a Tinker server cannot do it: {one}") for one in refused
        ]
    if problems := problems or list(_memory(run.params)):
        raise refusal(problems, "params.yaml")
    if found := run.params.reward.inversion():
        print(f"reward.allow_failure_above_success is true: {found}", file=sys.stderr, flush=True)
    output = Path("data/params.checked")
    output.parent.mkdir(exist_ok=True)
    output.write_text("params.yaml has known keys, values in range and no contradiction.\n", encoding="utf-8")


def _world(params: Params) -> Iterator[Problem]:
    """Problems of the world and of what is named in its terms: its scores, its labels, its optional
    parts. The world is made as training will make it."""
    key = "world.type"
    try:
        domain = make_domain(params.world)
    except ConfigurationError as error:
        yield Problem(key, "not_found", str(error))
        return
    except Exception as error:  # whatever a person's own code raises
        reason = f"it cannot be made of its section: {type(error).__name__}: {error}"
        yield Problem(key, "not_made", reason, value=repr(params.world.type))
        return
    if missing := [name for name in ("name", "tools", "tasks", "open") if not hasattr(domain, name)]:
        reason = f"it makes no Domain: it has no {', '.join(missing)}"
        yield Problem(key, "no_domain", reason, value=repr(params.world.type))
        return
    yield from _needs(params, domain)
    yield from _labels(params, domain)
    for section, algorithm in params.train_policy.online.items():
        for one in algorithm.constraints:
            if one.score not in (names := (TOKENS, *score_names(domain))):
                reason = f"the world {domain.name} has no such score; there are {', '.join(names)}"
                yield Problem(f"train_policy.{section}.constraints", "not_found", reason, value=repr(one.score))
    try:
        load_reward(params.reward, score_names(domain))
    except ConfigurationError as error:
        yield Problem("reward", "not_found", str(error))


def _needs(params: Params, domain: Domain) -> Iterator[Problem]:
    """Problems of knobs that need an optional part of a world which this one lacks."""
    needs: list[tuple[Callable[..., object], str]] = []
    if isinstance(params.generate_data.source, ScriptedSource):
        needs.append((require_expert, "generate_data.source.type scripted"))
    if not (isinstance(params.generate_data.source, ImportSource) and params.generate_data.source.dev_frac):
        needs.append((require_expert, "train_sft, for its dev loss, (or generate_data.source.dev_frac above 0)"))
    if isinstance(params.evaluate.teacher, ExpertTeacher):
        needs.append((require_expert, "evaluate.teacher.type expert"))
    if params.resample_data.oversample.type == "smote":
        smote = "resample_data.oversample.type smote"
        needs += [(require_expert, smote), (require_regeneration, smote)]
    for section, algorithm in params.train_policy.online.items():
        if isinstance(algorithm.join, ExpertReplay | HintReplay):
            needs.append((require_expert, f"train_policy.{section}.{algorithm.join.knob}"))
    for need, needed_by in needs:
        try:
            need(domain, needed_by=needed_by)
        except ConfigurationError as error:
            yield Problem(re.match(r"[\w.]+", needed_by)[0], "not_offered", str(error))  # type: ignore[index]


def _labels(params: Params, domain: Domain) -> Iterator[Problem]:
    """Problems of labels that no task has: results would be broken down by nothing. An import
    brings its own labels."""
    if isinstance(params.generate_data.source, ImportSource):
        return
    try:
        tasks = domain.tasks("sft", min(NUM_TASKS_SEEN, params.world.num_sft_tasks))
    except ValueError:  # too many are wanted: generate_data says so, with the knob
        return
    values: dict[str, set[str]] = {}
    for task in tasks:
        for label, value in task.labels.items():
            values.setdefault(label, set()).add(value)
    named = {
        "resample_data.cells": params.resample_data.cells,
        "evaluate.by": [label for label in params.evaluate.by if label != STYLE],
        "train_sft.label_weights": list(params.train_sft.label_weights),
    }
    named |= _order_labels(params)
    for knob, labels in named.items():
        if unknown := [label for label in labels if label not in values]:
            reason = f"{knob} names {', '.join(unknown)}; the tasks of {domain.name} have {', '.join(values)}"
            yield Problem(knob, "no_such_label", reason, nearest(unknown[0], values).strip())
    for label, weights in params.train_sft.label_weights.items():
        if unknown := [value for value in weights if value not in values.get(label, weights)]:
            known, knob = ", ".join(sorted(values[label])), f"train_sft.label_weights.{label}"
            reason = f"{knob} names {', '.join(unknown)}; the {len(tasks)} first tasks have {known}"
            yield Problem(knob, "no_such_label", reason, nearest(unknown[0], values[label]).strip())


def _order_labels(params: Params) -> dict[str, list[str]]:
    """Labels by which the sampling order of online training orders tasks."""
    named: dict[str, list[str]] = {}
    for section, algorithm in params.train_policy.online.items():
        order = f"train_policy.{section}.sampling.order"
        match algorithm.sampling.order:
            case HorizonSampling(label=label):
                named[f"{order}.label"] = [label]
            case SpreadSampling(labels=labels):
                named[f"{order}.labels"] = labels
    return named


def _import(params: Params) -> Iterator[Problem]:
    source = params.generate_data.source
    if not isinstance(source, ImportSource):
        return
    from posttrain.data.importing.importer import (  # loads pyarrow, which no other knob wants
        import_trajectories,
        refuse_too_many_bad,
    )

    file = Path(source.path)
    if file.is_file() and file.stat().st_size > MAX_READ_BYTES:
        return
    try:
        imported = import_trajectories(file, source.format, stop_tools=source.stop_tools)
        refuse_too_many_bad(imported, max_quarantine_frac=params.validate_data.max_quarantine_frac, source=file)
    except DataError as error:
        yield Problem(SOURCE_KNOB, "not_importable", str(error))


def _feedback(params: Params) -> Iterator[Problem]:
    """Problems of preferences that are to be imported."""
    source = params.sample_preferences.source
    if isinstance(source, SampledPairs):
        return
    from posttrain.data.importing.preferences import files_of, import_preferences, refuse_too_many_bad

    path = Path(source.path)
    try:
        files = files_of(path)
        if sum(file.stat().st_size for file in files) <= MAX_READ_BYTES:
            found = import_preferences(files)
            refuse_too_many_bad(found, max_quarantine_frac=params.validate_data.max_quarantine_frac, source=path)
    except DataError as error:
        yield Problem(FEEDBACK_KNOB, "not_importable", str(error))


def _model(params: Params) -> Iterator[Problem]:
    """Problems of a pretrained model that can be found without loading it. A model from scratch has
    no names but its adapter's, which its section checks."""
    model = params.model
    if not isinstance(model, PretrainedModel):
        return
    try:
        config = local_config(model, root=tree_root())
    except (OSError, ValueError) as error:
        remedy = (
            "It must be a name of the hub (organisation/model), or a folder with config.json, safetensors and a "
            "tokenizer"
        )
        yield Problem("model.name", "not_found", str(error), remedy, repr(model.name))
        return
    num_layers = config.get("num_hidden_layers")
    is_known = config.get("model_type") in LIKE_QWEN3
    if is_known and isinstance(num_layers, int) and isinstance(model.adapter, LoraAdapter):
        problem = target_problem(model.adapter.target_modules, num_layers)
        yield from [Problem("model", "no_such_layer", problem)] if problem else []


def _memory(params: Params) -> Iterator[Problem]:
    """Problems of stages that have a GPU of known size to themselves. It takes as many seconds as a
    large model has layers, so it is asked only there."""
    cards = dict(named.split("=") for named in os.environ.get(CARDS, "").split(",") if named)
    if not cards or (isinstance(params.model, PretrainedModel) and not local_config(params.model, root=tree_root())):
        return
    from posttrain.memory_estimate.advice import refused_by_cards

    for line in refused_by_cards(params, {name: float(gib) for name, gib in cards.items()}, root=tree_root()):
        yield Problem("model", "no_room", line)


if __name__ == "__main__":
    run_stage(check_params)
