"""Shares of the reward by role, where two policies play in one episode (`agent.worker`)."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from posttrain.runtime.knobs import Section
from posttrain.types import ROLES, Trajectory


class RoleWeights(Section):
    """The advantage of an episode counts so many times for the tokens of each role. A role of
    weight 0 is frozen: its tokens are context, and no loss, KL or entropy is of them."""

    planner: Annotated[float, Field(ge=0)]
    worker: Annotated[float, Field(ge=0)]

    @property
    def of_roles(self) -> Mapping[str, float]:
        return {role: getattr(self, role) for role in ROLES}

    @model_validator(mode="after")
    def _one_learns(self) -> Self:
        if not any(self.of_roles.values()):
            raise ValueError("the weights of planner and worker are 0: nothing would be learnt; raise one")
        return self


EQUAL = RoleWeights(planner=1.0, worker=1.0)


def learnt_part(trajectory: Trajectory, weights: RoleWeights) -> Trajectory:
    """The record whose mask is of the roles that learn."""
    frozen = {role for role, weight in weights.of_roles.items() if not weight}
    if not frozen & {*trajectory.roles}:
        return trajectory
    windows = list(zip(trajectory.roles, trajectory.windows, strict=True))
    mask = chain.from_iterable(
        [0] * (part.stop - part.start) if role in frozen else trajectory.mask[part] for role, part in windows
    )
    kept = tuple(mask)
    logprobs = tuple(one if is_own else 0.0 for one, is_own in zip(trajectory.logprobs, kept, strict=True))
    return replace(trajectory, mask=kept, logprobs=logprobs)


def num_written(trajectory: Trajectory) -> Mapping[str, int]:
    """Tokens in the mask by role."""
    found = dict.fromkeys(ROLES, 0)
    for role, part in zip(trajectory.roles, trajectory.windows, strict=True):
        found[role] += sum(trajectory.mask[part])
    return found


def weighed(advantages_T: NDArray[np.float64], trajectory: Trajectory, weights: RoleWeights) -> NDArray[np.float64]:
    """Advantages of an episode's agent tokens times the weight of each one's role: at weights 1 and
    1/2, advantages 2 of two tokens of the planner and one of its worker are 2, 2 and 1."""
    if weights == EQUAL:
        return advantages_T
    counts = [sum(trajectory.mask[part]) for part in trajectory.windows]
    weights_T: NDArray[np.float64] = np.repeat([weights.of_roles[role] for role in trajectory.roles], counts)
    return advantages_T * weights_T
