"""Lists the local branches, a line each, quick enough to be read again whenever one moves."""

from dataclasses import dataclass
from pathlib import Path

from posttrain.pipeline.git import git
from posttrain.report.comparison.git_objects import object_ids, read_objects
from posttrain.report.run_reader import Evaluation, parse_object

_FIELDS = ("refname:lstrip=2", "objectname", "authorname", "committerdate:iso-strict", "contents:subject")


@dataclass(frozen=True, slots=True)
class BranchLine:
    """A branch with the figures of its policy; None where it has no evaluation that can be read."""

    name: str
    commit: str
    author: str
    committed_at: str
    subject: str
    strict_success_rate: float | None
    success_rate: float | None
    pass_hat_4: float | None


def list_branches(root: Path) -> list[BranchLine]:
    """The one with the newest commit first. Raises ConfigurationError where `root` is in no
    repository."""
    text = git(
        root,
        "for-each-ref",
        "--sort=-committerdate",
        f"--format={'%00'.join(f'%({field})' for field in _FIELDS)}",
        "refs/heads",
    )
    rows = [line.split("\0") for line in text.splitlines()]
    ids = object_ids(root, [f"{row[1]}:./reports/evaluate/policy.json" for row in rows])
    contents = dict(read_objects(root, filter(None, ids)))
    lines = []
    for (name, commit, author, committed_at, subject), blob in zip(rows, ids, strict=True):
        found = _evaluation(contents[blob]) if blob is not None else None
        rates = (found.strict_success_rate, found.success_rate, found.pass_hat_4) if found else (None, None, None)
        lines.append(BranchLine(name, commit, author, committed_at, subject, *rates))
    return lines


def _evaluation(content: bytes) -> Evaluation | None:
    try:
        return parse_object(Evaluation, content)
    except (ValueError, RecursionError):
        return None
