"""The console command `posttrain`.

Exit codes are those of the stages: 65 for bad data, 78 for a wrong configuration. A person waits
for every import, so each command imports what it needs, and the arguments are read by the standard
library alone.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from posttrain.cli.annotate import add_annotate
from posttrain.cli.check_world import add_check_world
from posttrain.cli.clean import add_clean
from posttrain.cli.command import grouped_help
from posttrain.cli.compare import add_compare
from posttrain.cli.debug import add_debug
from posttrain.cli.demo import add_demo
from posttrain.cli.evaluate import add_evaluate
from posttrain.cli.export_env import add_export_env
from posttrain.cli.health import add_health
from posttrain.cli.jobs import add_jobs
from posttrain.cli.judge import add_judge
from posttrain.cli.models import add_models
from posttrain.cli.pipeline import add_pipeline
from posttrain.cli.tools import add_tools
from posttrain.cli.traces import add_traces
from posttrain.cli.train import add_train
from posttrain.runtime.exits import exit_codes
from posttrain.runtime.redaction import redact_uncaught

ADD = (
    *(add_pipeline, add_compare, add_health, add_traces, add_debug, add_annotate, add_jobs, add_clean),
    *(add_models, add_check_world, add_export_env, add_train, add_evaluate, add_judge, add_demo, add_tools),
)
GROUPS = {
    "Pipeline": "run plan summary verify",
    "Results": "compare dashboard drift health record traces debug edits annotate judge",
    "Models": "train evaluate get-model adopt-model export export-gguf serve",
    "Worlds": "check-world export-env serve-env demo tools",
    "Housekeeping": "jobs clean",
    "For make": "export-served",
}


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` ask for, those of the process by default."""
    redact_uncaught()
    with exit_codes():
        given = vars(make_parser().parse_args(arguments))
        try:
            given.pop("command")(**given)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            print("interrupted: what is done is kept", file=sys.stderr)
            raise SystemExit(128 + signal.SIGINT) from None


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands: `command` of a parsed line is a function of its other
    arguments."""
    parser = argparse.ArgumentParser("posttrain", formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, help="`posttrain COMMAND --help` explains one")
    for add in ADD:
        add(commands)
    parser.epilog = grouped_help(commands, GROUPS)
    return parser


if __name__ == "__main__":
    app()
