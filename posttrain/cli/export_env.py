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
    command.add_argument("--as", dest="trainer", choices=["trl", "verl", "verifiers", "openenv"], required=True)
    command = add_command(commands, "serve-env", serve_env)
    command.add_argument("folder", type=Path, help="an exported world's")
    command.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; this machine's alone by default"
    )
    command.add_argument("--port", type=int, default=8200, help="(8200)")
    command.add_argument("--max-sessions", type=int, default=256, help="episodes at once (256)")
    command.add_argument("--session-timeout", type=float, default=900.0, help="seconds of silence that end one (900)")


def export_env(world: str, target: Path, trainer: "Trainer") -> None:
    """Write a world as a folder that TRL, verl, verifiers or OpenEnv plays: its knobs, and a
    module, script or configuration in the trainer's own terms."""
    from posttrain.export.world_folder import write_world_folder

    write_world_folder(world, target, trainer)
    print(f"{target}: {target / 'README.md'} says how it is played")


def serve_env(folder: Path, host: str, port: int, max_sessions: int, session_timeout: float) -> None:
    """Serve an exported world by OpenEnv's protocol, until Ctrl-C."""
    from posttrain.export.env_server import serve_world
    from posttrain.export.world_folder import load_exported

    world = load_exported(folder)
    serve_world(world, host=host, port=port, max_sessions=max_sessions, session_timeout_s=session_timeout)
