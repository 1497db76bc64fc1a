"""Knobs of the section `evaluate`: the teacher, the samples per task and the labels to break
success down by."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from posttrain.runtime.knobs import SLIP, Count, Section

STYLE = "style"  # in `by`, where no label: whether the agent reasoned


SplitBeside: TypeAlias = Literal["dev", "dev_paraphrase", "test_paraphrase", "test_noisy"]


class ExpertTeacher(Section):
    type: Literal["expert"]


class OpenAiTeacher(Section):
    """A model behind an OpenAI-compatible endpoint; endpoint and key are the environment's."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, max_new_tokens: 512}"
    type: Literal["openai"]
    model: str
    max_new_tokens: Count


class EvaluateParams(Section):
    by: list[str]
    beside: Annotated[list[SplitBeside], Field(default_factory=lambda: ["test_paraphrase"])]
    teacher: Annotated[ExpertTeacher | OpenAiTeacher, Field(discriminator="type")]
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=SLIP)]  # for pass^4
