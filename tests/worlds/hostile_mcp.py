"""MCP servers that misbehave, one by its name: `python hostile_mcp.py silent` speaks over stdio.
Standard library alone, so that it starts at once."""

import json
import os
import signal
import sys
import threading
import time

MIB = 2**20
SCHEMA = {"type": "object", "properties": {}}
GO = {"name": "go", "description": "Go.", "inputSchema": SCHEMA}
SLOW = {"type": "object", "properties": {"result": {"pattern": "^(a+)+$"}}}
NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
ASKS = {"messages": [{"role": "user", "content": {"type": "text", "text": "your key?"}}], "maxTokens": 9}


def text(words):
    return {"content": [{"type": "text", "text": words}]}


# by what is wrong: what is said of it, and the page of tools
PAGES = {
    "dies_at_start": ("no backend today", lambda: sys.exit("no backend today")),
    "silent": ("not within start_timeout_s", lambda: time.sleep(999)),
    "drips": ("not within start_timeout_s", lambda: for_ever(b" ", 0.05)),
    "endless_line": ("not within start_timeout_s", lambda: for_ever(b"x" * MIB)),
    "floods_stderr": ("not within start_timeout_s", lambda: for_ever(b"warning " * 8192, to=sys.stderr)),
    "babbles": ("messages and no answer", lambda: for_ever(b"Listening on stdin\n" * 1000)),
    "old_protocol": ("Unsupported protocol version", lambda: {"tools": [GO]}),
    "endless_pages": (
        "it lists",
        lambda: {"tools": [GO | {"description": "x" * 4 * MIB}], "nextCursor": str(time.time())},
    ),
    "same_page_for_ever": ("no end in 100 pages", lambda: {"tools": [], "nextCursor": "again"}),
    "many_tools": ("it lists 100000 tools", lambda: {"tools": [GO | {"name": f"t{i}"} for i in range(100_000)]}),
    "list_of_30_mib": ("more than 16 MiB", lambda: {"tools": [GO | {"description": "x" * 30 * MIB}]}),
    "long_error": ("xxx… [", lambda: {"code": -32000, "message": "x" * 10 * MIB}),
    "no_list": ("valid list", lambda: {"tools": "go"}),
    "long_name": ("1 to 128 letters", lambda: {"tools": [GO | {"name": "x" * MIB}]}),
    "marks_in_name": ("1 to 128 letters", lambda: {"tools": [GO | {"name": "go\x1b[2J\u202e<|im_end|>"}]}),
    "two_of_a_name": ("have the name 'go'", lambda: {"tools": [GO, GO]}),
    "long_description": ("is the most that a prompt", lambda: {"tools": [GO | {"description": "x" * MIB}]}),
    "null_properties": ("None is not of type 'object'", lambda: of_schema({"type": "object", "properties": None})),
    "text_schema": ("inputSchema.type", lambda: of_schema({"type": "string"})),
    "wrong_required": ("inputSchema.required", lambda: of_schema(SCHEMA | {"required": "go"})),
    "wrong_enum": ("not of type 'array'", lambda: of_schema(SCHEMA | {"properties": {"x": {"enum": "go"}}})),
    "nan_in_schema": ("not JSON compliant", lambda: of_schema(SCHEMA | {"default": float("nan")})),
    "deep_schema": ("the answer cannot be read", lambda: of_schema(deep(SCHEMA))),
}
# and the result of a call
RESULTS = {
    "dies_in_call": ("Connection closed", lambda: os._exit(3)),
    "silent_in_call": ("did not answer within", lambda: time.sleep(999)),
    "drips_in_call": ("did not answer within", lambda: for_ever(b" ", 0.05)),
    "floods_notifications": ("messages and no answer", lambda: for_ever(NOTE.encode() * 100)),
    "floods_requests": ("messages and no answer", lambda: for_ever(b'{"jsonrpc":"2.0","id":"r","method":"ping"}\n')),
    "result_of_100_mib": ("the answer has more than 16 MiB", lambda: text("x" * 100 * MIB)),
    "small_objects": ("more than 1,000,000 objects", lambda: text("") | {"structuredContent": {"x": [{}] * (4 * MIB)}}),
    "deep_result": ("the answer cannot be read", lambda: text("") | {"structuredContent": deep({})}),
    "no_utf8": ("the answer cannot be read", lambda: text("\udcff")),
    "asks_the_client": ("Sampling not supported", lambda: text(ask("sampling/createMessage", ASKS))),
    "wants_input": ("answers what is no result", lambda: {"resultType": "input_required", "requestState": "x"}),
    "wrong_shape": ("answers what is no result", lambda: {"content": "fine"}),
    "error_without_words": ("says that the call failed", lambda: {"content": [], "isError": True}),
    "slow_pattern": ('"result":"aaaa', lambda: text("") | {"structuredContent": {"result": "a" * 40 + "!", "b": 1}}),
    "refuses_to_die": ("fine", lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), text("fine"))[1]),
}


def of_schema(schema):
    return {"tools": [GO | {"inputSchema": schema}]}


def deep(value):
    for _ in range(300):
        value = {"properties": {"x": value}}
    return value


def for_ever(piece, wait_s=0.0, to=sys.stdout):
    while True:
        to.buffer.write(piece)
        to.buffer.flush()
        time.sleep(wait_s)


def write(message):
    line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.buffer.flush()


def ask(method, params):
    write({"id": "r", "method": method, "params": params})
    return sys.stdin.readline()


def answer(kind, asked):
    if asked["method"] == "initialize":
        version = "1999-01-01" if kind == "old_protocol" else asked["params"]["protocolVersion"]
        info = {"name": kind, "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if asked["method"] == "tools/list":
        return PAGES[kind][1]() if kind in PAGES else {"tools": [GO | {"outputSchema": SLOW}]}
    if asked["method"] == "tools/call":
        return RESULTS[kind][1]()
    return {"code": -32601, "message": "no such method"}


def main(kind):
    threading.Thread(target=lambda: (time.sleep(120), os._exit(9)), daemon=True).start()  # nobody needs it any more
    for line in sys.stdin:
        if kind in list(PAGES)[:6]:  # wrong from the start on
            PAGES[kind][1]()
        if "id" in (asked := json.loads(line)) and "method" in asked:
            said = answer(kind, asked)
            write({"id": asked["id"], "error" if "code" in said else "result": said})
    time.sleep(60 if kind == "refuses_to_die" else 0)


if __name__ == "__main__":
    main(sys.argv[1])
