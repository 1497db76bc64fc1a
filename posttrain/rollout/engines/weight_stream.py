"""Sends weights to vLLM servers over the network, one after another: a process group of two for
each server, gloo's between processors or NCCL's between GPUs. Nobody holds a second copy, and
trainer and servers need no common disk.

The receiving half runs in vLLM's worker (`--worker-extension-cls`, infra/vllm/serve.sh), in vLLM's
environment: this file imports torch alone.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

BACKENDS = ("gloo", "nccl")
RECEIVE = "receive_weights"  # the worker's method
_HERE = "receiver"  # key of the store that says that the server has come


class WeightReceiver:
    """Extends vLLM's worker, which has `model_runner` and `device`."""

    def receive_weights(
        self,
        backend: str,
        store: tuple[str, int],
        host: str,
        seconds: float,
        weights: Sequence[tuple[str, str, list[int]]],
    ) -> None:
        """Load `weights`, (name, type, shape) each, as the trainer sends them. `store`: where it
        waits; `host`: this server's own address, as the trainer knows it."""
        worker: Any = self
        met = _store(store[0], store[1], seconds)
        met.set(_HERE, "1")
        group = _group(backend, met, 1, host=host, seconds=seconds)

        def received() -> Iterator[tuple[str, Tensor]]:
            for name, kind, shape in weights:
                weight = torch.empty(shape, dtype=getattr(torch, kind), device=worker.device)
                group.broadcast(weight, 0).wait()
                yield name, weight

        try:
            worker.model_runner.reload_weights(weights_iterator=received())
        finally:
            group.shutdown()  # the trainer, which may be sending, learns of a failure at once


class WeightSender:
    """The trainer's end of the way to the server at `url`, where it waits from the beginning.
    Raises OSError for a host that has no address."""

    def __init__(self, url: str, *, backend: str, seconds: float) -> None:
        self.url, self._backend, self._seconds = url, backend, seconds
        server = urlsplit(url)
        self._server_host = socket.gethostbyname(server.hostname or "")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:  # nothing is sent
            towards.connect((self._server_host, server.port or 80))
            self._host = towards.getsockname()[0]
        listening = socket.create_server((self._host, 0))  # TCPStore itself would listen on every interface
        self._port = listening.getsockname()[1]
        self._store = _store(self._host, self._port, seconds, listening=listening)
        self._group: Any = None
        self._is_lost = False

    def call(self, weights: Iterable[tuple[str, torch.dtype, Sequence[int]]]) -> dict[str, Any]:
        """Body of the request that has the server come for weights of these names, types and
        shapes."""
        listed = [(name, str(kind).removeprefix("torch."), list(shape)) for name, kind, shape in weights]
        store = (self._host, self._port)
        return {"method": RECEIVE, "args": [self._backend, store, self._server_host, self._seconds, listed]}

    def has_come(self) -> bool:
        return bool(self._store.check([_HERE]))

    def begin(self, weight: Tensor) -> Any:
        """Begin to send the next weight; to a server that is lost, nothing."""
        return self._unless_lost(
            lambda: self._joined().broadcast(weight if self._backend == "nccl" else weight.cpu(), 0)
        )

    def end(self, sending: Any) -> None:
        """Wait until it is sent."""
        if sending is not None:
            self._unless_lost(sending.wait)

    def _joined(self) -> Any:
        if self._group is None:  # sooner over than the receiver's, so that a lost server does not end the others
            self._group = _group(self._backend, self._store, 0, host=self._host, seconds=self._seconds / 2)
        return self._group

    def _unless_lost(self, do: Callable[[], Any]) -> Any:
        try:
            return None if self._is_lost else do()
        except RuntimeError:  # its request fails, and says why
            self._is_lost = True
            return None


def send(weights: Iterable[Tensor], senders: Sequence[WeightSender]) -> None:
    """Send each weight to all servers before the next."""
    for weight in weights:
        sendings = [sender.begin(weight) for sender in senders]
        for sender, sending in zip(senders, sendings, strict=True):
            sender.end(sending)


def _store(host: str, port: int, seconds: float, *, listening: socket.socket | None = None) -> Any:
    kind: Any = dist.TCPStore  # type: ignore[attr-defined]
    how: dict[str, Any] = {"timeout": timedelta(seconds=seconds), "wait_for_workers": False}
    if listening is not None:
        how |= {"is_master": True, "master_listen_fd": listening.detach()}
    return kind(host, port, 2, **how)


def _group(backend: str, store: Any, rank: int, *, host: str, seconds: float) -> Any:
    if backend == "nccl":
        over_nccl: Any = dist.ProcessGroupNCCL
        how = over_nccl.Options()
        how._timeout = timedelta(seconds=seconds)
        return over_nccl(store, rank, 2, how)
    over_gloo: Any = dist.ProcessGroupGloo
    how = over_gloo._Options()
    how._devices = [over_gloo.create_device(hostname=host)]
    how._timeout = timedelta(seconds=seconds)
    return over_gloo(store, rank, 2, how)
