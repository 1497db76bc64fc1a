"""A pretrained model's config.json as it lies on this machine, read without transformers."""

import json
from pathlib import Path
from typing import Any

from posttrain.params import PretrainedModel


def local_config(model: PretrainedModel, *, root: Path = Path()) -> dict[str, Any]:
    """A model's config.json as its folder below `root` or the hub's cache on this machine has it;
    empty where only the hub has.

    Raises OSError or ValueError where the folder has none, or the name can be none of the hub's.
    """
    from huggingface_hub import try_to_load_from_cache  # a fifth of a second, and asked for nothing else

    if (folder := root / model.name).is_dir():
        return read_config(folder / "config.json")
    found = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
    return read_config(Path(found)) if isinstance(found, str) else {}


def read_config(file: Path) -> dict[str, Any]:
    """Raises OSError or ValueError."""
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("its config.json is no object")
    return config
