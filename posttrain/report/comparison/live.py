"""Finds the trainings that run now, by the metrics that they write, in the frozen copies in which
stages of this tree, of its worktrees and of its jobs on this machine work.

A copy has the knobs that its stage reads, and these tell the branch: that whose `params.yaml` is
the same. Trainings on other machines write where nobody here can look.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.report.comparison.git_objects import object_ids, worktrees
from posttrain.report.comparison.runs import CURVES
from posttrain.report.knobs import parse_knobs
from posttrain.report.run_reader import parse_metrics
from posttrain.runtime.state import STATE_DIR

_COPIES = ("frozen/*", "snapshots/*")
_MAX_STEPS = {"SFT": "train_sft.max_steps", "policy": "train_policy.algorithm.max_steps"}


@dataclass(frozen=True, slots=True)
class LiveTraining:
    """`branches` have its knobs; none where they were edited and not committed. `source` is a key
    of CURVES; `max_steps` 0 where its knobs do not say; `written_s` when its last line came, in
    seconds since 1970."""

    branches: Sequence[str]
    source: str
    lines: Sequence[Mapping[str, Any]]
    max_steps: int
    written_s: float

    @property
    def step(self) -> int:
        return int(self.lines[-1]["step"]) if self.lines else 0


def live_trainings(root: Path, branches: Sequence[str]) -> list[LiveTraining]:
    """The one that wrote last first."""
    blobs = object_ids(root, [f"refs/heads/{branch}:./params.yaml" for branch in branches])
    params = dict(zip(branches, blobs, strict=True))
    found = [one for copy in _copies(root) for one in _of_copy(copy, params)]
    return sorted(found, key=lambda one: -one.written_s)


def _copies(root: Path) -> Iterator[Path]:
    seen = set()
    for folder in (root, *worktrees(root)):
        for pattern in _COPIES:
            for copy in (folder / STATE_DIR).glob(pattern):
                if copy.is_dir() and copy.resolve() not in seen:
                    seen.add(copy.resolve())
                    yield copy


def _of_copy(copy: Path, params: Mapping[str, str | None]) -> Iterator[LiveTraining]:
    """Trainings in one copy; `params` is git's hash of each branch's knobs."""
    for source, path in CURVES.items():
        try:
            content, written_s = (copy / path).read_bytes(), (copy / path).stat().st_mtime
            text = (copy / "params.yaml").read_bytes()
        except OSError:
            continue
        lines, _ = parse_metrics(content)
        try:
            knobs = parse_knobs(text)
        except ValueError:
            knobs = {}
        max_steps = knobs.get(_MAX_STEPS[source])
        blob = hashlib.sha1(b"blob %d\0" % len(text) + text, usedforsecurity=False).hexdigest()  # git's name of it
        branches = [branch for branch, name in params.items() if name == blob]
        yield LiveTraining(branches, source, lines, max_steps if isinstance(max_steps, int) else 0, written_s)
