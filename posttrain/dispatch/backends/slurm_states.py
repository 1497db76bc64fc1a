"""Translates SLURM's states, exit codes and reasons, as `scontrol` and `sacct` print them, into the
contract's."""

import re
import signal

from posttrain.dispatch.backend import Cause, JobState, JobStatus
from posttrain.runtime.exits import Interrupted

CANCELLED_MARK = "cancelled"  # a job's comment, written before it is killed
SACCT_FORMAT = "--format=State,ExitCode,Elapsed,Timelimit,Comment"
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_CAUSES = {
    "COMPLETED": Cause.EXITED,
    "FAILED": Cause.EXITED,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "PREEMPTED": Cause.PREEMPTED,
    "NODE_FAIL": Cause.NODE_LOST,
    "BOOT_FAIL": Cause.NODE_LOST,
    "CANCELLED": Cause.CANCELLED,
    "REVOKED": Cause.CANCELLED,
}
_OOM_SIGNAL = 125  # SLURM's sign for it, no signal
EXTRA_MINUTES = (
    2  # more than asked for: it counts whole minutes, warns 60 s before the end, and may be a minute early with it
)


def from_scontrol(line: str) -> JobStatus:
    """Parse one line of `scontrol show job --oneliner`. Fields that a person fills in (folder,
    comment) come after those that are read first."""

    def field(name: str) -> str:
        found = re.search(rf"(?:^| ){name}=(\S*)", line)
        return found.group(1) if found else ""

    is_marked = bool(re.search(rf" Comment={CANCELLED_MARK}(?: |$)", line))
    return _status(
        field("JobState"),
        field("ExitCode"),
        field("Reason"),
        is_marked=is_marked,
        is_late=_is_late(field("RunTime"), field("TimeLimit")),
    )


def from_sacct(line: str) -> JobStatus:
    """Parse one line of `sacct --parsable2` with the format `SACCT_FORMAT`: a state may be
    `CANCELLED by 0`."""
    state, exit_code, ran, limit, comment = line.split("|", 4)
    return _status(
        state.split(" ")[0], exit_code, "", is_marked=comment == CANCELLED_MARK, is_late=_is_late(ran, limit)
    )


def _status(state: str, exit_code: str, reason: str, *, is_marked: bool, is_late: bool) -> JobStatus:
    reason = "" if reason in ("None", "(null)") else reason
    if state in _WAITING:
        return JobStatus(JobState.WAITING, note=reason)
    if state not in _CAUSES:  # also COMPLETING: some of its processes may live
        return JobStatus(JobState.RUNNING, note="" if state in ("RUNNING", "COMPLETING") else state)
    code, number = (int(part) for part in exit_code.split(":"))
    cause = _CAUSES[state]
    if cause is Cause.EXITED and number == signal.SIGKILL and is_marked:
        cause = Cause.CANCELLED
    own = 128 + number if number not in (0, _OOM_SIGNAL) else code or None
    if cause is Cause.EXITED and own == Interrupted.code and is_late:
        return JobStatus(JobState.ENDED, own, Cause.TIME_LIMIT, "it heeded the warning before its time limit")
    if cause is Cause.EXITED:
        return JobStatus(JobState.ENDED, own or 0, cause)
    return JobStatus(JobState.ENDED, own, cause, f"{state}, {reason}" if reason else state)


def _is_late(ran: str, limit: str) -> bool:
    """True where a job has used the whole time that it asked for, by SLURM's
    [days-]hours:minutes:seconds. A limit may be a word."""
    ran_s, limit_s = _seconds(ran), _seconds(limit)
    return ran_s is not None and limit_s is not None and ran_s >= limit_s - 60 * EXTRA_MINUTES


def _seconds(text: str) -> int | None:
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds
