"""Keys are planted wherever text comes from outside, the real stages run on it, and every file and
line that they leave is searched for them."""

import base64
import binascii
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.parse
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from aiohttp import web

from tests.console import posttrain
from tests.key_examples import examples, planted, planted_in
from tests.planted.ours import MAX_RESULT_CHARS, OWN, SERVED
from tests.rollout.loopback import LoopbackServer

KEYS = {  # by where they are quoted
    "OPENAI_API_KEY": "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8x",  # 401 and 500 bodies, an answer
    "MARKET_API_KEY": "mk/9+Zx8Cv7Bn6Mq5Ww4Ee3Rr2Tt1",  # a tool's result, in every spelling
    "BROKER_TOKEN": "brk.0f1e2d3c4b5a69788796a5b4",  # a ToolError
    "VENDOR_SECRET": "ven-55aa66bb77cc88dd99ee00ff",  # a ToolError of 50 MB, across the cut
    "DB_PASSWORD": 'pä"ss/w+rd 9\\x',  # the exception of a tool
    "SERVICE_TOKEN": "svc-t-31415926535897932384",  # an MCP result, and stray output of the server
    "SERVICE_SECRET": "svc-s-27182818284590452353",  # isError
    "SERVICE_PASSWORD": "svc-p-16180339887498948482",  # an MCP server's stderr
    "AGENT_CREDENTIAL": "agt_14142135623730950488a",  # the exception of an agent's program
    "USER_AUTH_KEY": "usr-17320508075688772935",  # .env; the user's reply
    "VLLM_API_KEY": "vllm-22360679774997896964",  # a vLLM server's error
}
UNKNOWN = "sk-ant-api03-Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2"  # of no variable: a key of the endpoint's owner
SERVED_BY_ENDPOINT = (*OWN, *SERVED)


def found_in(text: str) -> set[str]:
    """The keys that a text holds, as they are, quoted by JSON or URLs, within base64, or in their
    first fourteen characters."""
    decoded = [
        text,
        urllib.parse.unquote_plus(text),
        text.replace('\\"', '"').replace("\\/", "/").replace("\\\\", "\\"),
    ]
    for run in re.findall(r"[A-Za-z0-9+/_-]{16,}", text):
        for offset in range(4):
            code = run[offset:].replace("-", "+").replace("_", "/")
            with contextlib.suppress(binascii.Error):
                decoded.append(base64.b64decode(code[: len(code) // 4 * 4]).decode(errors="replace"))
    named = {**KEYS, "UNKNOWN": UNKNOWN}
    return {name for name, key in named.items() if any(key[:14] in one for one in decoded)} | planted_in(text)


def texts_of(path: Path) -> Iterator[str]:
    """Content of a file, packed or not."""
    content = path.read_bytes()
    yield content.decode(errors="replace")
    if path.suffix == ".parquet":
        yield json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str)
    if content.startswith(b"SQLite"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for value in (value for row in connection.execute(f"SELECT * FROM {table}") for value in row):
                    with contextlib.suppress(zlib.error):
                        yield (
                            zlib.decompress(value).decode(errors="replace") if isinstance(value, bytes) else str(value)
                        )


def test_the_search_finds_a_key_in_every_spelling_and_in_what_is_packed(tmp_path):
    key = KEYS["MARKET_API_KEY"]
    for spelling in (
        key,
        json.dumps(key),
        urllib.parse.quote(key, safe=""),
        base64.b64encode(b"me:" + key.encode()).decode(),
        f"a {key[:14]}…",
    ):
        assert found_in(spelling) == {"MARKET_API_KEY"}
    for text in (planted("a tool", 12), json.dumps(planted("a tool", 12))):
        found = planted_in(text)
        assert {name.partition(":")[0] for name in found} == set(examples(1))
        assert len(found) > 600
    assert found_in(json.dumps(KEYS["DB_PASSWORD"], ensure_ascii=False)) == {"DB_PASSWORD"}
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (?)", (zlib.compress(key.encode()),))
        connection.commit()
    assert found_in("".join(texts_of(tmp_path / "a.db"))) == {"MARKET_API_KEY"}


class Endpoint(LoopbackServer):
    """Calls the tool that the user names, then repeats what it read; or quotes the caller's key
    with a status, as `mood` says."""

    def __init__(self) -> None:
        self.mood = 200
        self.read: list[str] = []
        super().__init__([web.post("/v1/chat/completions", self._answer)])

    async def _answer(self, request):
        header = request.headers["Authorization"]
        login = base64.b64encode(f"key:{header.removeprefix('Bearer ')}".encode()).decode()
        if self.mood != 200:
            quoted = (
                f"Incorrect API key provided: {header}, Basic {login}, {urllib.parse.quote(header)}, {header[7:21]}… "
                + planted("an endpoint's refusal", at_most=4)  # of more than 64 KiB nothing is quoted
            )
            headers = {"x-request-id": header, "retry-after-ms": "1"}
            return web.json_response({"error": {"message": quoted, "code": None}}, status=self.mood, headers=headers)
        messages = (await request.json())["messages"]
        last = messages[-1]
        self.read.append(json.dumps(last, ensure_ascii=False))
        asked = last["content"].rpartition(" ")[2] if last["role"] == "user" else ""
        if asked in SERVED_BY_ENDPOINT:
            calls = [{"id": "x", "type": "function", "function": {"name": asked, "arguments": "{}"}}]
            message, finish = {"role": "assistant", "content": header, "tool_calls": calls}, "tool_calls"
        else:
            said, thought = last["content"][:300] + planted("an endpoint", 3), f"{header} {planted('a thought', 3)}"
            said = f"I read {said}\nYour key is {header}, mine {UNKNOWN}.\nANSWER: done"
            message, finish = {"role": "assistant", "content": said, "reasoning_content": thought}, "stop"
        choices = [{"index": 0, "finish_reason": finish, "message": message}]
        return web.json_response(
            {"id": "a", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
        )


class Tree:
    """A folder where stages run as programs; `log` collects all that they print."""

    def __init__(self, root: Path, repository: Path, endpoint: Endpoint) -> None:
        self.root, self.log, self.endpoint = root, "", endpoint
        for name in ("ours.py", "mcp_server.py"):
            shutil.copyfile(repository / "tests" / "planted" / name, root / name)
        graph = yaml.safe_load((repository / "dvc.yaml").read_text(encoding="utf-8"))
        for stage in graph["stages"].values():
            stage.get("do", stage)["deps"].append("ours.py")
        (root / "dvc.yaml").write_text(yaml.safe_dump(graph), encoding="utf-8")
        params = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
        counts = {"num_sft_tasks": 10, "num_rl_tasks": 16, "num_dev_tasks": 2, "num_test_tasks": 3}
        params["world"] = {"type": "ours:Domain", "seed": 1, **counts}
        params["reward"] |= {
            "weights": {"completion": 0.7, "strictness": 0.25, "format": 0.05},
            "penalties": {"redundant_call": -0.01, "format_error": -0.005, "timeout": -0.01},
        }
        params["evaluate"]["by"] = ["kind"]
        params["sample_preferences"]["num_tasks"] = 5
        params["agent"] |= {
            "max_result_chars": MAX_RESULT_CHARS,
            "max_aborted_frac": 0.6,
            "tool_timeout_s": 60.0,
            "max_seconds": 120.0,
        }
        params["generate_data"]["source"] = {
            "type": "openai",
            "model": "big",
            "temperature": 0.0,
            "max_new_tokens": 200,
        }
        params["validate_data"]["max_quarantine_frac"] = 1.0
        params["evaluate"] |= {
            "teacher": {"type": "openai", "model": "big", "max_new_tokens": 200},
            "num_samples": 4,
        }
        (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        (root / ".env").write_text(f"USER_AUTH_KEY={KEYS['USER_AUTH_KEY']}\n", encoding="utf-8")
        self.environment = {
            **os.environ,
            **KEYS,
            "PYTHONPATH": str(repository),
            "OPENAI_BASE_URL": f"{endpoint.url}/v1",
            "WANDB_MODE": "disabled",
        }
        del self.environment["USER_AUTH_KEY"]

    def run(self, *arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.log += f"$ {arguments}\n{done.stdout}{done.stderr}"
        return done.returncode

    def leaks(self) -> dict[str, set[str]]:
        """Leaked keys by file, or `(printed)`."""
        if (store := self.root / ".posttrain" / "traces.db").exists():
            with contextlib.closing(sqlite3.connect(store)) as connection:
                connection.execute(
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )  # so that no file beside it comes and goes while they are read
        files = [
            path
            for path in self.root.rglob("*")
            if path.is_file() and path != self.root / ".env" and path.suffix != ".db-shm"
        ]
        held = {str(path.relative_to(self.root)): set().union(*map(found_in, texts_of(path))) for path in files}
        return {name: keys for name, keys in {**held, "(printed)": found_in(self.log)}.items() if keys}


@pytest.fixture
def tree(tmp_path, repository):
    endpoint = Endpoint()
    yield Tree(tmp_path, repository, endpoint)
    endpoint.stop()


@pytest.mark.needs_keys
def test_ten_planted_keys_are_in_no_file_and_no_line_but_the_users_own(tree, monkeypatch):
    for mood, exit_code in ((401, 78), (400, 78)):
        tree.endpoint.mood = mood
        assert tree.run("-m", "stages.generate_data") == exit_code
        assert f"{mood}" in tree.log
    assert tree.log.count("Incorrect API key provided: Bearer [key removed: OPENAI_API_KEY]") == 2

    tree.endpoint.mood = 200
    assert tree.run("-m", "stages.generate_data") == 0, tree.log
    assert tree.run("-m", "stages.validate_data") == 0, tree.log
    assert tree.run("-m", "stages.evaluate", "teacher") == 0, tree.log
    written = {path.name for path in tree.root.rglob("*") if path.is_file()}
    assert {"played.jsonl", "traces.db", "demonstrations.parquet", "index.html", "teacher.tasks.jsonl"} <= written

    monkeypatch.chdir(tree.root)
    listed = posttrain("traces", "list", "--limit", 1000).stdout
    episodes = [line.split()[0] for line in listed.splitlines()[1:] if line.split()[0].isdecimal()]
    shown = "".join(posttrain("traces", "show", episode).stdout for episode in episodes)
    tree.log += listed + shown
    (tree.root / "exported.jsonl").write_text(posttrain("traces", "export").stdout, encoding="utf-8")

    for name in set(KEYS) - {"VLLM_API_KEY"}:
        assert f"[key removed: {name}]" in shown, f"{name} was planted where nobody met it"
    assert "[key removed]" in shown, UNKNOWN
    num_chars = len('{"error":""}') + MAX_RESULT_CHARS - 60 + len(KEYS["VENDOR_SECRET"]) + 50_000_000
    assert f"of {num_chars} characters cut]" in shown
    num_chars = len('""') + 20_000_000 + len(KEYS["SERVICE_SECRET"])  # of the MCP server's flood
    assert f"of {num_chars} characters cut]" in shown
    assert max(map(len, tree.endpoint.read)) < 3 * MAX_RESULT_CHARS, "what the agent reads, whoever says it"
    assert found_in("".join(tree.endpoint.read)) == set()
    assert tree.leaks() == {}


@pytest.mark.needs_keys
def test_an_endpoint_that_always_fails_is_quoted_without_the_key(tree):
    tree.endpoint.mood = 500
    (tree.root / "retries.py").write_text(
        "from posttrain.rollout import openai_policy\nopenai_policy.NUM_RETRIES = 1\n"
        "from posttrain.provenance.runner import run_stage\nfrom stages.generate_data import "
        "generate_data\nrun_stage(generate_data)\n"
    )
    assert tree.run("retries.py") == 75
    quoted = "Error code: 500 - Incorrect API key provided: Bearer [key removed: OPENAI_API_KEY]"
    assert f"answered 500 to the last of its tries: {quoted}" in tree.log
    assert tree.leaks() == {}


@pytest.mark.needs_keys
def test_a_vllm_server_that_quotes_a_key_is_quoted_without_it(tree):
    async def refuse(request):
        return web.Response(
            status=int(request.query.get("status", 401)),
            text=f"no such key: {KEYS['VLLM_API_KEY']}\n" + "x" * 1_000_000,
        )

    server = LoopbackServer([web.get("/health", refuse)])
    address = server.url.replace("//", f"//me:{KEYS['DB_PASSWORD'][:2]}w0rdw0rd1@")
    (tree.root / "ask.py").write_text(
        "import asyncio, sys, aiohttp\nfrom posttrain.runtime.exits import StageError, exit_codes\n"
        "from posttrain.rollout.engines.vllm_server import ServerFailed, VllmServer\n"
        "async def ask(url):\n    async with aiohttp.ClientSession() as session:\n"
        "        await VllmServer(url, session, timeout_s=5.0).check_health()\n"
        "with exit_codes():\n    asyncio.run(ask(sys.argv[1]))\n"
    )
    try:
        assert tree.run("ask.py", server.url) == 78
        assert "refuses with 401: no such key: [key removed: VLLM_API_KEY]" in tree.log
        assert "characters cut]" in tree.log
        tree.log = ""
        tree.run("ask.py", address)
        assert "w0rdw0rd1" not in tree.log.partition("\n")[2]
    finally:
        server.stop()
    assert tree.leaks() == {}
