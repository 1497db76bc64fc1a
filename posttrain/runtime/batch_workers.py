"""Shares out batches of data: to this process, to processes of this machine or to a Ray cluster.
Results come in the order of the batches, so a file has the same bytes whoever computed it.

`POSTTRAIN_DATA_WORKERS` says to whom: a number of processes, or `ray`. It is a machine fact and no
knob, and nothing runs again for it.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from posttrain.runtime.exits import ConfigurationError

Given = TypeVar("Given")
Batch = TypeVar("Batch")
Result = TypeVar("Result")

VARIABLE = "POSTTRAIN_DATA_WORKERS"
_ADDRESS = "RAY_ADDRESS"
_WAITING = 2  # batches a worker: one that it computes and one that waits


def map_batches(function: Callable[[Given, Batch], Result], given: Given, batches: Iterable[Batch]) -> Iterator[Result]:
    """`function(given, batch)` of each batch, in order. Two batches a worker are in memory at a
    time, and their results until they are asked for. `function` belongs to a module; it and `given`
    can be pickled. A batch whose worker died is computed by another one.

    Raises ConfigurationError where the variable is neither a number nor `ray`, or no cluster is
    named.
    """
    asked = os.environ.get(VARIABLE, "1")
    if asked == "ray":
        return _on_ray(function, given, batches)
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigurationError(f"{VARIABLE} is {asked!r}: give a number of processes, or ray")
    if int(asked) == 1:
        return (function(given, batch) for batch in batches)
    return _in_processes(function, given, batches, num_processes=int(asked))


def _in_processes(
    function: Callable[[Given, Batch], Result], given: Given, batches: Iterable[Batch], *, num_processes: int
) -> Iterator[Result]:
    from joblib import Parallel, delayed

    pool = Parallel(num_processes, return_as="generator", pre_dispatch=_WAITING * num_processes, batch_size=1)
    yield from pool(delayed(function)(given, batch) for batch in batches)


def _on_ray(function: Callable[[Given, Batch], Result], given: Given, batches: Iterable[Batch]) -> Iterator[Result]:
    ray = _cluster()
    task = ray.remote(function).options(max_retries=3)
    shared = ray.put(given)
    most = _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[object] = deque()
    for batch in batches:
        waiting.append(task.remote(shared, batch))
        if len(waiting) == most:
            yield ray.get(waiting.popleft())
    while waiting:
        yield ray.get(waiting.popleft())


def _cluster() -> Any:
    """Ray, connected to the cluster that RAY_ADDRESS names; its nodes see this folder."""
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(
            f"{VARIABLE} is ray, and it is not installed: `pip install -e .[ray]`, on the cluster's nodes too"
        ) from error
    if _ADDRESS not in os.environ:
        raise ConfigurationError(
            f"{VARIABLE} is ray, and {_ADDRESS} names no cluster: none is started here by itself. "
            "`ray start --head --node-ip-address=127.0.0.1` starts one on this machine; then set it to 127.0.0.1:6379"
        )
    if not ray.is_initialized():
        paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(paths), VARIABLE: "1"}
        ray.init(log_to_driver=False, runtime_env={"env_vars": variables})
    return ray
