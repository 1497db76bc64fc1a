"""Names of a job's objects in S3: of submitter, key and attempt alone, so that they are plain
however a stage, a branch or a knob is called."""

import argparse
import re
from dataclasses import dataclass

from posttrain.dispatch.settings import S3Remote
from posttrain.runtime.exits import ConfigurationError

RECORDS = ("snapshots", "claims", "traces", "wandb", "costs")  # what a job leaves beside its checkpoints


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--remote` and `--place`, which `options` writes."""
    parser.add_argument("--remote", type=S3Remote.model_validate_json, required=True, help="S3Remote as JSON")
    parser.add_argument("--place", type=JobFolder.parse, required=True, help="SUBMITTER/KEY")


def options(remote: S3Remote, place: "JobFolder") -> tuple[str, ...]:
    """For the command line of a program whose parser has `add_options`."""
    return (f"--remote={remote.model_dump_json()}", f"--place={place}")


@dataclass(frozen=True, slots=True)
class JobFolder:
    """`jobs/SUBMITTER/KEY/…`: objects that the attempts at one stage with one set of inputs share,
    and no other tree's jobs do."""

    submitter: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "JobFolder":
        """Inverse of `str`. Raises ConfigurationError."""
        found = re.fullmatch(r"([0-9a-f]{32})/([0-9a-f]{64})", text)
        if found is None:
            raise ConfigurationError(f"{text!r} is no SUBMITTER/KEY; the submitter makes it, nobody types it")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"{self.submitter}/{self.key}"

    @property
    def prefix(self) -> str:
        return f"jobs/{self}/"

    def folder(self, kind: str) -> str:
        """Prefix of `checkpoints`, or of one of `RECORDS`, where an attempt's number follows."""
        return f"{self.prefix}{kind}/"

    def claim(self, attempt: int) -> str:
        """Made by the one process that runs an attempt."""
        return f"{self.folder('claims')}{attempt}"

    def snapshot(self, attempt: int) -> str:
        return f"{self.folder('snapshots')}{attempt}.tar.gz"
