"""Knobs of the section `agent`: the limits of one episode, the tools that it offers, and the
agent's memory."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from posttrain.runtime.knobs import SLIP, Count, Section, SmallCount
from posttrain.types import PLANNER, ROLES, WORKER


class NoMemory(Section):
    """The agent reads the whole episode, which ends where it fills the context."""

    type: Literal["none"]


class WindowMemory(Section):
    """The agent reads the opening and its last turns: once there are `max_turns`, all but
    `keep_turns` of them are left out."""

    example: ClassVar[str] = "{max_turns: 12, keep_turns: 4}"
    type: Literal["window"]
    max_turns: SmallCount
    keep_turns: SmallCount

    @model_validator(mode="after")
    def _keeps_fewer_than_it_has(self) -> Self:
        if self.keep_turns >= self.max_turns:
            raise ValueError(
                f"keep_turns is {self.keep_turns} and max_turns {self.max_turns}: no turn would ever be left out; "
                "lower keep_turns"
            )
        return self


class NotesMemory(WindowMemory):
    """The same, and what the agent wrote by the world's tool `remember` stands in the opening."""

    type: Literal["notes"]  # type: ignore[assignment]


Memory: TypeAlias = NoMemory | WindowMemory | NotesMemory


class OfferedTools(Section):
    """The tools that a task of the world offers."""

    type: Literal["offered"]


class RetrievedTools(Section):
    """The `k` tools nearest the question, of the world's and the catalogue's together."""

    example: ClassVar[str] = "{k: 8}"
    type: Literal["retrieved"]
    k: SmallCount


class SearchedTools(Section):
    """None at first but `search_tools(query)`, which shows the `k` nearest of all."""

    example: ClassVar[str] = "{k: 8}"
    type: Literal["search"]
    k: SmallCount


class OwnWeights(Section):
    """The model that is trained or evaluated."""

    type: Literal["own"]


class FolderWeights(Section):
    """Another model, such as the policy of another run. It is frozen."""

    example: ClassVar[str] = "{path: data/other_role/policy}"
    type: Literal["folder"]
    path: str


class EndpointModel(Section):
    """`model` of the endpoint that OPENAI_BASE_URL names. It is frozen."""

    example: ClassVar[str] = "{model: gpt-4.1-mini}"
    type: Literal["openai"]
    model: str


RolePlayer: TypeAlias = Annotated[OwnWeights | FolderWeights | EndpointModel, Field(discriminator="type")]


class WorkerParams(Section):
    """Sub-agents that are a policy. `max_turns`: its messages for one delegation; the other limits
    are the agent's. `planner` and `worker`: whose weights write each role's messages."""

    example: ClassVar[str] = "{max_turns: 8, planner: {type: own}, worker: {type: own}}"
    max_turns: SmallCount
    planner: RolePlayer
    worker: RolePlayer

    @property
    def others(self) -> Mapping[str, FolderWeights | EndpointModel]:
        """The roles that other weights play."""
        players = {PLANNER: self.planner, WORKER: self.worker}
        return {role: one for role, one in players.items() if not isinstance(one, OwnWeights)}

    @model_validator(mode="after")
    def _one_is_its_own(self) -> Self:
        if len(self.others) == len(ROLES):
            raise ValueError(
                "planner and worker are played by other weights: there is no role left; make one of type own"
            )
        return self


class AgentParams(Section):
    """`tools` and `worker` are as they were before there was the choice, where a record of an older
    run lacks them. Without a `worker` sub-agents are scripted, or there are none."""

    max_turns: SmallCount
    max_new_tokens: Count
    max_context_tokens: Count
    max_seconds: Annotated[float, Field(gt=0)]
    tool_timeout_s: Annotated[float, Field(gt=0)]
    tool_retries: Annotated[int, Field(ge=0, le=1000, description=SLIP)]
    max_result_chars: Count
    max_aborted_frac: Annotated[float, Field(ge=0, lt=1)]
    memory: Annotated[Memory, Field(discriminator="type", default_factory=lambda: NoMemory(type="none"))]
    tools: Annotated[OfferedTools | RetrievedTools | SearchedTools, Field(discriminator="type")] = OfferedTools(
        type="offered"
    )
    worker: WorkerParams | None = None

    @model_validator(mode="after")
    def _worker_has_its_own_tools(self) -> Self:
        if self.worker is not None and self.tools.type != "offered":
            raise ValueError(
                f"worker is set and tools.type {self.tools.type}: a worker's tools are its world's; take offered"
            )
        return self

    @model_validator(mode="after")
    def _one_message_fits_the_context(self) -> Self:
        if self.max_new_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens} and max_context_tokens {self.max_context_tokens}: "
                "one message would fill the episode; raise the context or lower the message"
            )
        return self
