"""Fills in the batch script `infra/slurm/job.sh` with every word quoted, so that a shell executes
the command and nothing in it."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template

from posttrain.dispatch.backend import NO_OTHERS, NODE, JobSpec
from posttrain.dispatch.backends.slurm_states import EXTRA_MINUTES
from posttrain.runtime.exits import ConfigurationError

TEMPLATE = Path(__file__).parents[3] / "infra" / "slurm" / "job.sh"
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # one of digits alone would be a job's number
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# Ends with the batch script at the latest. Of the job's CPUs a task has those that srun is told
# again.
_OTHERS = (
    "{{ {node}=1 srun --nodes={number} --ntasks={number} --relative=1 --cpus-per-task={cpus} --kill-on-bad-exit=1 "
    "-- {command} || touch {failed}; }} &"
)


class _Script(Template):
    delimiter = "@"  # the shell's own is $


def render(spec: JobSpec, options: Sequence[str] = ()) -> str:
    """The batch script. `options` are further ones of sbatch, as `--partition=spot`. Raises
    ConfigurationError for a job that cannot be one."""
    _check(spec, options)
    resources = spec.resources
    command = " ".join(map(_quoted, spec.command))
    flags = [*options, *([f"--gres=gpu:{resources.gpus}"] if resources.gpus else [])]
    return _Script(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=spec.name,
        nodes=resources.nodes,
        cpus=resources.cpus,
        memory_mib=math.ceil(resources.memory_gb * 1024),
        minutes=minutes_of(spec),
        options="\n".join(f"#SBATCH {flag}" for flag in flags) or "#",
        environment="\n".join(f"export {name}={_quoted(text)}" for name, text in sorted(spec.environment.items()))
        or "#",
        log=_quoted(str(spec.log.resolve())),
        folder=_quoted(str(spec.folder.resolve())),
        others=_OTHERS.format(
            node=NODE, number=resources.nodes - 1, cpus=resources.cpus, command=command, failed=NO_OTHERS
        )
        if resources.nodes > 1
        else "#",
        command=command,
    )


def minutes_of(spec: JobSpec) -> int:
    """Minutes to ask SLURM for, so that a job has its whole limit undisturbed."""
    return math.ceil(spec.resources.time_limit_s / 60) + EXTRA_MINUTES


def _check(spec: JobSpec, options: Sequence[str]) -> None:
    if not _NAME.fullmatch(spec.name):
        raise ConfigurationError(
            f"a job cannot be named {spec.name!r}: 1 to 63 lower-case letters, digits and inner dashes, "
            "one letter at least"
        )
    if bad := [name for name in spec.environment if not _VARIABLE.fullmatch(name)]:
        raise ConfigurationError(
            f"{spec.name} wants environment variables named {bad}: no shell can set them. Letters, digits and _ only"
        )
    if bad := [option for option in options if not re.fullmatch(r"--[a-z-]+(=\S+)?", option)]:
        raise ConfigurationError(f"{bad} are no options of sbatch: write each as --name=value, without spaces")
    if not spec.folder.is_dir():
        raise ConfigurationError(
            f"{spec.folder}, in which {spec.name} is to run, is not there. Make it first, "
            "on a disk that SLURM's nodes see as well"
        )


def _quoted(word: str) -> str:
    r"""For bash. A carriage return is written \r, because sbatch refuses scripts with lines that
    end as in DOS."""
    return shlex.quote(word).replace("\r", r"'$'\r''")
