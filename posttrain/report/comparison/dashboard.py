"""Serves the list of local branches and comparisons of them on a loopback port, for the user who
started it.

A port of the loopback interface is open to every user of the machine, and to every page in a
browser. So a request has to name this host, and to bring the key that is drawn for each run and
printed once, or the cookie that is given for it.
"""

import hmac
import secrets
from collections.abc import Callable
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from posttrain.report.comparison.branches import MAX_COMPARED, branches_page, local_branches
from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_runs
from posttrain.report.comparison.settings import compare_settings
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError, StageError

LOOPBACK = "127.0.0.1"


class Dashboard(ThreadingHTTPServer):
    """Serves the tree at `root` until `shutdown`. Port 0 is any that is free; raises
    ConfigurationError where it is taken."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        local_branches(root)  # refuses what is no repository
        self.root, self.key = root, secrets.token_urlsafe(32)
        try:
            super().__init__((LOOPBACK, port), _Request)
        except OSError as error:
            raise ConfigurationError(f"port {port} of {LOOPBACK} cannot be had: {error.strerror}") from error

    @property
    def address(self) -> str:
        """Address with the key, which is all that a reader needs."""
        return f"http://{LOOPBACK}:{self.server_port}/?key={self.key}"

    @cached_property
    def cookie(self) -> str:
        """Name of the cookie, with the port: a browser sends a host's cookies to all of its
        ports."""
        return f"posttrain-dashboard-{self.server_port}"


class _Request(BaseHTTPRequestHandler):
    server: Dashboard
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "posttrain", ""
    timeout = 60

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if self.headers.get("Host") not in {f"{host}:{self.server.server_port}" for host in (LOOPBACK, "localhost")}:
            self._send(403, "text/plain", "another host")
        elif self._is_key(query.get("key", [""])[0]):
            self._send(303, "text/plain", "", Location="/", Set_Cookie=self._cookie())
        elif not self._is_key(self._given_cookie()):
            self._send(403, "text/plain", "the key is in the address that `posttrain dashboard` printed")
        else:
            pages: dict[str, Callable[[], None]] = {
                "/": lambda: self._list(query.get("baseline", [""])[0]),
                "/compare": lambda: self._compare(query.get("name", [])),
            }
            pages.get(address.path, lambda: self._send(404, "text/plain", "no such page"))()

    def _list(self, baseline: str) -> None:
        self._send_page(lambda: branches_page(self.server.root, local_branches(self.server.root), baseline))

    def _compare(self, names: list[str]) -> None:
        if not 0 < len(names) <= MAX_COMPARED:
            self._send(
                400, "text/plain", f"name one branch or more, {MAX_COMPARED} at most: /compare?name=main&name=exp/a"
            )
            return
        unique = list(dict.fromkeys(names))
        self._send_page(lambda: comparison_page(compare_settings(read_runs(self.server.root, unique))))

    def _send_page(self, render: Callable[[], str]) -> None:
        try:
            page = render()
        except StageError as error:
            self._send(404, "text/plain", escape_control_chars(str(error)))
            return
        self._send(200, "text/html", page)

    def _send(self, status: int, kind: str, text: str, **headers: str) -> None:
        content = text.encode(errors="replace")
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Content-Length": str(len(content)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _cookie(self) -> str:
        return f"{self.server.cookie}={self.server.key}; HttpOnly; SameSite=Strict; Path=/"

    def _given_cookie(self) -> str:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return ""
        return cookies[self.server.cookie].value if self.server.cookie in cookies else ""

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.server.key.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """Log nothing: the first request's line has the key in it."""
