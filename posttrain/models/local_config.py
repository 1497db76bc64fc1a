"""Reads the config.json of a pretrained model on this machine, without importing transformers."""

import json
from pathlib import Path
from typing import Any

from posttrain.models.params import PretrainedModel


def local_config(model: PretrainedModel, *, root: Path = Path()) -> dict[str, Any]:
    """config.json from the model's folder below `root` or from the hub's cache; empty where only
    the hub has it. Raises OSError or ValueError where it cannot be read."""
    from huggingface_hub import try_to_load_from_cache  # takes a fifth of a second to import

    if (folder := root / model.name).is_dir():
        return read_config(folder / "config.json")
    found = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
    return read_config(Path(found)) if isinstance(found, str) else {}


def read_config(file: Path) -> dict[str, Any]:
    """Raises OSError or ValueError where the file is no JSON object."""
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("its config.json is no object")
    return config
