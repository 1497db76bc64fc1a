"""`posttrain export` and `posttrain serve`: a trained model out of the pipeline, and behind an
endpoint."""

import os
from pathlib import Path
from typing import Literal

from posttrain.cli.command import Commands, add_command
from posttrain.exits import ConfigurationError

SERVE = Path("infra/vllm/serve.sh")


def add_serving(commands: Commands) -> None:
    """Both commands."""
    command = add_command(commands, "export", export)
    command.add_argument("name", choices=["sft", "policy"], help="which model, of data/models")
    command.add_argument("target", type=Path, help="the folder to write")
    command.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the weights; model.dtype by default")
    command.add_argument("--licence", help="as the hub spells it; that of the base model's card by default")
    command = add_command(commands, "serve", serve)
    command.add_argument("folder", type=Path, help="an exported model's")
    command.add_argument("--port", type=int, default=8101, help="on 127.0.0.1, or on HOST (8101)")


def export(name: str, target: Path, dtype: Literal["float32", "bfloat16"] | None, licence: str | None) -> None:
    """Write a trained model as a folder that transformers and vLLM read: weights with the adapters
    in them, tokenizer, chat template, and a card of what was measured."""
    from posttrain.export.model_card import model_card
    from posttrain.export.model_folder import write_exported
    from posttrain.stage.lockfile import lock_entries

    card = model_card(Path(), name, licence=licence)
    computed = lock_entries(Path())[f"evaluate@{name}"]["params"]["params.yaml"]["model"]["dtype"]
    write_exported(Path("data/models") / name, target, card=card, dtype=dtype or computed)
    print(f"{target}: {target / 'README.md'} says what was measured, `posttrain serve {target}` starts vLLM on it")


def serve(folder: Path, port: int) -> None:
    """Start vLLM on an exported model, with its template and the parser of its calls, until Ctrl-C:
    OPENAI_BASE_URL is http://127.0.0.1:PORT/v1, and the model's name the folder's."""
    from posttrain.export.model_folder import vllm_settings

    if not SERVE.is_file():
        raise ConfigurationError(f"{SERVE} is not here: run this from the root of the repository")
    if not (SERVE.parent / ".venv").exists():
        raise ConfigurationError(f"vLLM is not in {SERVE.parent / '.venv'}: {SERVE.parent / 'setup.sh'} puts it there")
    flags, environment = vllm_settings(folder)
    os.execve(SERVE, [str(SERVE), str(folder), str(port), *flags], environment | os.environ)  # noqa: S606
