"""The config of the model that the knobs name, without its weights."""

from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from posttrain.exits import ConfigurationError
from posttrain.footprint.local_config import local_config, read_config
from posttrain.models.scratch import scratch_config
from posttrain.params import Params, PretrainedModel


def model_config(params: Params, *, folder: Path | None = None, root: Path = Path()) -> PretrainedConfig:
    """That of `folder` where there is one; `root` is where names in the knobs lead from. Raises
    ConfigurationError where it has none, or where a model of the hub is not on this machine."""
    model = params.model
    if folder is None and not isinstance(model, PretrainedModel):
        return scratch_config(model, vocab_size=model.vocab_size, max_context_tokens=params.agent.max_context_tokens)
    try:
        found = local_config(model, root=root) if folder is None else read_config(folder / "config.json")
        if not found:
            raise ConfigurationError(
                f"model.name = {model.name!r} is not on this machine: name a folder that has its config.json (--model)"
            )
        return AutoConfig.for_model(**found)
    except (OSError, ValueError, TypeError) as error:
        name = model.name if folder is None else folder
        raise ConfigurationError(f"the config of {str(name)!r} cannot be used: {error}") from error
