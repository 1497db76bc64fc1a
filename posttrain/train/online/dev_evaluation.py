"""How far a training got, on dev tasks that it never learns from, played greedily: what it can do
now, what it could at first and cannot any more, and the best weights so far.
"""

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


class Dev:
    """The plays before the first step are the first that it hears of."""

    def __init__(self, params: DevParams, setup: TrainingInputs) -> None:
        self._params, self._setup = params, setup
        self._sure: list[str] | None = None
        self._best, self._best_step = -1.0, 0  # strict success, and after which step

    def played(self, step: int) -> dict[str, float]:
        """As `heard`, of plays by the weights as they are after `step` steps; of several processes
        each plays its share. Nothing where there are no tasks."""
        tasks = self._setup.dev_tasks[: self._params.num_tasks]
        if not tasks:
            return {}
        if self._setup.source.is_elsewhere:
            own = tasks if distributed.is_first() else []
        else:
            own = tasks[distributed.index() :: distributed.count()]
        played = self._setup.play_greedily(own) if own else ()
        return self.heard(step, [one for of_process in distributed.gather(list(played)) for one in of_process])

    def heard(self, step: int, played: Sequence[ScoredEpisode]) -> dict[str, float]:
        """`dev_success` and `dev_strict_success` of the tasks that were not lost, and `forgotten`:
        the share of those solved at first that are not now.

        At first a, b of a, b, c, now b, c: 2/3, and 1/2 is forgotten.
        """
        kept = [one for one in played if not one.is_lost]
        won = {one.trajectory.task_id for one in kept if one.is_success}
        if self._sure is None:
            self._sure = sorted(won)
        again = {one.trajectory.task_id for one in kept} & set(self._sure)
        strict = sum(one.trajectory.is_strict_success for one in kept) / max(len(kept), 1)
        if strict > self._best:
            self._best, self._best_step = strict, step
        return {
            "dev_success": len(won) / max(len(kept), 1),
            "dev_strict_success": strict,
            "forgotten": len(again - won) / max(len(again), 1),
        }

    def keep(self, model: nn.Module, folder: Path, step: int) -> None:
        """Write the weights down where they are the best so far and the best are wanted."""
        if self._params.keep == "best" and self._best_step == step and distributed.is_first():
            save_model(model, str(folder / f"{BEST}.partial"))
            os.replace(folder / f"{BEST}.partial", folder / BEST)

    def take(self, model: nn.Module, folder: Path, step: int) -> None:
        """Give `model`, which has the weights after `step` steps, the best ones where these are
        wanted."""
        if self._params.keep == "best" and self._best_step != step and self._best >= 0:
            distributed.wait_for_all()
            load_model(model, str(folder / BEST))

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        return {"sure": self._sure, "best": self._best, "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        self._sure, self._best, self._best_step = state["sure"], state["best"], state["best_step"]
