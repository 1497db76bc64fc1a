"""What every world of text has among its knobs, and how its splits are parts of one numbered list
of tasks."""

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Count, Section
from posttrain.types import Message, Split, Task
from posttrain.worlds.params import WorldParams
from posttrain.worlds.text_env import TextRules

_Index = Annotated[int, Field(ge=0, le=2**31)]


class FirstIndices(Section):
    """Where each split begins in the environment's numbered tasks, or its seeds."""

    sft: _Index
    rl: _Index
    dev: _Index
    test: _Index


class TextEnvParams(WorldParams):
    """`instructions` are the system message; the rest is as `TextRules` has it."""

    first_index: FirstIndices
    instructions: str
    action_format: Literal["text", "react"]
    episode_reward: Literal["sum", "last"]
    success_reward: Annotated[float, Field(gt=0)]
    max_observation_chars: Count

    @model_validator(mode="after")
    def _no_task_is_in_two_splits(self) -> Self:
        for one, other in combinations(("sft", "rl", "dev", "test"), 2):
            if shared := set(self.indices(one)) & set(self.indices(other)):
                raise ValueError(
                    f"the task {min(shared)} is in {one} and in {other}: first_index and the num_…_tasks must leave "
                    "each split its own, or one is learnt from and tested on"
                )
        return self

    def indices(self, split: str) -> range:
        """The numbers of a split's tasks."""
        first: int = getattr(self.first_index, split)
        return range(first, first + getattr(self, f"num_{split}_tasks"))

    def rules(self) -> TextRules:
        """Of an episode."""
        return TextRules(self.action_format, self.episode_reward, self.success_reward, self.max_observation_chars)


def numbered_tasks(params: TextEnvParams, name: str, split: Split, count: int) -> list[Task]:
    """As `Domain.tasks`; the goal of a task is its number."""
    if split == "test_paraphrase":
        return []
    indices: Sequence[int] = params.indices(split)
    if count > len(indices):
        raise ValueError(f"{count} {split} tasks are asked for, and num_{split}_tasks is {len(indices)}")
    opening = (Message("system", params.instructions),) if params.instructions else ()
    return [
        Task(f"{name}/{index}", split, opening, (), labels={"environment": name}, goal=json.dumps({"index": index}))
        for index in indices[:count]
    ]


def index_of(task: Task) -> int:
    """The number of a task."""
    return int(json.loads(task.goal)["index"])
