"""Model config that the knobs name, without its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from posttrain.config.params import Params
from posttrain.models.local_config import local_config, read_config
from posttrain.models.params import PretrainedModel
from posttrain.models.scratch import scratch_config
from posttrain.runtime.exits import ConfigurationError


def model_config(params: Params, *, folder: Path | None = None, root: Path = Path()) -> PretrainedConfig:
    """That of `folder` where there is one; `root` is where names in the knobs lead from. Raises
    ConfigurationError where it has none, or where a model of the hub is not on this machine."""
    model = params.model
    if folder is not None:
        return _made(str(folder), lambda: read_config(folder / "config.json"))
    if isinstance(model, PretrainedModel):
        return _made(model.name, lambda: local_config(model, root=root))
    return scratch_config(model, vocab_size=model.vocab_size, max_context_tokens=params.agent.max_context_tokens)


def _made(name: str, read: Callable[[], dict[str, Any]]) -> PretrainedConfig:
    try:
        if not (found := read()):
            raise ConfigurationError(
                f"model.name = {name!r} is not on this machine: name a folder that has its config.json (--model)"
            )
        return AutoConfig.for_model(**found)
    except ConfigurationError:
        raise
    except Exception as error:  # a stranger's config may end transformers anywhere
        raise ConfigurationError(f"no model can be made of the config of {name!r}: {error}") from error
