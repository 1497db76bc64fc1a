"""Graph of the stages in `dvc.yaml` as plain values: inputs, outputs, order.

DVC is asked instead of parsing `dvc.yaml` again, because matrices, templates and overlapping
outputs are its rules and not ours. A flow adds targets, retries and a schedule to this graph, and
never an edge of its own.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro
from dvc.stage import PipelineStage

from posttrain.pipeline.snapshot import locked
from posttrain.provenance.fingerprint import PARAMS_FILE
from posttrain.runtime.exits import ConfigurationError, Interrupted


@dataclass(frozen=True, slots=True)
class StageNode:
    """One node: a stage, or one item of a matrix stage (`evaluate@sft`).

    `command` is the shell line (several, joined by newlines, where `cmd` is a list). `deps` and
    `outs` are paths relative to the root, in the order of `dvc.yaml`. `params` are keys of
    `params.yaml`; a key of another file reads `other.yaml:key`. `upstream` names the nodes whose
    outs it reads.
    """

    name: str
    command: str
    description: str
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    params: tuple[str, ...]
    upstream: tuple[str, ...]

    @property
    def stage(self) -> str:
        """`evaluate` of `evaluate@sft`."""
        return self.name.partition("@")[0]


def read_graph(root: Path) -> tuple[StageNode, ...]:
    """Every node in the order of `dvc repro`, each after all of its upstream. Raises
    ConfigurationError where DVC refuses the file."""
    try:
        with Repo(str(root)) as repo:
            return _nodes(repo, root)
    except DvcException as error:
        raise ConfigurationError(
            f"DVC reads no graph from {root}: {error}. Without it no stage can run; `dvc status` says more"
        ) from error


def is_current(root: Path, name: str) -> bool:
    """True if the node's inputs, knobs and outputs are those of `dvc.lock`. Raises
    ConfigurationError where DVC refuses the file."""
    with reading(root) as repo:
        return any(name_in(stage, root) == name and not stage.changed() for stage in _stages(repo))


def read_tree(root: Path) -> tuple[tuple[StageNode, ...], frozenset[str]]:
    """Nodes of `read_graph`, and names of those that are current, in one reading: half of either is
    DVC loading its files."""
    with reading(root) as repo:
        return _nodes(repo, root), frozenset(name_in(stage, root) for stage in _stages(repo) if not stage.changed())


@contextlib.contextmanager
def reading(root: Path) -> Iterator[Repo]:
    """The repository under DVC's own lock. Raises Interrupted where another DVC is at work in it,
    ConfigurationError where DVC refuses the tree."""
    try:
        with locked(root) as repo:
            yield repo
    except LockError as error:
        raise Interrupted(f"another dvc runs a stage in {root} ({error}); run again when it is done") from error
    except (DvcException, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ELOOP):  # a link to nothing
            raise
        raise ConfigurationError(
            f"DVC cannot tell what is up to date in {root}: {error}; `dvc status` says more"
        ) from error


def name_in(stage: PipelineStage, root: Path) -> str:
    """Name of a stage that `dvc repro` takes in the root; DVC's own `addressing` depends on the
    working folder."""
    file = _relative(stage.path, root)
    return stage.name if file == "dvc.yaml" else f"{file}:{stage.name}"


def _stages(repo: Repo) -> list[PipelineStage]:
    return [stage for stage in repo.index.stages if isinstance(stage, PipelineStage)]


def _nodes(repo: Repo, root: Path) -> tuple[StageNode, ...]:
    edges = [
        (name_in(needed, root), name_in(stage, root))
        for stage, needed in repo.index.graph.edges
        if isinstance(needed, PipelineStage)
    ]
    stages = [stage for stage in plan_repro(repo.index.graph) if isinstance(stage, PipelineStage)]
    return tuple(_node(stage, root, edges) for stage in stages)


def _node(stage: PipelineStage, root: Path, edges: Iterable[tuple[str, str]]) -> StageNode:
    files = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
    knobs = [dep for dep in stage.deps if isinstance(dep, ParamsDependency)]
    name = name_in(stage, root)
    return StageNode(
        name=name,
        command=stage.cmd if isinstance(stage.cmd, str) else "\n".join(stage.cmd or ()),
        description=stage.desc or "",
        deps=tuple(_relative(dep.fs_path, root) for dep in files),
        outs=tuple(_relative(out.fs_path, root) for out in stage.outs),
        params=tuple(_key(_relative(dep.fs_path, root), key) for dep in knobs for key in dep.params),
        upstream=tuple(sorted(needed for needed, reader in edges if reader == name)),
    )


def _key(file: str, key: str) -> str:
    return key if file == PARAMS_FILE else f"{file}:{key}"


def _relative(path: str, root: Path) -> str:
    return Path(os.path.relpath(path, root.resolve())).as_posix()
