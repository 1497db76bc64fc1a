"""The world that a person names on the command line or in Python: its section, its domain, its
reward, and the knobs that go with it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.runtime.exits import ConfigurationError

if TYPE_CHECKING:
    from posttrain.config.params import Params
    from posttrain.rewards.params import RewardParams
    from posttrain.rewards.total import RuleReward
    from posttrain.worlds.params import WorldParams
    from posttrain.worlds.protocol import Domain

PARAMS = Path("params.yaml")
DEMO = Path("experiments/demo.yaml")  # small sizes of everything, as changes of params.yaml
_OF_WORLD = ("world", "agent", "validate_data", "resample_data.cells", "evaluate.by", "train_sft.label_weights")
# Where params.yaml weighs scores that the world does not give. A repeated read costs a little, or
# nothing would tell it from a play without one.
DEFAULT_REWARD = {
    "weights": {"completion": 0.75, "strictness": 0.2, "format": 0.05},
    "penalties": {"redundant_call": -0.01},
    "extra": [],
}

# Where params.yaml names another world, whose episodes its limits are about.
DEFAULT_AGENT = {
    "max_turns": 30,
    "max_new_tokens": 1024,
    "max_context_tokens": 32_768,
    "max_seconds": 900.0,
    "tool_timeout_s": 60.0,
    "tool_retries": 1,
    "max_result_chars": 20_000,
    "max_aborted_frac": 0.02,
}


def knobs_for_world(
    name: str, knobs: Mapping[str, Any], *, is_quick: bool, file: Path = PARAMS
) -> tuple["Params", bool]:
    """The knobs of `file`, made small by `experiments/demo.yaml` where `is_quick`, then `knobs`;
    and whether the files name that world. Of another one the section is its example, the limits
    are `DEFAULT_AGENT`, and no label is weighed."""
    from posttrain.config.params import parse_params, read_knobs, set_knobs

    content = read_knobs(_found(file).read_bytes(), source=str(file))
    if is_quick:
        is_its_own = bool(name) and name == content["world"]["type"]
        small = {key: value for key, value in demo_knobs().items() if not (is_its_own and key.startswith(_OF_WORLD))}
        list(set_knobs(content, small, source=str(DEMO)))
    is_named = not name or name == content["world"]["type"]
    if not is_named:
        content["world"], content["agent"] = section_of(name, None).model_dump(mode="json"), DEFAULT_AGENT
        content["evaluate"]["by"] = content["resample_data"]["cells"] = []
        content["train_sft"]["label_weights"] = {}
        content["train_policy"]["begin_with"] = None  # which needs successes
        _fit_to_tasks(content, content["world"]["num_rl_tasks"])
    list(set_knobs(content, knobs, source="your setting"))
    return parse_params(content, source=f"{file} with these settings"), is_named


def _fit_to_tasks(content: dict[str, Any], num_rl_tasks: int) -> None:
    """No more tasks at a time than an example has, in an order that needs none of its labels."""
    content["sample_preferences"]["num_tasks"] = min(content["sample_preferences"]["num_tasks"], num_rl_tasks)
    algorithm = content["train_policy"]["algorithm"]
    if algorithm["type"] == "online":
        algorithm["tasks_per_step"] = min(algorithm["tasks_per_step"], num_rl_tasks)
        algorithm["sampling"]["order"] = {"type": "uniform"}


def demo_knobs() -> Mapping[str, Any]:
    """Knobs of `experiments/demo.yaml`."""
    from posttrain.config.params import read_knobs

    knobs: Mapping[str, Any] = read_knobs(_found(DEMO).read_bytes(), source=str(DEMO))["set"]
    return knobs


def _found(file: Path) -> Path:
    """In the working folder, or else in the clone that this library was installed from."""
    for root in (Path(), Path(__file__).parents[2]):
        if (root / file).is_file():
            return root / file
    raise ConfigurationError(f"{file} is not here; run from the root of the repository")


def read_settings(path: Path | None) -> "Params | None":
    """The whole params.yaml; None where no path is given and the folder has none."""
    from posttrain.config.params import load_params

    return None if path is None and not PARAMS.exists() else load_params(path or PARAMS)


def section_of(name: str, settings: "Params | None") -> "WorldParams":
    """The section of `settings` where it names this world, or else the world's example."""
    from posttrain.runtime.knobs import nearest
    from posttrain.worlds.catalog import WORLDS, example_params

    if settings is not None and settings.world.type == name:
        return settings.world
    if name not in WORLDS and ":" not in name:
        raise ConfigurationError(
            f"there is no world {name!r}; there are {', '.join(WORLDS)}, and your own is written module:name."
            f"{nearest(name, WORLDS)}"
        )
    try:
        return example_params(name)
    except ValueError as error:
        raise ConfigurationError(f"{name!r} is no world; your own is written module:name") from error


def domain_of(section: "WorldParams") -> "Domain":
    """The domain of a section. Raises ConfigurationError where none can be made."""
    from posttrain.runtime.exits import StageError
    from posttrain.runtime.limits import reason
    from posttrain.worlds.catalog import make_domain

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as for the stages: your own code lies in the repository
    try:
        domain = make_domain(section)
    except StageError as error:
        raise ConfigurationError(str(error)) from error
    except Exception as error:  # somebody's own code, a package or server that is not there
        raise ConfigurationError(
            f"the world {section.type} cannot be made ({type(error).__name__}: {reason(error)}); it is called with "
            "its section of params.yaml"
        ) from error
    if missing := [part for part in ("name", "tools", "tasks", "open") if not hasattr(domain, part)]:
        raise ConfigurationError(
            f"{section.type} gives a {type(domain).__name__} without {', '.join(missing)}; "
            "a Domain has name, tools, tasks and open (posttrain/worlds/protocol.py)"
        )
    return domain


def reward_of(domain: "Domain", settings: "Params | None", source: str) -> tuple["RuleReward", str]:
    """The reward of episodes, and a phrase that says whose it is (`reward_section`)."""
    from posttrain.rewards.total import load_reward
    from posttrain.worlds.catalog import score_names

    section, whose = reward_section(domain, settings, source)
    return load_reward(section, score_names(domain)), whose


def reward_section(domain: "Domain", settings: "Params | None", source: str) -> tuple["RewardParams", str]:
    """The knobs of the reward, and a phrase that says whose they are: those of `settings`, the
    content of `source`, without extra scores; or the default where they weigh scores that the world
    does not give."""
    from posttrain.rewards.params import RewardParams
    from posttrain.rewards.total import load_reward
    from posttrain.worlds.catalog import score_names

    default = RewardParams.model_validate(DEFAULT_REWARD)
    if settings is None:
        return default, "the default reward"
    try:
        own = settings.reward.model_copy(update={"extra": []})
        load_reward(own, score_names(domain))
    except ConfigurationError:
        return default, f"the default reward, as {source} weighs other scores"
    return own, f"the reward of {source}"
