"""A world as a folder for other trainers: its knobs, and a module or a script in the trainer's own
terms. The folder has `params.yaml` with the sections `world`, `agent` and `reward`, so it plays the
same world wherever `posttrain` is installed."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import pyarrow as pa
import yaml
from jinja2 import Environment, StrictUndefined
from pydantic import ValidationError

from posttrain.config.named_world import PARAMS, domain_of, knobs_for_world, reward_section
from posttrain.config.params import read_knobs
from posttrain.data.files import write_parquet
from posttrain.export.verl_config import AGENT_LOOPS, ROWS, VERL, agent_loops, differences, verl_config, verl_rows
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import RuleReward, load_reward
from posttrain.rollout.params import AgentParams
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knob_errors import why_unread
from posttrain.runtime.knobs import Section
from posttrain.types import Message, Split, Task
from posttrain.worlds.catalog import World, score_names, tasks_of
from posttrain.worlds.protocol import Domain
from posttrain.worlds.tools import tool_from

Trainer = Literal["trl", "verl", "verifiers", "openenv"]
_TEMPLATES = resources.files("posttrain.export") / "templates"
_FILES: dict[Trainer, Sequence[str]] = {  # `MODULE` in a name is the module's
    "trl": ("train.py", "README.md"),
    "verl": ("README.md",),
    "verifiers": ("MODULE.py", "pyproject.toml", "README.md"),
    "openenv": ("README.md",),
}


def _say(text: str) -> str:
    """Say something to the user, and read the answer where there is one.

    Args:
        text: what to say
    """
    return text


SAY = tool_from(_say, name="say")


def said_by_call(name: str, arguments: object, tools: Container[str]) -> Message | None:
    """The message to the user that a call is; None of a call of the world's own tools."""
    if name != SAY.name or name in tools or not isinstance(arguments, Mapping):
        return None
    return Message("assistant", str(arguments.get("text", "")))


class WorldKnobs(Section):
    """The sections of an exported world's `params.yaml`."""

    world: World
    agent: AgentParams
    reward: RewardParams


@dataclass(frozen=True, slots=True)
class ExportedWorld:
    """A world, the limits of its episodes, and the reward that scores them."""

    knobs: WorldKnobs
    domain: Domain
    reward: RuleReward

    @property
    def limits(self) -> AgentParams:
        return self.knobs.agent

    def tasks(self, split: Split) -> list[Task]:
        """As many as the knobs say. Raises ConfigurationError."""
        return tasks_of(self.domain, split, self.knobs.world)


def load_exported(folder: Path) -> ExportedWorld:
    """Raises ConfigurationError where the folder has no knobs of a world."""
    try:
        content = read_knobs((folder / PARAMS).read_bytes(), source=str(folder / PARAMS))
        knobs = WorldKnobs.model_validate(content)
    except (OSError, ValidationError) as error:
        raise ConfigurationError(
            f"{folder / PARAMS} has no world with its agent and reward; `posttrain export-env` writes one: "
            f"{why_unread(error, WorldKnobs)}"
        ) from error
    domain = domain_of(knobs.world)
    return ExportedWorld(knobs, domain, load_reward(knobs.reward, score_names(domain)))


def write_world_folder(world: str, target: Path, trainer: Trainer) -> None:
    """Write the world of a name, with its example knobs, or that of a `params.yaml`. Raises
    ConfigurationError where the target holds anything else than an earlier export, and where verl
    cannot train as the rest of the `params.yaml` says."""
    if target.exists() and not (target.is_dir() and ((target / PARAMS).is_file() or not any(target.iterdir()))):
        raise ConfigurationError(f"{target} is there and is no exported world: files in it might be replaced")
    is_file = world.endswith((".yaml", ".yml"))
    settings, is_named = knobs_for_world(
        "" if is_file else world, {}, is_quick=False, file=Path(world) if is_file else PARAMS
    )
    domain = domain_of(settings.world)
    reward = settings.reward if is_named else reward_section(domain, settings, PARAMS.name)[0]
    knobs = WorldKnobs(world=settings.world, agent=settings.agent, reward=reward)
    load_reward(reward, score_names(domain))
    folder = target.resolve()
    config = verl_config(settings, folder, model=Path("data/models/sft").resolve()) if trainer == "verl" else None
    target.mkdir(parents=True, exist_ok=True)
    (target / PARAMS).write_text(
        yaml.safe_dump(knobs.model_dump(mode="json"), allow_unicode=True, sort_keys=False), encoding="utf-8"
    )
    if config is not None:
        for name, content in {VERL: config, AGENT_LOOPS: agent_loops(folder)}.items():
            (target / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        splits: Sequence[Split] = ("rl", "dev")
        for split in splits:
            rows = pa.Table.from_pylist(verl_rows(tasks_of(domain, split, settings.world)))
            write_parquet(target / ROWS.format(split=split), rows)
    told = differences(settings) if config is not None else []
    module = "posttrain_" + re.sub(r"\W+", "_", domain.name.lower())
    jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML
    for name in _FILES[trainer]:
        template = jinja.from_string((_TEMPLATES / trainer / f"{name}.jinja").read_text(encoding="utf-8"))
        text = template.render(name=domain.name, module=module, agent=knobs.agent, folder=folder, differences=told)
        (target / name.replace("MODULE", module)).write_text(text, encoding="utf-8")
