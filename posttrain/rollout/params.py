"""Knobs of the section `agent`: the limits of one episode, the tools that it offers, and the
agent's memory."""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from posttrain.runtime.knobs import SLIP, Count, Section, SmallCount


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


class AgentParams(Section):
    """`tools` is as it was before there was the choice, where a record of an older run lacks it."""

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

    @model_validator(mode="after")
    def _one_message_fits_the_context(self) -> Self:
        if self.max_new_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens} and max_context_tokens {self.max_context_tokens}: "
                "one message would fill the episode; raise the context or lower the message"
            )
        return self
