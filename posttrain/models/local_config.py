"""Reads the config.json of a pretrained model on this machine, without importing transformers."""

import json
from pathlib import Path
from typing import Any

from posttrain.models.params import PretrainedModel
from posttrain.runtime.limits import cut

_MAX_BYTES = 16 * 2**20  # of config.json: thousands of labels fit
_MAX_LAYERS = 1_000  # the deepest published models have fewer than 200
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def local_config(model: PretrainedModel, *, root: Path = Path()) -> dict[str, Any]:
    """config.json from the model's folder below `root` or from the hub's cache; empty where only
    the hub has it. Raises OSError or ValueError where the folder has none, or the name cannot be
    one of the hub's."""
    from huggingface_hub import try_to_load_from_cache  # takes a fifth of a second to import

    if (folder := root / model.name).is_dir():
        return read_config(folder / "config.json")
    found = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
    return read_config(Path(found)) if isinstance(found, str) else {}


def read_config(file: Path) -> dict[str, Any]:
    """An object of finite numbers, whose sizes are whole and above 0. Raises OSError or ValueError
    for anything else: the file is untrusted."""
    if file.stat().st_size > _MAX_BYTES or not file.is_file():  # a pipe would be read for ever
        raise ValueError(f"its config.json is no file, or one of more than {_MAX_BYTES} bytes")
    try:
        config = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("its config.json has brackets nested too deep to read") from error
    if not isinstance(config, dict):
        raise ValueError("its config.json is no object")
    for name in _SIZES:
        size = config.get(name)
        if size is None or isinstance(size, list):  # Gemma 3n has a size for each layer
            continue
        if type(size) is not int or size < 1 or (name == "num_hidden_layers" and size > _MAX_LAYERS):
            most = f" up to {_MAX_LAYERS}" if name == "num_hidden_layers" else ""
            raise ValueError(
                f"its config.json has {name} {cut(repr(size), 40)}; it must be a whole number from 1{most}"
            )
    return config


def _refuse_constant(name: str) -> None:
    raise ValueError(f"its config.json has a number {name}, which is none")
