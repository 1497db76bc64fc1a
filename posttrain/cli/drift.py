"""`posttrain drift`: the demonstrations against those of a commit."""

import json
from pathlib import Path

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError, DataError

_SUMMARY = Path("reports/validate_data/summary.json")


def add_drift(commands: Commands) -> None:
    command = add_command(commands, "drift", drift)
    command.add_argument("revision", nargs="?", default="HEAD", help="commit, branch or tag (%(default)s)")


def drift(revision: str) -> None:
    """Compare the validated demonstrations with those of a commit: their number, lengths, labels
    and tools. Exits with 65 where one changed by more than `validate_data.drift` allows."""
    from posttrain.config.params import load_params
    from posttrain.data.validation.drift import drift as changes_between
    from posttrain.data.validation.drift import drift_table
    from posttrain.pipeline.git import file_at

    if not _SUMMARY.is_file():
        raise ConfigurationError(f"{_SUMMARY} is not there: run `posttrain run validate_data` first")
    then = file_at(Path.cwd(), revision, _SUMMARY.as_posix())
    if then is None:
        raise ConfigurationError(f"{revision} has no {_SUMMARY} to compare with: commit one, or name another revision")
    bounds = load_params(Path("params.yaml")).validate_data.drift
    changes = changes_between(json.loads(then), json.loads(_SUMMARY.read_bytes()), bounds)
    print(drift_table(changes))
    if drifted := [change.figure for change in changes if change.is_drift]:
        raise DataError(f"the demonstrations are not as at {revision}: {', '.join(drifted)} changed beyond the limit")
