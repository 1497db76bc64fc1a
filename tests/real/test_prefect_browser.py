"""`make serve` in a browser: a page of another site can do nothing through its user's own browser,
and that user can do everything on its pages."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.real.browser import Page, browsing, find_browser
from tests.real.serving import RUN_S, Served, serving
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.needs_prefect,
    pytest.mark.xdist_group("prefect_browser"),
    pytest.mark.skipif(
        find_browser() is None,
        reason="no Chromium is installed (`apt-get install chromium`): what a browser lets pages do is not looked at",
    ),
]
ATTACKS = """
<title>a page of another site</title>
<script>
async function told(asking) {
  try { const answer = await asking; return answer.type + " " + answer.status } catch (error) { return error.name }
}
async function attack(api, path, content, secret) {
  const url = api + path, body = JSON.stringify(content), json = {"Content-Type": "application/json"}
  const socket = (name) => new Promise((done) => {
    const opened = new WebSocket(api.replace("http", "ws") + "/" + name, ["prefect"])
    opened.onopen = () => opened.send(JSON.stringify({type: "auth", token: secret}))
    opened.onmessage = (message) => done(message.data)
    opened.onclose = () => done("closed")
  })
  const [frame, form, field] = ["iframe", "form", "input"].map((name) => document.createElement(name))
  document.body.append(frame, form)
  frame.name = form.target = "frame"
  Object.assign(form, {action: url, method: "POST", enctype: "text/plain"})
  Object.assign(field, {name: body.slice(0, -1) + ', "x": "', value: '"}'})
  form.append(field)
  form.submit()
  return {
    json: await told(fetch(url, {method: "POST", headers: json, body})),
    plain: await told(fetch(url, {method: "POST", mode: "no-cors", body})),
    untyped: await told(fetch(url, {method: "POST", mode: "no-cors", body: new Blob([body])})),
    with_credentials: await told(
      fetch(url, {method: "POST", mode: "no-cors", credentials: "include", body: new Blob([body])})),
    with_the_secret: await told(
      fetch(url, {method: "POST", headers: {...json, Authorization: "Basic " + btoa(secret)}, body})),
    reading: await told(fetch(api + "/health")),
    beacon: navigator.sendBeacon(url, new Blob([body])),
    sockets: await Promise.all(["events/in", "events/out", "logs/out"].map(socket)),
  }
}
</script>
<body></body>
"""


class _OtherSite(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(ATTACKS.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def other_site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _OtherSite) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def served(tmp_path_factory, repository):
    with serving(tmp_path_factory.mktemp("served"), repository) as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path / "browser", "--host-resolver-rules=MAP evil.example 127.0.0.1") as opened:
        yield opened


def test_a_page_of_another_site_runs_nothing_and_reads_nothing(served, page, other_site, tmp_path):
    [deployment] = [one["id"] for one in served.ask("deployments/filter", {}) if one["name"] == "process"]
    path, command = f"/deployments/{deployment}/create_flow_run", f"touch '{tmp_path / 'ran'}'"
    content = {"state": {"type": "SCHEDULED"}, "job_variables": {"command": command}}
    page.open(other_site)
    arguments = ", ".join(map(json.dumps, (served.environment["PREFECT_API_URL"], path, content, served.secret)))
    assert page.run(f"attack({arguments})") == {
        "json": "TypeError",  # what a page is told that may not ask
        "plain": "opaque 0",  # sent, and nothing to read of the answer
        "untyped": "opaque 0",
        "with_credentials": "opaque 0",
        "with_the_secret": "TypeError",
        "reading": "TypeError",
        "beacon": True,
        "sockets": ["closed"] * 3,
    }
    page.wait_for("frames[0].length === 0 && document.readyState === 'complete'", "the form")
    assert not [one for one in served.ask("flow_runs/filter", {}) if one["job_variables"]]
    log_in(page, served)  # and of one who is logged in, in the same browser
    page.open(other_site)
    page.run(f"attack({arguments})")
    assert not [one for one in served.ask("flow_runs/filter", {}) if one["job_variables"]]
    served.ask(path[1:], content | {"name": "the-owners"})
    wait_until(
        (tmp_path / "ran").exists,
        limit_s=RUN_S,
        what="the owner's command: the worker was looking for runs all the while",
    )
    assert [one["name"] for one in served.ask("flow_runs/filter", {}) if one["job_variables"]] == ["the-owners"]


def test_a_site_whose_name_was_made_to_lead_to_this_machine_shows_none_of_its_pages(served, page):
    port = urlsplit(served.environment["PREFECT_API_URL"]).port
    for path in ("/", "/api/health"):
        page.open(f"http://evil.example:{port}{path}")
        assert page.run("document.body.innerText") == "Invalid host header"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_who_knows_the_secret_logs_in_once_and_sees_the_deployments(served, page, tmp_path, host):
    url = log_in(page, served, host)
    page.open(f"{url}/deployments")
    text = page.wait_for(
        "document.body.innerText.includes('experiments-kubernetes') && document.body.innerText", "the deployments"
    )
    page.screenshot(tmp_path / "prefect-ui.png")
    assert "nightly-process" in text
    assert page.run("location.pathname").endswith("/deployments")


def log_in(page: Page, served: Served, host: str = "127.0.0.1") -> str:
    """The address of the pages."""
    url = f"http://{host}:{urlsplit(served.environment['PREFECT_API_URL']).port}"
    page.open(url)
    page.wait_for(
        "location.pathname.includes('login') && document.querySelector('input') !== null", "the question for the secret"
    )
    page.run("document.querySelector('input').focus()")
    page.type(served.secret)
    page.wait_for("!location.pathname.includes('login')", "the page behind it")
    return url
