"""Knobs of the section `agent`: the limits of one episode."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import SLIP, Count, Section, SmallCount


class AgentParams(Section):
    max_turns: SmallCount
    max_new_tokens: Count
    max_context_tokens: Count
    max_seconds: Annotated[float, Field(gt=0)]
    tool_timeout_s: Annotated[float, Field(gt=0)]
    tool_retries: Annotated[int, Field(ge=0, le=1000, description=SLIP)]
    max_result_chars: Count
    max_aborted_frac: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _one_message_fits_the_context(self) -> Self:
        if self.max_new_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens} and max_context_tokens {self.max_context_tokens}: "
                "one message would fill the episode; raise the context or lower the message"
            )
        return self
