"""Reads `infra/dispatch.yaml`: the backend of each stage and its resources. Unknown keys are
refused."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pydantic

from posttrain.dispatch.backend import Backend, Resources
from posttrain.dispatch.backends.kubernetes_manifest import KubernetesSettings, Mount
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.backends.slurm import SlurmBackend
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knob_errors import why_unread
from posttrain.runtime.limits import clip
from posttrain.runtime.plain_yaml import read_yaml

DISPATCH_YAML = Path("infra/dispatch.yaml")
JOB_YAML = Path("infra/kubernetes/job.yaml")
_MOST = 10_000_000  # of minutes, GiB, seconds: a larger number is a slip of the hand
_MAX_CHARS = 2_000  # of what pydantic says of a file, which quotes it
PLAYING = ("sample_preferences", "train_process_model", "train_policy", "evaluate")  # the stages with an engine
_KEY = re.compile(r"(.*_)?(API_?KEY|KEY|KEY_ID|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?|AUTH_STRING)", re.IGNORECASE)


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class S3Remote(_Section):
    """The bucket for trees, inputs, checkpoints and results where no disk is shared. Keys come from
    the environment alone.

    An S3 that does not answer is asked again for `patience_s`; new checkpoints are shipped every
    `ship_every_s`.
    """

    type: Literal["s3"] = "s3"
    url: str = pydantic.Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9][A-Za-z0-9._-]*)*/?$")
    endpoint_url: str | None = pydantic.Field(None, pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")  # no user:password@
    region: str | None = pydantic.Field(None, pattern=r"^[A-Za-z0-9-]+$")
    patience_s: float = pydantic.Field(120.0, ge=0)
    ship_every_s: float = pydantic.Field(60.0, gt=0)

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """Ends with `/`, or is empty."""
        path = self.url.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{path}/" if path else ""


class _Target(_Section):
    """Settings that all targets have. `storage` carries files to a job; None: submitter and jobs
    share a disk, with the tree's folder under the same path. `python` is the interpreter that
    starts a job, on the PATH there or in full; None: the path of the submitter's own. `environment`
    has further variables for its jobs (WANDB_MODE, HF_HOME, POSTTRAIN_ENGINE): a backend passes on
    none of the submitter's. It is stored with the job, so no keys."""

    storage: S3Remote | None = None
    python: str | None = None
    environment: dict[str, str] = pydantic.Field(default_factory=dict)


class LocalTarget(_Target):
    """This machine."""

    type: Literal["local"]
    num_gpus: int = pydantic.Field(ge=0, le=_MOST)


class SlurmTarget(_Target):
    """`options` go to sbatch with every job, as `--partition=gpu`. Logs and folders are on a disk
    that the nodes share, so there is no `storage`."""

    type: Literal["slurm"]
    storage: None = None
    options: tuple[str, ...] = ()


class KubernetesTarget(_Target):
    """A Kubernetes target (`kubernetes_manifest.KubernetesSettings`); without a `storage`, the
    folder of the tree must be mounted at its own path."""

    type: Literal["kubernetes"]
    python: str | None = "python"
    image: str
    namespace: str = "default"
    mounts: tuple[Mount, ...] = ()
    user: int = pydantic.Field(1000, ge=0, le=2**31 - 1)
    queue: str | None = None
    secret: str | None = None
    grace_s: int = pydantic.Field(60, ge=0, le=_MOST)
    patience_s: float = pydantic.Field(300.0, gt=0, le=_MOST)


Target: TypeAlias = Annotated[LocalTarget | SlurmTarget | KubernetesTarget, pydantic.Field(discriminator="type")]


_OF_JOB = ("launch", "gpu_memory_gb", "servers", "colocated")  # of a reservation: what no backend reserves


class Reservation(_Section):
    """Resources that a stage declares on each of its `nodes`; None takes the default's.
    `gpu_memory_gb` is the memory of its GPUs in GiB: with it `check_params` refuses a model that
    does not fit."""

    nodes: int | None = pydantic.Field(None, ge=1, le=_MOST)
    gpus: int | None = pydantic.Field(None, ge=0, le=_MOST)
    gpu_memory_gb: float | None = pydantic.Field(None, gt=0, le=_MOST)
    cpus: int | None = pydantic.Field(None, ge=1, le=_MOST)
    memory_gb: float | None = pydantic.Field(None, gt=0, le=_MOST)
    time_limit_min: int | None = pydantic.Field(None, ge=1, le=_MOST)
    shm_gb: float | None = pydantic.Field(None, ge=0, le=_MOST)
    # one of infra/accelerate/: the stage runs in several processes, one for each GPU that it
    # reserves on a node and no server has
    launch: str | None = None
    servers: int | None = pydantic.Field(None, ge=0, le=_MOST)  # of vLLM, which the job starts on GPUs of its own
    colocated: bool | None = None  # the servers share the stage's GPUs, and sleep while it trains


class DispatchSettings(_Section):
    """The whole file. `target` is the one string that a person edits to run elsewhere: the target
    of stages that reserve a GPU. `beside` is the target of all others, which are too cheap to queue
    for; None: the same."""

    target: str
    beside: str | None = None
    targets: dict[str, Target]
    resources: dict[str, Reservation]

    @pydantic.model_validator(mode="after")
    def _check_targets(self) -> "DispatchSettings":
        for name in (self.target, self.beside):
            if name is not None and name not in self.targets:
                raise ValueError(
                    f"target {name!r} is none of {', '.join(sorted(self.targets))}, so no job would know where to run"
                )
        for stage in self.resources:
            self._check_nodes(stage)
            self._check_servers(stage)
        return self

    def _check_servers(self, stage: str) -> None:
        found = self._reservation(stage)
        if not (servers := found.get("servers", 0)):
            if found.get("colocated"):
                raise ValueError(f"{stage} is colocated and has no servers: say how many of its GPUs have one")
            return
        if stage not in PLAYING:
            raise ValueError(f"{stage} has servers, and plays no episodes; those that do are {', '.join(PLAYING)}")
        if servers + (not found.get("colocated")) > found.get("gpus", 0):
            raise ValueError(
                f"{stage} has {servers} servers and {found.get('gpus', 0)} gpus: each server takes a GPU"
                f"{'' if found.get('colocated') else ', and the stage needs one besides, unless colocated is true'}"
            )
        if found.get("nodes", 1) > 1:
            raise ValueError(
                f"{stage} has servers and {found['nodes']} nodes: a job starts servers on one node alone; start them "
                "as a job of their own and name them in the environment of the target (POSTTRAIN_VLLM_URLS)"
            )

    def _check_nodes(self, stage: str) -> None:
        nodes, target = self.resources_of(stage).nodes, self.targets[self.target_of(stage)]
        if nodes == 1:
            return
        if "launch" not in self._reservation(stage):
            raise ValueError(
                f"{stage} reserves {nodes} nodes and has no launch, so it would run on one of them: name a file of "
                "infra/accelerate/, or leave nodes out"
            )
        if isinstance(target, LocalTarget):
            raise ValueError(
                f"{stage} reserves {nodes} nodes, and its target {self.target_of(stage)} is this machine alone: "
                "leave nodes out, or name a target of type slurm or kubernetes"
            )
        if target.storage is not None:
            raise ValueError(
                f"{stage} reserves {nodes} nodes, which have to share a disk, and the target {self.target_of(stage)} "
                "brings files by its storage: mount a disk that all nodes see, or leave nodes out"
            )

    def check_stages(self, stages: Collection[str]) -> None:
        """Raises ConfigurationError where a reservation is for none of them: a misspelt one would
        reserve nothing, in silence."""
        if unknown := sorted({*self.resources} - {*stages, "default"}):
            raise ConfigurationError(
                f"{DISPATCH_YAML}: resources are reserved for {', '.join(unknown)}, and dvc.yaml has no such stage"
            )

    def target_of(self, stage: str) -> str:
        """The target of a stage; `stage` is the name without its item."""
        return self.target if self.beside is None or self.resources_of(stage).gpus else self.beside

    def is_local(self, target: str) -> bool:
        """True where its jobs run on this machine."""
        return isinstance(self.targets.get(target), LocalTarget)

    def backend(self, target: str, root: Path, state: Path) -> Backend:
        """A target's backend, for the tree at `root`; `state` is a folder on a local disk for what
        it keeps. Raises ConfigurationError."""
        match self.targets.get(target):
            case LocalTarget(num_gpus=num_gpus):
                return LocalBackend(state / "local", num_gpus=num_gpus)
            case SlurmTarget(options=options):
                return SlurmBackend(state / "slurm", options=options)
            case KubernetesTarget() as found:
                return _kubernetes_backend(found, root)
        raise ConfigurationError(
            f"{DISPATCH_YAML} has no target {target!r} (any more): its jobs cannot be asked for. Name it there again"
        )

    def resources_of(self, stage: str) -> Resources:
        """`stage` is the name without its item."""
        found = self._reservation(stage)
        reserved = {key: value for key, value in found.items() if key not in _OF_JOB}
        if "time_limit_min" in reserved:
            reserved["time_limit_s"] = 60 * reserved.pop("time_limit_min")
        return Resources(**reserved)

    def environment_of(self, stage: str) -> dict[str, str]:
        """Environment variables of this machine that a job gets and no fingerprint holds; `stage`
        is the name without its item."""
        found = self._reservation(stage)
        variables = {"POSTTRAIN_CARDS": cards} if stage == "check_params" and (cards := self._cards()) else {}
        if servers := found.get("servers", 0):
            variables["POSTTRAIN_VLLM_SERVERS"] = str(servers)
        if is_colocated := found.get("colocated", False):
            variables["POSTTRAIN_VLLM_COLOCATED"] = "1"
        if "launch" in found:
            variables["POSTTRAIN_LAUNCH"] = found["launch"]
            if gpus := found.get("gpus", 0) - (0 if is_colocated else servers):
                variables["POSTTRAIN_PROCESSES"] = str(gpus)
            if (nodes := found.get("nodes", 1)) > 1:
                variables["POSTTRAIN_NODES"] = str(nodes)
        return variables

    def _cards(self) -> str:
        """`train_sft=80,default=24`: the GiB of the GPU that a stage has to itself."""
        found = {name: self._reservation(name) for name in self.resources}
        alone = {name: one for name, one in found.items() if one.get("gpus") == 1 and "launch" not in one}
        return ",".join(f"{name}={one['gpu_memory_gb']:g}" for name, one in alone.items() if "gpu_memory_gb" in one)

    def _reservation(self, stage: str) -> dict[str, Any]:
        sections = [found for name in ("default", stage) if (found := self.resources.get(name))]
        return {key: value for one in sections for key, value in one.model_dump(exclude_none=True).items()}


def load_settings(root: Path) -> DispatchSettings:
    """Settings of the tree at `root`; without the file every stage runs here, one GPU stage at a
    time. Raises ConfigurationError."""
    path = root / DISPATCH_YAML
    if not path.exists():
        return DispatchSettings(target="local", targets={"local": LocalTarget(type="local", num_gpus=1)}, resources={})
    try:
        content = read_yaml(path, source=str(DISPATCH_YAML))
        settings = DispatchSettings.model_validate(content)
    except pydantic.ValidationError as error:
        why = clip(why_unread(error, DispatchSettings), _MAX_CHARS)
        raise ConfigurationError(f"{DISPATCH_YAML} cannot be used, so no job was started: {why}") from error
    _refuse_keys(settings)
    return settings


def _refuse_keys(settings: DispatchSettings) -> None:
    """Refuses variables whose names say that they are keys: a target's environment is written into
    specs, scripts and manifests. Not by pydantic, whose message would quote the value."""
    for name, target in settings.targets.items():
        if keys := sorted(variable for variable in target.environment if _KEY.fullmatch(variable)):
            raise ConfigurationError(
                f"{DISPATCH_YAML}: {', '.join(keys)} in the environment of target {name}: the file is in git, "
                "and the environment is stored with the job. A local job has the keys of your environment, "
                "a pod those of the target's `secret`; a SLURM job reads them from a file in your home"
            )


def _kubernetes_backend(target: KubernetesTarget, root: Path) -> Backend:
    from posttrain.dispatch.backends.kubernetes import KubernetesBackend

    known = target.model_dump(exclude={"type", "mounts", "storage", "python", "environment"})
    known |= {"template": root / JOB_YAML, "mounts": target.mounts, "is_disk_shared": target.storage is None}
    return KubernetesBackend(KubernetesSettings(**known))
