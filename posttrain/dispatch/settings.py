"""Which pool, and what does a stage reserve there? `infra/dispatch.yaml`, read and refused where it says what nobody knows."""

from pathlib import Path
from typing import Literal

import pydantic
import yaml

from posttrain.dispatch.contract import Pool, Resources
from posttrain.dispatch.local import LocalPool
from posttrain.exits import ConfigurationError

DISPATCH_YAML = Path("infra/dispatch.yaml")


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class LocalTarget(_Section):
    """This machine."""

    type: Literal["local"]
    num_gpus: int = pydantic.Field(ge=0)


class Reservation(_Section):
    """What a stage says of itself; None is the default's."""

    gpus: int | None = pydantic.Field(None, ge=0)
    cpus: int | None = pydantic.Field(None, ge=1)
    memory_gb: float | None = pydantic.Field(None, gt=0)
    time_limit_min: int | None = pydantic.Field(None, ge=1)
    shm_gb: float | None = pydantic.Field(None, ge=0)


class DispatchSettings(_Section):
    """The whole file. `target` is the one string that a person edits to run elsewhere."""

    target: str
    targets: dict[str, LocalTarget]
    resources: dict[str, Reservation]

    @property
    def is_local(self) -> bool:
        """Whether jobs run on this machine."""
        return isinstance(self.targets.get(self.target), LocalTarget)

    def pool(self, state: Path) -> Pool:
        """The target's pool; `state` is a folder on a local disk for those that need one. Raises ConfigurationError where there is none."""
        if self.target not in self.targets:
            raise ConfigurationError(
                f"{DISPATCH_YAML}: target {self.target!r} is none of {', '.join(sorted(self.targets))}, so no job would know where to run"
            )
        return LocalPool(state, num_gpus=self.targets[self.target].num_gpus)

    def resources_of(self, stage: str) -> Resources:
        """`stage` is the name without its item."""
        said = [section.model_dump(exclude_none=True) for name in ("default", stage) if (section := self.resources.get(name))]
        merged = {key: value for section in said for key, value in section.items()}
        if "time_limit_min" in merged:
            merged["time_limit_s"] = 60 * merged.pop("time_limit_min")
        return Resources(**merged)


def load_settings(root: Path) -> DispatchSettings:
    """Of the tree at `root`; without the file everything runs here, one GPU stage at a time. Raises ConfigurationError."""
    path = root / DISPATCH_YAML
    if not path.exists():
        return DispatchSettings(target="local", targets={"local": LocalTarget(type="local", num_gpus=1)}, resources={})
    try:
        return DispatchSettings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (pydantic.ValidationError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{DISPATCH_YAML} cannot be used, so no job was started: {error}") from error
