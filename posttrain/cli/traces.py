"""`posttrain traces`: list, show, export and replay recorded episodes. `posttrain record`, whose
exchanges of a program with its endpoint are listed, shown and exported by `--recorded`.

Each command imports what it alone needs: a filter over a million turns takes less time than to load
the library that the stages compute with.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command, add_commands
from posttrain.runtime.exits import ConfigurationError, DataError, StageError
from posttrain.traces.query import (
    EpisodeFilter,
    count_matching,
    episodes_table,
    matching,
    parse_steps,
    runs_table,
    similar_tool,
)
from posttrain.traces.store import VARIABLE, open_to_read, trace_location, typed_errors

OF_EXCHANGES = ("since", "until", "request_id", "model", "session", "grep")

if TYPE_CHECKING:
    from posttrain.rollout.params import AgentParams
    from posttrain.traces.values import Run, StoredEpisode
    from posttrain.worlds.params import WorldParams


def add_traces(commands: Commands) -> None:
    traces = add_commands(commands, "traces", "Find, show, export and replay recorded episodes.")
    conditions, one_episode = episode_conditions(), argparse.ArgumentParser(add_help=False)
    one_episode.add_argument(
        "episode", type=int, metavar="EPISODE", help="an episode's number, from `posttrain traces list`"
    )
    parser = add_command(traces, "list", list_episodes, parents=[conditions, exchange_conditions()])
    parser.add_argument("--limit", type=_positive, default=20, help="show at most this many")
    add_command(traces, "runs", list_runs)
    parser = add_command(traces, "show", show, parents=[one_episode])
    parser.add_argument("--recorded", action="store_true", help="the exchange of this number, not the episode")
    parser = add_command(traces, "export", export, parents=[conditions])
    parser.add_argument("--limit", type=_positive, help="only the newest; all by default")
    parser.add_argument(
        "--format",
        dest="file_format",
        choices=["jsonl", "otel", "atif"],
        default="jsonl",
        help="OpenAI messages (the default), OpenTelemetry's OTLP, or ATIF v1.8; an object a line",
    )
    parser.add_argument("--recorded", type=int, metavar="ID", help="this exchange of `posttrain record`, as one JSON")
    parser = add_command(traces, "replay", replay, parents=[one_episode])
    parser.add_argument("--model", type=Path, help="a model's folder: feed the token ids back, not the messages")
    parser.add_argument("--params", type=Path, help="play by this params.yaml, not by what the run had")
    parser = add_command(commands, "record", record)
    parser.add_argument("--upstream", required=True, help="base URL that the program has now: https://host/v1")
    parser.add_argument("--port", type=int, default=8102, help="of 127.0.0.1 (8102); 0 is any free one")


def episode_conditions() -> argparse.ArgumentParser:
    """Named as `EpisodeFilter` has them."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stage", help="train_policy, evaluate@sft, or evaluate for all its items")
    parser.add_argument("--run", type=int, help="a run's number, from `posttrain traces runs`")
    parser.add_argument("--part", help="greedy or sampled (evaluate)")
    parser.add_argument("--failed", dest="is_failed", action="store_true", help="no success, or aborted")
    parser.add_argument("--tool", help="this tool was called")
    parser.add_argument(
        "--tool-outcome", choices=["ok", "error", "timeout", "failed"], help="a call (of --tool) ended so"
    )
    parser.add_argument("--step", dest="steps", type=parse_steps, help="optimizer steps: 20, or 20..30")
    parser.add_argument("--task", dest="task_id", help="a task's id, or its beginning")
    parser.add_argument("--stop-reason", help="done, turn_limit, token_limit, …")
    return parser


def exchange_conditions() -> argparse.ArgumentParser:
    """Named as CONDITIONS of `traces/exchanges.py`; `is_failed` is of episodes, too."""
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


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def list_episodes(limit: int, recorded: bool, **conditions: Any) -> None:
    """The last recorded episodes that meet all conditions, newest first, and how many do; with
    --recorded exchanges of `posttrain record`."""
    from posttrain.traces.show import text_table

    conditions = split_conditions(conditions, is_recorded=recorded)
    if recorded:
        list_recorded(conditions, limit=limit)
        return
    with open_store() as connection:
        wanted = EpisodeFilter(**conditions)
        titles, found = episodes_table(connection, matching(connection, wanted, limit=limit))
        if found:
            print(text_table(titles, found))
        print(f"{len(found)} of {count_matching(connection, wanted):,} episodes that match")
        _hint(connection, wanted)


def split_conditions(given: Mapping[str, Any], *, is_recorded: bool) -> dict[str, Any]:
    """The conditions on exchanges, or those on episodes. Raises ConfigurationError where one of the
    others is given."""
    names = {*OF_EXCHANGES, "is_failed"} & given.keys() if is_recorded else given.keys() - set(OF_EXCHANGES)
    if wrong := sorted(name for name in given.keys() - names if given[name]):
        option = {"task_id": "task", "steps": "step"}.get(wrong[0], wrong[0]).replace("_", "-")
        kind, remedy = ("episodes", "leave out") if is_recorded else ("exchanges", "add")
        raise ConfigurationError(f"--{option} asks about {kind}: {remedy} --recorded, or leave out --{option}")
    return {name: given[name] for name in names}


def list_runs() -> None:
    """Every start of a stage of which episodes are left, newest first."""
    from posttrain.traces.show import text_table

    with open_store() as connection:
        print(text_table(*runs_table(connection)))


def show(episode: int, recorded: bool) -> None:
    """Print one episode, or one recorded exchange, as a conversation."""
    from posttrain.traces.show import conversation

    if recorded:
        show_recorded(episode)
        return
    with open_store() as connection:
        print(conversation(read_stored(connection, episode)))


def export(limit: int | None, file_format: str, recorded: int | None, **conditions: Any) -> None:
    """The episodes that meet all conditions as JSON lines on stdout, newest first: OpenAI messages,
    tokens, mask, log-probs, turns, scores, reward; or as `--format` says."""
    from posttrain.traces import atif, otel, reading

    if recorded is not None:
        split_conditions({**conditions, "limit": limit}, is_recorded=True)
        print(json.dumps(read_recorded(recorded), indent=1))
        return
    schemas = functools.lru_cache(lambda world: _schemas(json.loads(world)))
    with open_store() as connection:
        wanted = EpisodeFilter(**conditions)
        for found in reading.read_episodes(connection, matching(connection, wanted, limit=limit)):
            if file_format == "jsonl":
                line = reading.export_line(found)
            else:
                tools = schemas(json.dumps(found.run.settings.get("world")))
                line = otel.otel_line(found, tools) if file_format == "otel" else atif.atif_line(found, tools)
            sys.stdout.buffer.write(f"{line}\n".encode())
        _hint(connection, wanted)


def replay(episode: int, model: Path | None, params: Path | None) -> None:
    """Replay an episode: repeat the agent's messages, run world and tools, show differences. Exits
    with 1 where there is one."""
    from posttrain.rollout.offers import open_domain
    from posttrain.traces.replay import replay as play_again

    with open_store() as connection:
        stored = read_stored(connection, episode)
    world, agent = recorded_settings(stored.run, params)
    codec = None
    if model is not None:
        from posttrain.models.loading import load_codec

        codec = load_codec(model)
    differences = play_again(stored.traced, open_domain(world, agent), agent, codec)
    for difference in differences:
        print(difference.text())
    print(
        f"episode {episode}: {len(differences)} differences; "
        + ("token ids were fed back" if codec else "messages were repeated")
    )
    raise SystemExit(1 if differences else 0)


def record(upstream: str, port: int) -> None:
    """Record what any program asks an OpenAI-compatible endpoint, until Ctrl-C: set its
    OPENAI_BASE_URL to the address that is printed."""
    from posttrain.traces.recorder import serve_until_stopped

    asyncio.run(serve_until_stopped(upstream, port))


def list_recorded(asked: dict[str, Any], *, limit: int) -> None:
    """The newest exchanges that meet all conditions, newest first."""
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
    from posttrain.traces.exchanges import message_of, read_json

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
    from posttrain.traces.exchanges import read_answer, read_exchange

    with open_store() as connection:
        one = read_exchange(connection, exchange_id)
    request, response = ({"body": body.decode("utf-8", "backslashreplace")} for body in (one.request, one.response))
    return {
        **{name: value for name, value in asdict(one).items() if name not in ("headers", "path")},
        "started_at": datetime.fromtimestamp(one.started_at, UTC).isoformat(),
        "request": {"method": "POST", "path": one.path, "headers": one.headers["request"], **request},
        "response": {"headers": one.headers.get("response", []), **response, "answer": read_answer(one.response)},
    }


@contextlib.contextmanager
def open_store() -> Iterator[sqlite3.Connection]:
    """The trace store, to read. Raises ConfigurationError where it is turned off."""
    if (location := trace_location()) is None:
        raise ConfigurationError(
            f"{VARIABLE} is off, so there is no store to look into; unset it, or set it to the store's path"
        )
    with contextlib.closing(open_to_read(location.path)) as connection, typed_errors(location.path):
        yield connection


def read_stored(connection: sqlite3.Connection, episode: int) -> "StoredEpisode":
    """Raises DataError where there is no such episode."""
    from posttrain.traces.reading import read_episode

    found = read_episode(connection, episode)
    if found is None:
        raise DataError(f"there is no episode {episode} (any more); `posttrain traces list` has the numbers")
    return found


def recorded_settings(run: "Run", params: Path | None) -> tuple["WorldParams", "AgentParams"]:
    """Settings of the recorded run, or of a file that the user names."""
    from pydantic import ValidationError

    from posttrain.config.params import load_params
    from posttrain.rollout.params import AgentParams
    from posttrain.worlds.catalog import world_params

    if params is not None:
        knobs = load_params(params)
        return knobs.world, knobs.agent
    try:
        return world_params(run.settings["world"]), AgentParams.model_validate(run.settings["agent"])
    except (KeyError, ValidationError) as error:
        raise ConfigurationError(
            f"the run had other knobs than this code knows ({str(error).splitlines()[0]}): "
            "play by today's with --params params.yaml"
        ) from error


def _schemas(world: Any) -> Mapping[str, Mapping[str, Any]]:
    """The tools of a recorded world; none, with a line on stderr, where it cannot be made any
    more."""
    from posttrain.worlds.catalog import make_domain, world_params

    try:
        return {name: tool.schema() for name, tool in make_domain(world_params(world)).tools.items()}
    except (StageError, ValueError, LookupError, TypeError) as error:
        print(f"a run's tools are exported by name only: {str(error).splitlines()[0]}", file=sys.stderr)
        return {}


def _hint(connection: sqlite3.Connection, wanted: EpisodeFilter) -> None:
    """On stderr, where a tool's name was called by no episode at all."""
    if wanted.tool is not None and (similar := similar_tool(connection, wanted.tool)) is not None:
        print(
            f"no episode called {wanted.tool!r}" + (f"; did you mean {similar!r}?" if similar else ""), file=sys.stderr
        )


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
