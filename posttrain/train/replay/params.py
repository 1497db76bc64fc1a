"""The knobs of what joins the groups that were played."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Section, SmallCount


class JoinsNothing(Section):
    """Groups are what was played."""

    type: Literal["none"]


class JoinsExpert(Section):
    """`count` traces of the world's expert are members of every group (LUFFY): an oracle. Their
    tokens' probability p is made likelier through p / (p + `gamma`), or through log p where gamma
    is null."""

    example: ClassVar[str] = "{count: 1, gamma: 0.1}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type expert"
    type: Literal["expert"]
    count: SmallCount
    gamma: Annotated[float, Field(gt=0)] | None


class JoinsBest(Section):
    """The best episode of the task in earlier steps is a member of a group in which nothing
    succeeded (AR3PO's reuse)."""

    example: ClassVar[str] = "{}"
    type: Literal["best"]


class JoinsHints(Section):
    """`share` of a group's episodes begin behind the first turns of the world's expert: an oracle.
    The share of its turns that is given begins at `start` for each task and falls by `step` with
    each group in which one succeeded."""

    example: ClassVar[str] = "{share: 0.5, start: 0.75, step: 0.25}"
    knob: ClassVar[str] = "train_policy.algorithm.join.type hints"
    type: Literal["hints"]
    share: Annotated[float, Field(gt=0, le=1)]
    start: Annotated[float, Field(gt=0, le=1)]
    step: Annotated[float, Field(gt=0, le=1)]


JoinParams = Annotated[JoinsNothing | JoinsExpert | JoinsBest | JoinsHints, Field(discriminator="type")]
