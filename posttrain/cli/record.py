"""`posttrain record`, and `--recorded` of `posttrain traces list`, `show` and `export`: exchanges
of a program with its endpoint."""

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from posttrain.cli.command import Commands, add_command
from posttrain.runtime.exits import ConfigurationError

OF_EXCHANGES = ("since", "until", "request_id", "model", "session", "grep")


def add_record(commands: Commands) -> None:
    """The command `record`."""
    command = add_command(commands, "record", record)
    command.add_argument("--upstream", required=True, help="base URL that the program has now: https://host/v1")
    command.add_argument("--port", type=int, default=8102, help="of 127.0.0.1 (8102); 0 is any free one")


def record(upstream: str, port: int) -> None:
    """Record what any program asks an OpenAI-compatible endpoint, until Ctrl-C: set its
    OPENAI_BASE_URL to the address that is printed."""
    from posttrain.traces.recorder import serve_until_stopped

    asyncio.run(serve_until_stopped(upstream, port))


def exchange_conditions() -> argparse.ArgumentParser:
    """Named as CONDITIONS of `traces/exchanges.py` has them; `is_failed` is of episodes, too."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("exchanges of `posttrain record`")
    group.add_argument("--recorded", action="store_true", help="list these, not episodes")
    group.add_argument("--since", metavar="TIME", help="2026-01-31T12:00, or 2h or 3d for so long ago")
    group.add_argument("--until", metavar="TIME", help="the same")
    group.add_argument("--request-id", metavar="ID", help="the endpoint's x-request-id")
    group.add_argument("--model", help="as the request names it")
    group.add_argument("--session", help="one conversation of the program")
    group.add_argument("--grep", metavar="TEXT", help="the request or the answer holds this text")
    return parser


def split_conditions(given: Mapping[str, Any], *, is_recorded: bool) -> dict[str, Any]:
    """The conditions on exchanges, or those on episodes. Raises ConfigurationError where one of the
    others is given."""
    names = {*OF_EXCHANGES, "is_failed"} & given.keys() if is_recorded else given.keys() - set(OF_EXCHANGES)
    if wrong := sorted(name for name in given.keys() - names if given[name]):
        option = {"task_id": "task", "steps": "step"}.get(wrong[0], wrong[0]).replace("_", "-")
        kind, remedy = ("episodes", "leave out") if is_recorded else ("exchanges", "add")
        raise ConfigurationError(f"--{option} asks about {kind}: {remedy} --recorded, or leave out --{option}")
    return {name: given[name] for name in names}


def list_recorded(asked: dict[str, Any], *, limit: int) -> None:
    """The newest exchanges that meet all conditions, newest first."""
    from posttrain.cli.traces import open_store
    from posttrain.traces.exchanges import find_exchanges, parse_time
    from posttrain.traces.show import text_table

    times = {name: parse_time(asked[name]) for name in ("since", "until") if asked[name]}
    with open_store() as connection:
        found = find_exchanges(connection, {**asked, **times}, limit=limit)
    names = ("session", "model", "path", "request_id", "failure")
    cells = [
        [
            *(str(one.exchange_id), datetime.fromtimestamp(one.started_at).isoformat(" ", "seconds")),
            *(f"{one.status or '-'}", f"{one.latency_s:.3f}", *(getattr(one, name)[:80] for name in names)),
        ]
        for one in found
    ]
    if cells:
        print(text_table(("exchange", "started", "status", "seconds", *names), cells))
    print(f"{len(found)} exchanges, {limit} at most" if len(found) == limit else f"{len(found)} exchanges")


def show_recorded(exchange_id: int) -> None:
    """Figures of one exchange, the request's messages, and the answer, put together if streamed."""
    from posttrain.runtime.control_chars import escape_control_chars
    from posttrain.traces.answers import message_of, read_json

    one = read_recorded(exchange_id)
    request, answer = read_json(one["request"]["body"].encode()) or {}, one["response"]["answer"]
    messages = (request.get("messages") or request.get("input")) if isinstance(request, dict) else None
    lines = [f"{name:<14}{value}" for name, value in one.items() if not isinstance(value, dict)]
    for message in messages if isinstance(messages, list) else [messages or one["request"]["body"]]:
        lines += ["", *_message(message, "request")]
    lines += ["", *_message(message_of(answer) or answer or one["response"]["body"], "answer")]
    print(escape_control_chars("\n".join(lines)))


def read_recorded(exchange_id: int) -> dict[str, Any]:
    """One exchange for JSON. `request` has all to make it again but a key."""
    from posttrain.cli.traces import open_store
    from posttrain.traces.answers import read_answer
    from posttrain.traces.exchanges import read_exchange

    with open_store() as connection:
        one = read_exchange(connection, exchange_id)
    request, response = ({"body": body.decode("utf-8", "backslashreplace")} for body in (one.request, one.response))
    return {
        **{name: value for name, value in asdict(one).items() if name not in ("headers", "path")},
        "started_at": datetime.fromtimestamp(one.started_at, UTC).isoformat(),
        "request": {"method": "POST", "path": one.path, "headers": one.headers["request"], **request},
        "response": {"headers": one.headers.get("response", []), **response, "answer": read_answer(one.response)},
    }


def _message(message: Any, role: str) -> Iterator[str]:
    """A chat's message with its calls, anything else as JSON."""
    if isinstance(message, dict) and isinstance(message.get("content") or "", str) and "role" in message:
        role = f"{message['role']} {message.get('tool_call_id') or ''}".strip()
        texts = [message[name] for name in ("reasoning_content", "reasoning", "content") if message.get(name)]
        texts += [f"→ {json.dumps(call, ensure_ascii=False)}" for call in message.get("tool_calls") or ()]
    else:
        texts = [message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, indent=1)]
    yield role
    yield from (f"  {line}" for text in texts for line in str(text).splitlines())
