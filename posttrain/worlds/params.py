"""The knobs that every world has. Its section of `params.yaml` begins with these."""

from typing import ClassVar

from pydantic import ConfigDict

from posttrain.runtime.knobs import Count, Section, Seed


class WorldParams(Section):
    """`seed` draws what the world holds and asks; `example` has the knobs of one as YAML."""

    example: ClassVar[str]
    type: str
    seed: Seed
    num_sft_tasks: Count
    num_rl_tasks: Count
    num_dev_tasks: Count
    num_test_tasks: Count


class OwnWorldParams(WorldParams):
    """A world of your own: `type` is `module:function`, which makes a Domain of this section. Any
    further knob is the world's to read (`params.faces`) and to refuse."""

    model_config = ConfigDict(extra="allow")
    example = "{seed: 7, num_sft_tasks: 600, num_rl_tasks: 64, num_dev_tasks: 64, num_test_tasks: 64}"
