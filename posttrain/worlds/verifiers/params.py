"""The knobs of the world `verifiers`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.worlds.text_env import NumberedTasksParams


class VerifiersParams(NumberedTasksParams):
    """`environment` is the id of a taskset (verifiers 0.4, v1), `config` the rest of its block
    `env`: `{taskset: …, agent: …}`. A success is an episode with a reward of `success_reward` or
    more."""

    example = (
        "{seed: 7, num_sft_tasks: 1, num_rl_tasks: 64, num_dev_tasks: 16, num_test_tasks: 32, "
        "environment: my-taskset, config: {agent: {harness: {id: 'null'}, runtime: {type: subprocess}}}, "
        "first_index: {sft: 0, rl: 1, dev: 65, test: 81}, success_reward: 1.0}"
    )
    type: Literal["verifiers"]
    environment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@/-]{1,100}$")]
    config: Mapping[str, Any]
    success_reward: Annotated[float, Field(gt=0)]
