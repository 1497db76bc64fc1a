"""The world named on the command line: its section of params.yaml, its domain and its reward."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.runtime.exits import ConfigurationError

if TYPE_CHECKING:
    from posttrain.config.params import Params
    from posttrain.rewards.total import RuleReward
    from posttrain.worlds.params import WorldParams
    from posttrain.worlds.protocol import Domain

PARAMS = Path("params.yaml")
# Used where params.yaml weighs scores that the world does not give. A repeated read costs a little,
# or such an episode would earn as much as one without.
DEFAULT_REWARD = {
    "weights": {"completion": 0.75, "strictness": 0.2, "format": 0.05},
    "penalties": {"redundant_call": -0.01},
    "extra": [],
}


def read_settings(path: Path | None) -> "Params | None":
    """The whole params.yaml; None where no path is given and the folder has none. Raises
    ConfigurationError where it is wrong."""
    from posttrain.config.params import load_params

    return None if path is None and not PARAMS.exists() else load_params(path or PARAMS)


def section_of(name: str, settings: "Params | None") -> "WorldParams":
    """The section of `settings` where it names this world, or else the world's example. Raises
    ConfigurationError where there is no such world."""
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
    """The domain of a section. Raises ConfigurationError where it cannot be made, or what is made
    is no Domain."""
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
    """The reward of episodes, and a phrase that says whose it is: that of `settings`, the content
    of `source`, without extra scores; or the default where it weighs scores that the world does not
    give."""
    from posttrain.rewards.params import RewardParams
    from posttrain.rewards.total import load_reward
    from posttrain.worlds.catalog import score_names

    default = RewardParams.model_validate(DEFAULT_REWARD)
    if settings is None:
        return load_reward(default, score_names(domain)), "the default reward"
    try:
        own = settings.reward.model_copy(update={"extra": []})
        return load_reward(own, score_names(domain)), f"the reward of {source}"
    except ConfigurationError:
        return load_reward(default, score_names(domain)), f"the default reward, as {source} weighs other scores"
