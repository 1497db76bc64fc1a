"""A job lies in S3 under names of submitter, key and attempt alone: whatever a stage, a branch or a
knob is called, names are plain."""

import argparse
import re
from dataclasses import dataclass, fields

from posttrain.runtime.exits import ConfigurationError

PATIENCE_S, SHIP_EVERY_S = 120.0, 60.0


@dataclass(frozen=True, slots=True)
class S3Remote:
    """`url` is `s3://bucket` or `s3://bucket/prefix`. An S3 that does not answer is asked again for
    `patience_s`; a job ships what is new of its checkpoints every `ship_every_s`."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    patience_s: float = PATIENCE_S
    ship_every_s: float = SHIP_EVERY_S

    @property
    def bucket(self) -> str:
        """Without the prefix."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """Ends with `/`, or is empty."""
        path = self.url.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{path}/" if path else ""

    def options(self) -> tuple[str, ...]:
        """For a command line whose parser has `add_options`."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        return tuple(f"--{name.replace('_', '-')}={value}" for name, value in said.items() if value is not None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `S3Remote.options` writes."""
    parser.add_argument("--url", required=True, help="s3://bucket/prefix")
    parser.add_argument("--endpoint-url", help="of an S3 that is not Amazon's")
    parser.add_argument("--region")
    parser.add_argument(
        "--patience-s", type=float, default=PATIENCE_S, help="how long an S3 that does not answer is asked again"
    )
    parser.add_argument(
        "--ship-every-s", type=float, default=SHIP_EVERY_S, help="seconds between two looks for new checkpoints"
    )


def from_options(given: argparse.Namespace) -> S3Remote:
    """What `add_options` read."""
    return S3Remote(given.url, given.endpoint_url, given.region, given.patience_s, given.ship_every_s)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """`jobs/SUBMITTER/KEY/…`: what the attempts at one stage with one set of inputs share, and no
    other tree's jobs do."""

    submitter: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "JobFolder":
        """`str` of one. Raises ConfigurationError."""
        found = re.fullmatch(r"([0-9a-f]{32})/([0-9a-f]{64})", text)
        if found is None:
            raise ConfigurationError(f"{text!r} is no SUBMITTER/KEY; the submitter makes it, nobody types it")
        return cls(found[1], found[2])

    def __str__(self) -> str:
        return f"{self.submitter}/{self.key}"

    @property
    def prefix(self) -> str:
        """Of all the names."""
        return f"jobs/{self}/"

    @property
    def checkpoints(self) -> str:
        """Of those of the checkpoints."""
        return f"{self.prefix}checkpoints/"

    @property
    def traces(self) -> str:
        """Of those of the trace stores; the attempt follows."""
        return f"{self.prefix}traces/"

    @property
    def wandb(self) -> str:
        """Of those of the packed runs of W&B."""
        return f"{self.prefix}wandb/"

    @property
    def costs(self) -> str:
        """Of those of what the stage took."""
        return f"{self.prefix}costs/"

    @property
    def snapshots(self) -> str:
        """Of those of the packed trees."""
        return f"{self.prefix}snapshots/"

    @property
    def claims(self) -> str:
        """Of those of the claims."""
        return f"{self.prefix}claims/"

    def claim(self, attempt: int) -> str:
        """What the one process that runs an attempt has made."""
        return f"{self.claims}{attempt}"

    def wandb_runs(self, attempt: int) -> str:
        """The packed runs of one."""
        return f"{self.wandb}{attempt}.tar.gz"

    def costs_of(self, attempt: int) -> str:
        """What it took in one."""
        return f"{self.costs}{attempt}.jsonl"

    def snapshot(self, attempt: int) -> str:
        """The packed tree of one."""
        return f"{self.snapshots}{attempt}.tar.gz"
