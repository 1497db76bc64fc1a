"""Plan of the next `dvc repro`: the stages that it will run, and why. DVC's own comparison,
followed through the whole graph.

`dvc repro --dry` compares every stage with the outputs that lie there now, and so is silent about
all stages after a changed one. Here the outputs of a changed stage are those that the run cache has
of the same inputs; where it has none, they are not known before the stage has run.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dvc.dependency import Dependency
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro
from dvc.stage import PipelineStage
from dvc.stage.serialize import to_single_stage_lockfile

from posttrain.pipeline.graph import name_in, reading
from posttrain.provenance.fingerprint import PARAMS_FILE
from posttrain.provenance.lockfile import differences
from posttrain.provenance.run_cache import read_runs
from posttrain.runtime.exits import DataError
from posttrain.runtime.import_by_name import load_named

# In a stage's `meta`. CONSTANT: its outputs are the same whatever it reads. IDLE_DEPS names the
# function (`module:name`) that says by the stage's knobs which of its deps it does not read
CONSTANT, IDLE_DEPS = "is_constant", "idle_deps"
_MAX_VALUE_CHARS = 40
# cached: it is changed, and its result comes from the run cache; maybe: it depends on outputs that
# are not known yet
Fate: TypeAlias = Literal["current", "cached", "runs", "maybe"]


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """`changed` names differences from `dvc.lock` (`train_sft.lr 0.006 → 0.004`, a path).
    `waits_for`: the stages before it whose outputs are not known yet. `is_constant`: its own are
    the same after what changed."""

    name: str
    fate: Fate
    changed: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    is_constant: bool = False


def read_plan(root: Path, targets: Sequence[str] = ()) -> tuple[PlannedStage, ...]:
    """Plan every stage that `dvc repro [TARGET…]` looks at, in its order. Nothing is run or
    written.

    Raises DataError where an input is missing that no stage makes, ConfigurationError where DVC
    refuses the tree or a target, Interrupted where another DVC is at work.
    """
    with reading(root) as repo, contextlib.chdir(root):  # DVC takes targets from the working folder
        steps = plan_repro(get_active_graph(repo.index.graph), collect_stages(repo, targets or ["dvc.yaml"]))
        planning = _Planning(repo)
        return tuple(planning.next(step) for step in steps if isinstance(step, PipelineStage))


@dataclass(frozen=True, slots=True)
class _Made:
    """Output of a changed stage, for the stages after it. `md5` is None where it is not known
    yet."""

    stage: str
    md5: str | None


class _Planning:
    """Plan of one `dvc repro`, made stage by stage in its order."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._made: dict[str, _Made] = {}  # by absolute path, of the stages that are not current

    def next(self, stage: PipelineStage) -> PlannedStage:
        name = name_in(stage, Path(self._repo.root_dir))
        files = [dep for dep in stage.deps if not isinstance(dep, ParamsDependency)]
        if stage.frozen or (not any(self._makers(dep) for dep in files) and not stage.changed()):
            return PlannedStage(name, "current")
        open_deps = {dep.def_path: maker for dep in files for maker in self._makers(dep) if not self._is_known(dep)}
        of_deps = {dep.def_path: path for dep in files if (path := self._change_of(dep, name))}
        changed = [*_changes_of_command(stage), *of_deps.values()]
        changed += [change for knobs in stage.params for change in _changes_of_knobs(knobs)]
        is_of_deps_alone, are_inputs_same = len(changed) == len(of_deps), not changed
        changed += [f"{out.def_path} is {next(iter(out.status().values()))}" for out in stage.outs if out.status()]
        if not any(item.hash_info for item in (*stage.deps, *stage.outs)):
            changed = ["dvc.lock has nothing of it"]
        if not changed and not open_deps:
            return PlannedStage(name, "current")
        fate: Fate = "maybe"
        outs = None
        if changed:
            found = self._results(stage, open_deps, may_be_recorded=are_inputs_same)
            if not found:
                fate = "runs"
            elif not open_deps:
                fate, outs = "cached", found[0]
        is_constant = bool((stage.meta or {}).get(CONSTANT)) or (
            is_of_deps_alone and bool(touched := {*of_deps, *open_deps}) and touched <= _idle_deps(stage)
        )
        for out in stage.outs:
            md5 = outs[out.def_path] if outs else out.hash_info.value if is_constant and out.hash_info else None
            self._made[out.fs_path] = _Made(name, md5)
        waits_for = tuple(dict.fromkeys(open_deps.values()))
        return PlannedStage(name, fate, tuple(changed), waits_for, is_constant)

    def _makers(self, dep: Dependency) -> list[str]:
        """Changed stages that make the dep, a part of it, or a folder around it."""
        path = Path(dep.fs_path)
        overlapping = (out for out in self._made if path.is_relative_to(out) or Path(out).is_relative_to(path))
        return [self._made[out].stage for out in overlapping]

    def _is_known(self, dep: Dependency) -> bool:
        made = self._made.get(dep.fs_path)
        return made is not None and made.md5 is not None

    def _change_of(self, dep: Dependency, name: str) -> str:
        """The changed path; empty where it is the same, or not known yet. Raises DataError where it
        is missing."""
        if self._is_known(dep):
            made = self._made[dep.fs_path]
            return f"{dep.def_path} of {made.stage}" if made.md5 != dep.hash_info.value else ""
        if self._makers(dep):
            return ""
        if not dep.exists:
            raise DataError(
                f"{name} reads {dep.def_path}, which is not there and which no stage makes: `dvc repro` ends with an "
                "error when it comes to it. Put it back, or take it out of dvc.yaml"
            )
        return dep.def_path if dep.status() else ""

    def _results(
        self, stage: PipelineStage, open_deps: Mapping[str, str], *, may_be_recorded: bool
    ) -> list[dict[str, str]]:
        """MD5 of each output by path, of results that DVC would take without running the stage; one
        at most where all inputs are known. Without changed inputs DVC takes the one of `dvc.lock`,
        else the newest of the run cache."""
        if stage.is_callback or stage.always_changed or not stage.deps or any(out.persist for out in stage.outs):
            return []  # DVC keeps no run of such a stage
        entries: list[Mapping[str, Any]] = []
        if may_be_recorded and all(out.hash_info for out in stage.outs):
            entries = [to_single_stage_lockfile(stage)]
        if not entries or open_deps:
            entries += [run for run in self._runs if self._is_of(run, stage, open_deps)][: None if open_deps else 1]
        return [{out["path"]: out["md5"] for out in entry["outs"]} for entry in entries if self._is_whole(entry, stage)]

    def _is_of(self, run: Mapping[str, Any], stage: PipelineStage, open_deps: Mapping[str, str]) -> bool:
        """True if a run had the stage's present command, outputs and inputs, without those not
        known yet."""
        deps = [
            {"path": dep.def_path, "md5": self._md5_of(dep)}
            for dep in stage.deps
            if not isinstance(dep, ParamsDependency) and dep.def_path not in open_deps
        ]
        params = {knobs.def_path: knobs.read_params() for knobs in stage.params}
        outs_of_run = {out["path"] for out in run.get("outs") or ()}
        if run.get("cmd") != stage.cmd or outs_of_run != {out.def_path for out in stage.outs}:
            return False
        now = {"cmd": stage.cmd, "deps": deps, "params": params}
        return set(differences(now, run, parts=["deps"])) <= set(open_deps)

    def _md5_of(self, dep: Dependency) -> str:
        made = self._made.get(dep.fs_path)
        md5: str = made.md5 if made is not None and made.md5 is not None else dep.get_hash().value
        return md5

    def _is_whole(self, entry: Mapping[str, Any], stage: PipelineStage) -> bool:
        """True if the cache still has all that it names."""
        return bool(self._repo.stage_cache._create_stage(entry, wdir=stage.wdir).outs_cached())

    @cached_property
    def _runs(self) -> list[dict[str, Any]]:
        return read_runs(Path(self._repo.root_dir))


def _idle_deps(stage: PipelineStage) -> frozenset[str]:
    if (name := (stage.meta or {}).get(IDLE_DEPS)) is None:
        return frozenset()
    knobs = {key: value for own in stage.params for key, value in own.read_params(flatten=True).items()}
    idle: frozenset[str] = load_named(name, knob=f"meta.{IDLE_DEPS} of {stage.name} in dvc.yaml is")(knobs)
    return idle


def _changes_of_command(stage: PipelineStage) -> Iterator[str]:
    if stage.always_changed or stage.is_callback:
        yield "it always runs"
    if stage.changed_stage():
        yield "its command"


def _changes_of_knobs(knobs: ParamsDependency) -> Iterator[str]:
    """Changed knobs, each by itself where `dvc.yaml` names a section."""
    if not knobs.status():
        return
    file = "" if knobs.def_path == PARAMS_FILE else f"{knobs.def_path}: "
    for change in _leaves(knobs.hash_info.value or {}, knobs.read_params()):
        yield file + change


def _leaves(then: Any, now: Any, key: str = "") -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for part in dict.fromkeys((*then, *now)):
            yield from _leaves(then.get(part), now.get(part), f"{key}.{part}" if key else str(part))
    elif then != now:
        yield f"{key} {_short(then)} → {_short(now)}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
