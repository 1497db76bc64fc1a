"""A wire to a server that can be cut and mended."""

import contextlib
import select
import socket
import threading
from urllib.parse import urlparse


class Wire:
    """A port on loopback that leads to a server, until it is `cut` (connections are refused) or
    `muted` (nothing comes through any more)."""

    def __init__(self, target: str) -> None:
        address = urlparse(target)
        self._target, self._is_muted = (address.hostname, address.port), False
        self._open: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self.url = f"{address.scheme}://127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            one.close()

    def mend(self) -> None:
        self._is_muted = False
        if self._listener.fileno() < 0:
            self._listener = self._listen(self.port)

    def mute(self) -> None:
        self._is_muted = True

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(
                    target=self._carry, args=(near, socket.create_connection(self._target)), daemon=True
                ).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        self._open += [near, far]
        with contextlib.suppress(OSError, ValueError), near, far:
            while True:
                for one in select.select([near, far], [], [], 1)[0]:
                    if not (content := one.recv(65536)):
                        return
                    if not self._is_muted:
                        (far if one is near else near).sendall(content)
