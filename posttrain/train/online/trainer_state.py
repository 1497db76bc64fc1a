"""Inputs of an online training and its state besides weights and optimizer: which tasks came up,
what they earned, what may be replayed, and what greedy plays of dev tasks came to. The state is in
the checkpoint, from which a run resumes to the same bytes with any number of processes."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_model
from torch import nn

from posttrain.models import distributed, sharding
from posttrain.models.codec import TokenRow
from posttrain.rollout.generator import EpisodeSource
from posttrain.runtime.exits import StoppedByAlarm
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.checkpointing import PREFIX, prune, seal
from posttrain.train.losses import KlWeight
from posttrain.train.online.constraints import Constraints
from posttrain.train.online.params import DevParams, OnlineParams
from posttrain.train.replay import ExpertTraces, Replay
from posttrain.train.resumable_trainer import METRICS, TrainingRun
from posttrain.train.reward_refresh import RewardRefresh
from posttrain.train.roles import EQUAL, RoleWeights
from posttrain.train.sampling.orders import Sampler
from posttrain.train.sharded_state import is_sharded_state, load_optimizer_file, load_shards, load_weights, save_shards
from posttrain.types import ScoredEpisode, Task

MAX_SKIPPED = 3  # updates in a row
BEST = "best.safetensors"
WEIGHTS, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "online.json"  # files of a checkpoint
_PARTS = ("sampler", "replay", "constraints", "kl", "dev")
_COUNTS = ("num_generated", "num_begun", "num_skipped")

OnStep = Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """`dev_tasks` are evaluated by `play_greedily`. `demonstrations`: rows whose loss is logged.
    `on_step` gets a step, its episodes and their mean advantages before the update. `expert`:
    gives a number of an expert's traces of a task; None where none are replayed. `process_model`:
    what `credit` takes values from, where it does. `refresh`: lets the reward models learn on.
    `role_weights`: of the advantages of two policies in one episode."""

    tasks: Sequence[Task]
    source: EpisodeSource
    demonstrations: Sequence[TokenRow] = ()
    on_step: OnStep = lambda *_: None
    dev_tasks: Sequence[Task] = ()
    play_greedily: Callable[[Sequence[Task]], Sequence[ScoredEpisode]] = lambda _: ()
    expert: ExpertTraces | None = None
    score_weights: Mapping[str, float] = field(default_factory=dict)
    process_model: Any = None
    refresh: RewardRefresh | None = None
    role_weights: RoleWeights = EQUAL


class TrainerState:
    def __init__(self, params: OnlineParams, inputs: TrainingInputs, *, seed: int) -> None:
        self._params = params
        self.sampler: Sampler = params.sampling.order.make(inputs.tasks, seed=seed)
        self.replay: Replay = params.join.make(inputs.expert)
        self.constraints = Constraints(params.constraints)
        self.kl = KlWeight(params.kl)
        self.dev = DevEvaluation(params.dev, inputs)
        self.num_generated = 0
        self.num_begun = 0  # groups of asynchronous play
        self.num_skipped = 0  # updates in a row

    def done_frac(self, step: int) -> float:
        """Share of the training that is done, by the nearer of its limits in steps and tokens."""
        # two limits, in steps and in tokens
        budget = self._params.max_generated_tokens
        return max(step / self._params.max_steps, self.num_generated / budget if budget else 0.0)

    def grouped(self, task: Task, episodes: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """The group of a task just played, with what is replayed. Sampler, replay and the count
        of tokens observe it, before the next tasks are chosen."""
        played, replayed = map(self.constraints.charged, (episodes, self.replay.replayed(task, episodes)))
        group = EpisodeGroup(task, played, replayed)
        self.num_generated += sum(sum(one.trajectory.mask) for one in episodes)
        # a group of one has no spread to be observed
        kept = [one for one in episodes if not one.is_aborted]
        if len(kept) > 1:
            success = sum(one.is_success for one in kept) / len(kept)
            self.sampler.observe(task.task_id, has_spread=group.has_spread, success=success)
        return group

    def observe_updates(self, is_skipped: Sequence[bool]) -> None:
        """Count updates that were skipped in a row. Raises StoppedByAlarm after `MAX_SKIPPED`."""
        for is_one in is_skipped:
            self.num_skipped = self.num_skipped + 1 if is_one else 0
            if self.num_skipped == MAX_SKIPPED:
                raise StoppedByAlarm(
                    f"the gradients of {MAX_SKIPPED} updates in a row were not finite, and none of them was made: "
                    "numbers without a bound are learnt from, or the policy has diverged; lower train_policy.lr, and "
                    "bound what the reward can be"
                )

    def state(self) -> Mapping[str, object]:
        parts = {name: getattr(self, name).state() for name in _PARTS}
        return {**parts, **{name: getattr(self, name) for name in _COUNTS}}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in _PARTS:
            getattr(self, name).restore(state[name])
        for name in _COUNTS:
            setattr(self, name, state[name])


class DevEvaluation:
    """Greedy plays of dev tasks. The first run is before the first step: `forgotten` is against
    that."""

    def __init__(self, params: DevParams, inputs: TrainingInputs) -> None:
        self._params, self._inputs = params, inputs
        self._solved_at_first: list[str] | None = None
        self._best, self._best_step = -1.0, 0  # strict success, and after which step

    def run(self, step: int) -> dict[str, float]:
        """Play the tasks, each process its share. Returns the metrics; none without tasks. Raises
        Interrupted, in all processes, where too many episodes were aborted."""
        tasks = self._inputs.dev_tasks[: self._params.num_tasks]
        if not tasks:
            return {}
        if self._inputs.source.is_elsewhere:
            # servers play all at once: the first process alone asks them
            own = tasks if distributed.is_first() else []
        else:
            own = tasks[distributed.index() :: distributed.count()]
        episodes = self._inputs.play_greedily(own) if own or distributed.is_sharded() else ()
        together = [one for of_process in distributed.gather(list(episodes)) for one in of_process]
        self._inputs.source.refuse_many_aborted(together)
        return self._metrics(step, together)

    def _metrics(self, step: int, episodes: Sequence[ScoredEpisode]) -> dict[str, float]:
        """`dev_success` and `dev_strict_success` of tasks that were not lost, and `forgotten`:
        the share of those solved at first that are not now. At first a, b of a, b, c, now b, c:
        2/3, and 1/2."""
        kept = [one for one in episodes if not one.is_aborted]
        won = {one.trajectory.task_id for one in kept if one.is_success}
        if self._solved_at_first is None:
            self._solved_at_first = sorted(won)
        again = {one.trajectory.task_id for one in kept} & set(self._solved_at_first)
        strict = sum(one.trajectory.is_strict_success for one in kept) / max(len(kept), 1)
        if strict > self._best:
            self._best, self._best_step = strict, step
        return {
            "dev_success": len(won) / max(len(kept), 1),
            "dev_strict_success": strict,
            "forgotten": len(again - won) / max(len(again), 1),
        }

    def keep(self, model: nn.Module, folder: Path, step: int) -> None:
        if self._params.keep != "best" or self._best_step != step:
            return
        partial = folder / f"{BEST}.partial"
        if distributed.is_sharded():
            sharding.write_weights_in_turn(sharding.named_weights(model), partial)
        elif distributed.is_first():
            save_model(model, str(partial))
        if distributed.is_first():
            # a kill while writing leaves the weights that were best before
            os.replace(partial, folder / BEST)

    def take(self, model: nn.Module, folder: Path, step: int) -> None:
        """Load the best weights into `model`, which has those after `step` steps."""
        if self._params.keep == "best" and self._best_step != step and self._best >= 0:
            # the first process writes the file that all of them read
            distributed.wait_for_all()
            load_weights(model, folder / BEST)

    def state(self) -> Mapping[str, object]:
        return {"solved_at_first": self._solved_at_first, "best": self._best, "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._solved_at_first, self._best, self._best_step = state["solved_at_first"], state["best"], state["best_step"]


class SavedPart(Protocol):
    """Something with files of its own in a checkpoint; saved by all processes, of which the first
    writes what each has."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


def save_checkpoint(
    run: TrainingRun,
    step: int,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    parts: Sequence[SavedPart],
) -> None:
    """Write and seal a checkpoint after `step`; all processes must call it. `parts` write files of
    their own into the folder. Where the model is sharded each process writes its shards."""
    folder = run.folder / f"{PREFIX}{step}"
    if distributed.is_first():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    if distributed.is_sharded():
        distributed.wait_for_all()
        save_shards(folder, model, optimizer)
    for part in parts:
        part.save(folder)
    if run.metrics is not None:
        if not distributed.is_sharded():
            save_model(model, str(folder / WEIGHTS))
            torch.save(optimizer.state_dict(), folder / OPTIMIZER)
        seal_checkpoint(run, folder, {"step": step, **state})
    distributed.wait_for_all()


def seal_checkpoint(run: TrainingRun, folder: Path, state: Mapping[str, Any]) -> None:
    """Write what a checkpoint has besides weights, seal it and remove those before it; of the
    process that writes metrics."""
    assert run.metrics is not None
    (folder / STATE).write_text(json.dumps(state, sort_keys=True), encoding="utf-8")
    shutil.copyfile(run.metrics.path, folder / METRICS)
    seal(folder)
    prune(run.folder, keep=None)


def load_checkpoint(
    checkpoint: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, parts: Sequence[SavedPart]
) -> dict[str, Any]:
    """Load the weights, the optimizer's state and the files of `parts`, each process its share.
    Returns `state` as saved, with its step."""
    for part in parts:
        part.load(checkpoint)
    if is_sharded_state(checkpoint):
        load_shards(checkpoint, model, optimizer)
    else:
        load_weights(model, checkpoint / WEIGHTS)
        load_optimizer_file(optimizer, checkpoint / OPTIMIZER)
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state
