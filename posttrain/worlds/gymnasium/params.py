"""The knobs of the world `gymnasium`."""

from collections.abc import Mapping
from typing import Any, Literal

from posttrain.worlds.text_env import TextEnvParams


class GymnasiumParams(TextEnvParams):
    """`env` is what `gymnasium.make` takes, of a module of one's own as `module:EnvId`. `actions`
    are the words of a Discrete space in their order; without any the agent writes the number.
    `observation`: what the environment renders as `ansi` (kwargs then have `render_mode: ansi`), or
    what it observes. `success_info` names what says in a step's info whether it is one; where it is
    empty the reward does."""

    example = (
        "{seed: 7, num_sft_tasks: 200, num_rl_tasks: 200, num_dev_tasks: 50, num_test_tasks: 100, "
        "env: FrozenLake-v1, kwargs: {is_slippery: false, render_mode: ansi}, actions: [left, down, right, up], "
        "observation: ansi, success_info: '', first_index: {sft: 0, rl: 1000, dev: 2000, test: 3000}, "
        "instructions: 'Walk from S to G over F, never onto H. Write one of: left, down, right, up.', "
        "action_format: text, episode_reward: sum, success_reward: 1.0, max_observation_chars: 2000}"
    )
    type: Literal["gymnasium"]
    env: str
    kwargs: Mapping[str, Any]
    actions: list[str]
    observation: Literal["ansi", "text"]
    success_info: str
