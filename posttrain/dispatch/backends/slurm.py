"""Backend of a SLURM cluster, through its command line tools: no API of SLURM reports exit codes as
reliably.

Before a job is submitted, its name is looked up in the controller and in the accounting. A job's id
is SLURM's number with that name, because a controller that was killed forgets its last seconds and
reuses their numbers. Folders and logs are on a disk that submitter and nodes see under the same
path; the cluster must track processes by cgroups, or daemonised ones would outlive their job.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from posttrain.dispatch.backend import JobSpec, JobState, JobStatus
from posttrain.dispatch.backends.slurm_script import minutes_of, render
from posttrain.dispatch.backends.slurm_states import CANCELLED_MARK, SACCT_FORMAT, from_sacct, from_scontrol
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.locks import take_lock
from posttrain.runtime.state import private, private_folder

# The part of the submitter's environment that jobs and SLURM's commands get: no key, and no
# SBATCH_… that overrules the script.
KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "SLURM_CONF")
ANSWER_LIMIT_S = 45  # its commands give up by themselves, mostly after 10 to 20 s
_RECORDED_SINCE = "now-52weeks"
_OUTAGE = re.compile(
    r"unable to contact|timed out|connection (refused|reset|aborted)|connect failure|zero "
    r"bytes|temporarily|authentication|munge|slurmdbd|"
    r"talking to the database|standby|communication",
    re.IGNORECASE,
)


class SlurmBackend:
    """Jobs on SLURM. `state` is a folder on the submitter's local disk, for a lock that all
    submitters of the machine share. `options` go to sbatch with every job, as
    `--partition=spot`."""

    def __init__(self, state: Path, *, options: Sequence[str] = ()) -> None:
        self._state, self._options = state, tuple(options)

    def submit(self, spec: JobSpec) -> str:
        script = render(spec, self._options)
        with open(private_folder(self._state) / "submit.lock", "w", encoding="ascii", opener=private) as lock:
            take_lock(lock)
            if (number := _number_of(spec.name)) is not None:
                return f"{number}:{spec.name}"
            # sbatch holds the lock too: one whose submitter was killed is waited for, or its job
            # would not be found yet.
            answer = _command("sbatch", "--parsable", "--export=ALL", text=script, keep_open=(lock.fileno(),))
        if answer.returncode:
            wanted = spec.resources
            raise ConfigurationError(
                f"SLURM refuses {spec.name} ({wanted.gpus} GPUs, {wanted.cpus} CPUs, {wanted.memory_gb:g} GB, "
                f"{minutes_of(spec)} minutes"
                f"{''.join(f', {option}' for option in self._options)}): {_error_text(answer)}. "
                "Running again cannot help: ask for what `sinfo` shows, or "
                "name another target"
            )
        return f"{answer.stdout.strip().split(';')[0]}:{spec.name}"

    def status(self, job_id: str) -> JobStatus:
        """The status by the name alone: no id is needed."""
        number, name = _split(job_id)
        if number is None:
            return JobStatus(JobState.GONE)
        live = _command("scontrol", "show", "job", "--oneliner", number)
        if live.returncode == 0 and f" JobName={name} " in live.stdout:
            return from_scontrol(live.stdout)
        recorded = [from_sacct(line) for line in _recorded(f"--jobs={number}", f"--name={name}", SACCT_FORMAT)]
        if recorded and recorded[-1].is_over:
            return recorded[-1]
        return JobStatus(JobState.GONE, note="SLURM's controller has forgotten it")

    def cancel(self, job_id: str) -> None:
        number, name = _split(job_id)
        if number is None or self.status(f"{number}:{name}").is_over:
            return
        # scancel alone sends SIGTERM and kills after KillWait, 30 s on most clusters. A killed
        # batch script takes its cgroup along, but may be recorded as failed before the cancellation
        # comes: hence the mark.
        _command("scontrol", "update", f"JobId={number}", f"Comment={CANCELLED_MARK}")
        _command("scancel", "--batch", "--signal=KILL", number)
        _command("scancel", number)


def _split(job_id: str) -> tuple[str | None, str]:
    """Split an id into number and name; None for the number where SLURM knows no job of that
    name."""
    number, colon, name = job_id.partition(":")
    return (number, name) if colon else (_number_of(job_id), job_id)


def _number_of(name: str) -> str | None:
    """The number of this user's job of that name, over or not."""
    user = f"--user={os.getuid()}"
    live = _command("squeue", "--noheader", user, f"--name={name}", "--states=all", "--format=%A|%T|%N")
    if live.returncode:
        raise Interrupted(f"SLURM does not say whether it has {name}: {_error_text(live)}")
    known = live.stdout.splitlines() or _recorded(
        user, f"--name={name}", f"--starttime={_RECORDED_SINCE}", "--format=JobIDRaw,State,NodeList"
    )
    # SLURM keeps a job that it refused at submission as one that failed on no node.
    numbers = [
        number
        for number, state, node in (line.split("|") for line in known)
        if state != "FAILED" or node not in ("", "None assigned")
    ]
    return min(numbers, key=int, default=None)


def _recorded(*question: str) -> list[str]:
    """Lines of the accounting, about jobs and not their steps, the last run of each at the end."""
    answer = _command("sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", *question)
    if answer.returncode:
        raise ConfigurationError(
            f"SLURM's accounting does not answer: {_error_text(answer)}. Without it a job that is over could not be "
            "found again, and would run twice. "
            "Ask for AccountingStorageType=accounting_storage/slurmdbd, or name another target"
        )
    return answer.stdout.splitlines()


def _command(*command: str, text: str | None = None, keep_open: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's commands and return its answer, a refusal included. Raises Interrupted
    where SLURM cannot be reached."""
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    try:
        answer = subprocess.run(
            command,
            input=text or "",
            env=environment,
            cwd="/",
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_LIMIT_S,
            pass_fds=keep_open,
            check=False,
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{command[0]} is not installed here, so there is no way to SLURM. Install SLURM's client, "
            "or name another target"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise Interrupted(
            f"{command[0]} has not answered in {ANSWER_LIMIT_S} s: SLURM is overloaded or down; "
            "jobs that run there live on"
        ) from error
    if answer.returncode and _OUTAGE.search(answer.stderr):
        raise Interrupted(f"SLURM cannot be reached: {_error_text(answer)}")
    return answer


def _error_text(answer: subprocess.CompletedProcess[str]) -> str:
    lines = [
        line.removeprefix(f"{answer.args[0]}: ").removeprefix("error: ") for line in answer.stderr.strip().splitlines()
    ]
    return "; ".join(lines) or f"{answer.args[0]} ended with {answer.returncode}"
