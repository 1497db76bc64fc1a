"""Knobs of the section `agent`: the limits of one episode, and the tools that it offers."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import SLIP, Count, Section, SmallCount


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
