"""Serves the list of local branches and comparisons of them on a loopback port, for the user who
started it: for the key in the printed address, or the cookie that is given for it."""

from collections.abc import Callable
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from posttrain.report.comparison.branches import MAX_COMPARED, branches_page, local_branches
from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_runs
from posttrain.report.comparison.settings import compare_settings
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import StageError
from posttrain.runtime.loopback import LOOPBACK, LoopbackServer, own_response


class Dashboard(LoopbackServer):
    """Serves the tree at `root`. `address` has the key, which is all that a reader needs; `cookie`
    is a name with the port, because a browser sends a host's cookies to all of its ports."""

    def __init__(self, root: Path, port: int = 0) -> None:
        local_branches(root)  # refuses what is no repository
        self.root = root
        super().__init__([Route("/{path:path}", self._get, methods=["GET"])], port)
        self.address = f"http://{LOOPBACK}:{self.port}/?key={self.key}"
        self.cookie = f"posttrain-dashboard-{self.port}"

    async def _get(self, request: Request) -> Response:
        query, path = request.query_params, request.url.path
        if self.is_key(query.get("key", "")):
            cookie = f"{self.cookie}={self.key}; HttpOnly; SameSite=Strict; Path=/"
            return own_response("", 303, Location="/", Set_Cookie=cookie)
        if not self.is_key(request.cookies.get(self.cookie, "")):
            return own_response("the key is in the address that `posttrain dashboard` printed", 403)
        names, baseline = list(dict.fromkeys(filter(None, query.getlist("name")))), query.get("baseline", "")
        if path == "/compare" and not 0 < len(names) <= MAX_COMPARED:
            most = f"{MAX_COMPARED} at most"
            return own_response(f"name one branch or more, {most}: /compare?name=main&name=exp/a", 400)
        pages: dict[str, Callable[[], str]] = {
            "/": lambda: branches_page(self.root, local_branches(self.root), baseline),
            "/compare": lambda: comparison_page(compare_settings(read_runs(self.root, names))),
        }
        if path not in pages:
            return own_response("no such page", 404)
        try:
            return own_response(await run_in_threadpool(pages[path]), kind="text/html")
        except StageError as error:
            return own_response(escape_control_chars(str(error)), 404)
