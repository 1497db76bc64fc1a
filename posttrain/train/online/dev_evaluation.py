"""Greedy evaluation on dev tasks during a training: success, what was forgotten since its start,
and the best weights so far."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from posttrain.models import distributed
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.params import DevParams
from posttrain.types import ScoredEpisode

BEST = "best.safetensors"


class DevEvaluation:
    """To be run before the first step for the first time: `forgotten` is measured against that."""

    def __init__(self, params: DevParams, inputs: TrainingInputs) -> None:
        self._params, self._inputs = params, inputs
        self._solved_at_first: list[str] | None = None
        self._best, self._best_step = -1.0, 0  # strict success, and after which step

    def run(self, step: int) -> dict[str, float]:
        """Play the tasks with the weights as they are after `step` steps, each process its share.
        Returns the metrics; none where there are no tasks."""
        tasks = self._inputs.dev_tasks[: self._params.num_tasks]
        if not tasks:
            return {}
        if self._inputs.source.is_elsewhere:
            own = tasks if distributed.is_first() else []
        else:
            own = tasks[distributed.index() :: distributed.count()]
        episodes = self._inputs.play_greedily(own) if own else ()
        return self._metrics(step, [one for of_process in distributed.gather(list(episodes)) for one in of_process])

    def _metrics(self, step: int, episodes: Sequence[ScoredEpisode]) -> dict[str, float]:
        """`dev_success` and `dev_strict_success` of the tasks that were not lost, and `forgotten`:
        the share of those solved at first that are not now.

        At first a, b of a, b, c, now b, c: 2/3, and 1/2 is forgotten.
        """
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
        """Save the weights if they are the best so far and params.yaml asks for the best."""
        if self._params.keep == "best" and self._best_step == step and distributed.is_first():
            save_model(model, str(folder / f"{BEST}.partial"))
            os.replace(folder / f"{BEST}.partial", folder / BEST)

    def take(self, model: nn.Module, folder: Path, step: int) -> None:
        """Load the best weights into `model`, which has those after `step` steps, if params.yaml
        asks for the best."""
        if self._params.keep == "best" and self._best_step != step and self._best >= 0:
            distributed.wait_for_all()
            load_model(model, str(folder / BEST))

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        return {"solved_at_first": self._solved_at_first, "best": self._best, "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        self._solved_at_first, self._best, self._best_step = state["solved_at_first"], state["best"], state["best_step"]
