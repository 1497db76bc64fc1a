"""`posttrain export-env` and `serve-env`: a world for other trainers."""

from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.cli.command import Commands, add_command

if TYPE_CHECKING:
    from posttrain.export.world_folder import Trainer


def add_export_env(commands: Commands) -> None:
    command = add_command(commands, "export-env", export_env)
    command.add_argument("world", help="a world's type, for its example knobs, or a params.yaml")
    command.add_argument("target", type=Path, help="the folder to write")
    command.add_argument("--as", dest="trainer", choices=["trl", "verifiers", "openenv"], required=True)


def export_env(world: str, target: Path, trainer: "Trainer") -> None:
    """Write a world as a folder that TRL, verifiers or OpenEnv plays: its knobs, and a module or
    script in the trainer's own terms."""
    from posttrain.export.world_folder import write_world_folder

    write_world_folder(world, target, trainer)
    print(f"{target}: {target / 'README.md'} says how it is played")
