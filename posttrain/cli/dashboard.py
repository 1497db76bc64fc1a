"""`posttrain dashboard`: all branches and the trainings that run, in a browser."""

from pathlib import Path

from posttrain.cli.command import Commands, add_command


def add_dashboard(commands: Commands) -> None:
    """The command `dashboard`."""
    command = add_command(commands, "dashboard", dashboard)
    command.add_argument("--port", type=int, default=0, help="of 127.0.0.1; any that is free by default")


def dashboard(port: int) -> None:
    """Serve all local branches and the trainings that run, to compare in a browser, until Ctrl-C.
    For this user alone: the address that is printed has a key."""
    from posttrain.report.comparison.dashboard import Dashboard

    with Dashboard(Path(), port) as server:
        print(f"the dashboard, until Ctrl-C: {server.address}", flush=True)
        server.serve_forever()
