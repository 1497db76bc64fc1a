"""Reads the whole `params.yaml` and refuses what no stage would, or what one would after hours.

That is a misspelt knob, which DVC alone ignores because no stage lists it, a name that leads
nowhere, and knobs that contradict each other. Its output is constant: every stage depends on it,
and none runs again because an unrelated knob was edited. No name is looked up in a network.
"""

import inspect
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from posttrain.exits import ConfigurationError, DataError
from posttrain.named import load_named
from posttrain.params import WORLDS, ImportSource, LoraAdapter, Params, PretrainedModel, refusal, target_problem
from posttrain.rewards.total import load_reward
from posttrain.stage.fingerprint import read_all_inputs
from posttrain.stage.frame import StageRun, run_stage
from posttrain.stage.named_files import SOURCE_KNOB, live_root, score_knob, undeclared, world_knob

MAX_READ_BYTES = 8 * 2**20  # of an import: a second's work. A larger one has rows enough, and the next stage reads it
LIKE_QWEN3 = ("llama", "mistral", "qwen2", "qwen3")  # the `model_type` of models with LINEAR_LAYERS in each layer


def check_params(run: StageRun) -> None:
    hidden = undeclared(read_all_inputs(Path("dvc.yaml")), run.params, looked_up_by="check_params")
    knobs = {knob for knob, _ in hidden}  # these lead out of the copy that this stage works in
    problems = [line for _, line in hidden]
    problems += [*_names(run.params, besides=knobs), *_import(run.params, besides=knobs), *_model(run.params)]
    if problems:
        raise refusal(problems, "params.yaml")
    output = Path("data/params.checked")
    output.parent.mkdir(exist_ok=True)
    output.write_text("params.yaml has known keys, values in range and no contradiction.\n", encoding="utf-8")


def _names(params: Params, *, besides: Collection[str]) -> Iterator[str]:
    """Code of one's own, imported as training will; what the library has is known without."""
    world = params.world.type
    if world not in WORLDS and world_knob(params) not in besides:
        try:
            inspect.signature(load_named(world, knob="world.type is")).bind(params.world)
        except ConfigurationError as error:
            yield str(error)
        except (TypeError, ValueError) as error:  # ValueError: one that Python cannot tell the arguments of
            yield f"world.type is {world!r}, which does not take the world's section alone ({error}); it must"
    for extra in params.reward.extra:
        if score_knob(extra.name) not in besides:
            try:
                load_reward(params.reward.model_copy(update={"extra": [extra]}))
            except ConfigurationError as error:
                yield str(error)
            except ValueError as error:  # of a function that Python cannot tell the arguments of
                yield f"reward.extra names {extra.name!r}: {error}; it must take (trajectory, task) and return a Score"


def _import(params: Params, *, besides: Collection[str]) -> Iterator[str]:
    source = params.generate_data.source
    if not isinstance(source, ImportSource) or SOURCE_KNOB in besides:
        return
    from posttrain.data.importers import import_trajectories  # loads pyarrow, which no other knob wants

    file, at_least = Path(source.path), max(2, params.train_sft.batch_size)
    if file.is_file() and file.stat().st_size > MAX_READ_BYTES:
        return
    try:
        rows = import_trajectories(file, source.format)
    except DataError as error:
        yield f"{SOURCE_KNOB}: {error}"
        return
    if len(rows) < at_least:
        yield (
            f"{SOURCE_KNOB} = {source.path!r}: the file has {len(rows)} rows, and train_sft.batch_size is "
            f"{params.train_sft.batch_size}: each step would learn all of them, and the same ones again. "
            f"Import {at_least} or more{', or lower the batch' if len(rows) > 1 else ''}"
        )


def _model(params: Params) -> Iterator[str]:
    """Of a pretrained model, what can be told without loading it; one from scratch has no names but
    its adapter's."""
    model = params.model
    if not isinstance(model, PretrainedModel):
        return
    try:
        config = _local_config(model)
    except (OSError, ValueError) as error:
        yield (
            f"model.name = {model.name!r}: {error}. It must be a name of the hub (organisation/model), or a folder "
            "with config.json, safetensors and a tokenizer"
        )
        return
    num_layers = config.get("num_hidden_layers")
    is_known = config.get("model_type") in LIKE_QWEN3
    if is_known and isinstance(num_layers, int) and isinstance(model.adapter, LoraAdapter):
        problem = target_problem(model.adapter.target_modules, num_layers)
        yield from [f"model: {problem}"] if problem else []


def _local_config(model: PretrainedModel) -> dict[str, Any]:
    """The model's config.json as its folder or the hub's cache on this machine has it; empty where
    only the hub has.

    Raises OSError or ValueError where the folder has none, or the name can be none of the hub's.
    """
    from huggingface_hub import try_to_load_from_cache  # a fifth of a second, and asked for nothing else

    folder = live_root() / model.name
    if folder.is_dir():
        file = str(folder / "config.json")
    else:
        found = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
        if not isinstance(found, str):
            return {}
        file = found
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("its config.json is no object")
    return config


if __name__ == "__main__":
    run_stage(check_params)
