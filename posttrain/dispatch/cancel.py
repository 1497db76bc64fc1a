"""Cancels jobs: one is recorded as over when its backend says that it is dead. Recorded sooner,
another attempt could run beside it."""

import time
from collections.abc import Sequence

from posttrain.dispatch.backend import Backend, JobState, JobStatus
from posttrain.dispatch.records import JobRecord, JobRecords

PATIENCE_S = 15.0
_LOOK_S = 0.1


def cancel_jobs(pool: Backend, records: JobRecords, jobs: Sequence[JobRecord]) -> list[JobStatus]:
    """Cancel jobs of one pool, wait at most 15 s until it calls them over, and record the ends of
    those that are. The last status of each.

    One that is just being submitted, and so unknown to its pool, is left to who submits it, or to
    the next run, which finds it by its name.
    """
    for job in jobs:
        pool.cancel(job.handle)
    deadline, last = time.monotonic() + PATIENCE_S, []
    for job in jobs:
        while not (status := pool.status(job.handle)).is_over and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            pool.cancel(job.handle)  # again: it may have had nothing to cancel yet
        if status.is_over and (job.job_id or status.state is not JobState.GONE):
            records.end(job.name, status)
        last.append(status)
    return last
