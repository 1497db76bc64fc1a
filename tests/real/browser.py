"""A real browser without a window, driven by Chromium's DevTools protocol."""

import base64
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websockets.sync.client

from tests.waiting import wait_until

START_S, LOAD_S = 60, 60


def find_browser() -> str | None:
    """Path of Chromium, None where it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """The one page of a browser. `events` is what it has told of itself, in the domains that were
    enabled."""

    def __init__(self, url: str) -> None:
        self._socket = websockets.sync.client.connect(url, max_size=None, proxy=None)
        self._num_sent = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._num_sent += 1
        self._socket.send(json.dumps({"id": self._num_sent, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv(timeout=LOAD_S))
            if answer.get("id") == self._num_sent:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Returns when it is loaded."""
        self.send("Page.navigate", url=url)
        wait_until(
            lambda: self.run("document.readyState") == "complete" and self.run("location.href") != "about:blank",
            limit_s=LOAD_S,
            what=url,
        )

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, once it is there where it is a promise."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, script: str, what: str) -> Any:
        """Until JavaScript gives something true."""
        return wait_until(lambda: self.run(script), limit_s=LOAD_S, what=what)

    def press(self, key: str) -> None:
        """A key that stands for no character, where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def type(self, text: str) -> None:
        """Type at the cursor, then Enter."""
        self.send("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
            )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def browsing(folder: Path, *options: str) -> Iterator[Page]:
    """A browser that keeps what it knows in `folder`."""
    command = [
        find_browser(),
        "--headless=new",
        "--no-sandbox",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "--window-size=1280,900",
    ]
    command += ["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage", *options, "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = folder / "DevToolsActivePort"
        wait_until(lambda: told.exists() and told.read_text().count("\n"), limit_s=START_S, what="the browser")
        port, path = told.read_text().split()
        with websockets.sync.client.connect(f"ws://127.0.0.1:{port}{path}", proxy=None) as whole:
            deadline, pages = time.monotonic() + START_S, []
            while not pages and time.monotonic() < deadline:
                whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                targets = json.loads(whole.recv(timeout=START_S))["result"]["targetInfos"]
                pages = [target["targetId"] for target in targets if target["type"] == "page"]
        page = Page(f"ws://127.0.0.1:{port}/devtools/page/{pages[0]}")
        page.send("Page.enable")
        yield page
    finally:
        browser.terminate()
        browser.wait(30)


@contextlib.contextmanager
def opened_offline(file: Path, home: Path, *, drawn: str) -> Iterator[Page]:
    """A page of ours without a network; `drawn` is the JavaScript that is true once it has drawn
    what it draws."""
    with browsing(home, "--host-resolver-rules=MAP * ~NOTFOUND") as page:
        for domain in ("Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.open(file.as_uri())
        page.wait_for(drawn, "what the page draws")
        yield page


def asked_for(page: Page) -> list[str]:
    """Every address, in order."""
    return [
        event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"
    ]


def complaints(page: Page) -> list[dict[str, Any]]:
    """Log entries and exceptions."""
    return [event for event in page.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
