"""A W&B server on the loopback interface that keeps in memory what `wandb sync` and an online run
send: as much of GraphQL and of the file stream as wandb-core 0.31 waits for."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = {"id": "project", "name": "posttrain", "entity": {"id": "entity", "name": "team"}}


@dataclass
class ReceivedRun:
    """`history` are its lines by their place, `told` the variables of the first UpsertBucket."""

    told: dict[str, Any]
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@dataclass
class Receiver:
    """What came: runs by id, uploaded files by path, artifacts and alerts as they were sent."""

    url: str = ""
    runs: dict[str, ReceivedRun] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, query: str, told: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL answer."""
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)[1]
        return getattr(self, re.sub(r"([A-Z])", r"_\1", operation).lower())(told)

    def stream(self, run: str, files: dict[str, Any]) -> None:
        """What a file stream brings."""
        for name, part in files.items():
            if name == "wandb-history.jsonl":
                lines = {part["offset"] + at: json.loads(line) for at, line in enumerate(part["content"])}
                self.runs[run].history |= lines
            elif name == "wandb-summary.json":
                self.runs[run].summary |= json.loads(part["content"][-1])

    def _upsert_bucket(self, told: dict[str, Any]) -> dict[str, Any]:
        is_new = told["name"] not in self.runs
        run = self.runs.setdefault(told["name"], ReceivedRun(told))
        run.config |= {name: one["value"] for name, one in json.loads(told.get("config") or "{}").items()}
        bucket = {"id": told["name"], "name": told["name"], "displayName": told["displayName"], "project": PROJECT}
        return {"upsertBucket": {"bucket": bucket | {"historyLineCount": len(run.history)}, "inserted": is_new}}

    def _run_resume_status(self, told: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(told["name"])
        if run is None:
            return {"model": PROJECT | {"bucket": None}}
        tail = [json.dumps(run.history[max(run.history)])] if run.history else []
        bucket = {
            "id": told["name"],
            "name": told["name"],
            "summaryMetrics": json.dumps(run.summary),
            "displayName": run.told["displayName"],
            "logLineCount": 0,
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "config": json.dumps({name: {"value": value} for name, value in run.config.items()}),
            "tags": run.told["tags"] or [],
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"model": PROJECT | {"bucket": bucket}}

    def _create_run_files(self, told: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{told['run']}/{name}"} for name in told["files"]]
        return {"createRunFiles": {"runID": told["run"], "uploadHeaders": [], "files": files}}

    def _server_features_query(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _notify_scriptable_run_alert(self, told: dict[str, Any]) -> dict[str, Any]:
        self.alerts.append(told)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _create_artifact(self, told: dict[str, Any]) -> dict[str, Any]:
        self.artifacts.append(told["input"])
        sequence = {"latestArtifact": None}
        artifact = {"id": f"artifact-{len(self.artifacts)}", "state": "PENDING", "artifactSequence": sequence}
        return {"createArtifact": {"artifact": artifact}}

    def _create_artifact_manifest(self, told: dict[str, Any]) -> dict[str, Any]:
        file = {"id": "manifest", "uploadUrl": f"{self.url}/upload/{told['artifactID']}", "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": "manifest", "file": file}}}

    def _create_artifact_files(self, told: dict[str, Any]) -> dict[str, Any]:
        def node(file: dict[str, Any]) -> dict[str, Any]:
            path = f"{file['artifactID']}/{file['name']}"
            sent = {"storagePath": path, "uploadUrl": f"{self.url}/upload/{path}", "uploadHeaders": []}
            return sent | {"uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}}

        edges = [{"node": node(file)} for file in told["input"]["artifactFiles"]]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _commit_artifact(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"commitArtifact": {"artifact": {"id": told["artifactID"], "digest": ""}}}


@contextmanager
def wandb_server() -> Iterator[Receiver]:
    """A server that runs, by what it has received."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.path == "/graphql":
                asked = json.loads(body)
                self._send({"data": received.answer(asked["query"], asked.get("variables") or {})})
                return
            if found := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
                received.stream(found[1], json.loads(body).get("files") or {})
            self._send({})

        def do_PUT(self) -> None:
            received.files[self.path.removeprefix("/upload/")] = self._body()
            self._send({})

        def do_GET(self) -> None:
            self._send({})

        def log_message(self, *_: object) -> None:
            pass

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _send(self, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
