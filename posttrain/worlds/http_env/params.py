"""The knobs of the world `http_env`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from posttrain.worlds.text_env import TextEnvParams


class HttpEnvParams(TextEnvParams):
    """`id_field` is what the server calls an environment, `task_field` a task (WebShop: env_idx and
    session_id; ALFWorld: id and game; most others: id and data_idx); `create` and `reset` are
    further fields of these requests. `reward_field` is what counts of a step."""

    example = (
        "{seed: 7, num_sft_tasks: 200, num_rl_tasks: 200, num_dev_tasks: 44, num_test_tasks: 100, "
        "name: textcraft, url: 'http://127.0.0.1:36001', id_field: id, task_field: data_idx, reward_field: reward, "
        "create: {}, reset: {}, timeout_s: 60.0, tries: 3, first_index: {sft: 0, rl: 200, dev: 400, test: 444}, "
        "instructions: 'Craft what is asked. Answer with Thought: and Action:.', action_format: react, "
        "episode_reward: sum, success_reward: 1.0, max_observation_chars: 4000}"
    )
    type: Literal["http_env"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,60}$")]
    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
    id_field: str
    task_field: str
    reward_field: str
    create: Mapping[str, Any]
    reset: Mapping[str, Any]
    timeout_s: Annotated[float, Field(gt=0)]
    tries: Annotated[int, Field(ge=1, le=100)]
