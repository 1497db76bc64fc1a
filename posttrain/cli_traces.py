"""`posttrain traces`: the episodes that the stages played, found, read as conversations, taken elsewhere and played again.

What only one command needs is imported in it: a filter over a million turns takes less time than loading the library that the stages compute with.
"""

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from posttrain.exits import ConfigurationError, DataError, exit_codes
from posttrain.traces.location import VARIABLE, max_store_bytes, trace_location
from posttrain.traces.query import EpisodeFilter, count_matching, lines, matching, parse_steps, runs, similar_tool
from posttrain.traces.show import conversation, episodes_table, runs_table
from posttrain.traces.store import open_to_read, open_to_write, typed_errors

if TYPE_CHECKING:
    from posttrain.params import AgentParams, WorldParams
    from posttrain.traces.values import Run, StoredEpisode

app = typer.Typer(no_args_is_help=True, help="Every episode of every stage: find, show, export, import, replay.")

Stage = Annotated[str | None, typer.Option(help="train_policy, evaluate@sft, or evaluate for all its items")]
RunNumber = Annotated[int | None, typer.Option("--run", help="a run's number, from `posttrain traces runs`")]
Part = Annotated[str | None, typer.Option(help="greedy or sampled (evaluate)")]
Failed = Annotated[bool, typer.Option("--failed", help="no success, or lost")]
ToolName = Annotated[str | None, typer.Option("--tool", help="this tool was called")]
Outcome = Annotated[Literal["ok", "error", "timeout", "failed"] | None, typer.Option("--tool-outcome", help="a call (of --tool) ended so")]
Steps = Annotated[str | None, typer.Option("--step", help="optimizer steps: 20, or 20..30")]
TaskId = Annotated[str | None, typer.Option("--task", help="a task's id, or its beginning")]
StopReason = Annotated[str | None, typer.Option(help="done, turn_limit, token_limit, …")]
EpisodeId = Annotated[int, typer.Argument(metavar="EPISODE", help="an episode's number, from `posttrain traces list`")]


@app.command("list")
def list_episodes(
    stage: Stage = None,
    run: RunNumber = None,
    part: Part = None,
    failed: Failed = False,
    tool: ToolName = None,
    tool_outcome: Outcome = None,
    step: Steps = None,
    task: TaskId = None,
    stop_reason: StopReason = None,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many")] = 20,
) -> None:
    """The last recorded episodes that meet all conditions, newest first, and how many do."""
    with exit_codes(), _store() as connection:
        wanted = EpisodeFilter(stage, run, part, failed, tool, tool_outcome, parse_steps(step), task, stop_reason)
        found = lines(connection, matching(connection, wanted, limit=limit))
        if found:
            print(episodes_table(found))
        print(f"{len(found)} of {count_matching(connection, wanted):,} episodes that match")
        _hint(connection, wanted)


@app.command("runs")
def list_runs() -> None:
    """Every start of a stage of which episodes are left, newest first."""
    with exit_codes(), _store() as connection:
        print(runs_table(runs(connection)))


@app.command()
def show(episode: EpisodeId) -> None:
    """One episode as the conversation that it was."""
    with exit_codes(), _store() as connection:
        print(conversation(_read(connection, episode)))


@app.command()
def export(
    stage: Stage = None,
    run: RunNumber = None,
    part: Part = None,
    failed: Failed = False,
    tool: ToolName = None,
    tool_outcome: Outcome = None,
    step: Steps = None,
    task: TaskId = None,
    stop_reason: StopReason = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the newest; all by default")] = None,
) -> None:
    """The episodes that meet all conditions as JSONL on stdout, newest first: OpenAI messages, tokens, mask, log-probs, turns, scores, reward."""
    from posttrain.traces.reading import export_line, read_episodes

    with exit_codes(), _store() as connection:
        wanted = EpisodeFilter(stage, run, part, failed, tool, tool_outcome, parse_steps(step), task, stop_reason)
        for found in read_episodes(connection, matching(connection, wanted, limit=limit)):
            typer.echo(export_line(found).encode())
        _hint(connection, wanted)


@app.command("import")
def import_(file: Annotated[Path, typer.Argument(help="the traces.db of another machine")]) -> None:
    """Add the runs of another machine's store; those that are here already are not added again."""
    from posttrain.traces.merge import import_store

    with exit_codes():
        path = _path()
        print(f"{import_store(path, file):,} episodes added to {path}")


@app.command()
def replay(
    episode: EpisodeId,
    model: Annotated[Path | None, typer.Option(help="a model's folder: feed the token ids back, not the messages")] = None,
    params: Annotated[Path | None, typer.Option(help="play by this params.yaml, not by what the run had")] = None,
) -> None:
    """Say again what the agent said, run world and tools again, and show every difference. Exits with 1 where there is one."""
    from posttrain.traces.replay import replay as play_again
    from posttrain.worlds.domains import make_domain

    with exit_codes():
        with _store() as connection:
            stored = _read(connection, episode)
        world, agent = _settings(stored.run, params)
        codec = None
        if model is not None:
            from posttrain.models.loading import load_codec

            codec = load_codec(model)
        differences = play_again(stored.traced, make_domain(world), agent, codec)
        for difference in differences:
            print(difference.text())
        print(f"episode {episode}: {len(differences)} differences; " + ("token ids were fed back" if codec else "messages were said again"))
        raise SystemExit(1 if differences else 0)


@app.command()
def prune(
    max_gb: Annotated[float | None, typer.Option(min=0, help="as large may the store be; by default its usual limit")] = None,
    keep_runs: Annotated[int | None, typer.Option(min=0, help="runs kept of each stage, whatever the size")] = None,
) -> None:
    """Delete old runs, oldest first, and give the space back."""
    from posttrain.traces.room import file_bytes, forget_runs, make_room, shrink

    with exit_codes():
        path = _path()
        open_to_read(path).close()  # says what to do where there is none; writing would make one
        with contextlib.closing(open_to_write(path)) as connection, typed_errors(path):
            before_bytes = file_bytes(connection)
            num_deleted = 0 if keep_runs is None else forget_runs(connection, num_kept=keep_runs)
            num_deleted += make_room(connection, max_bytes=max_store_bytes() if max_gb is None else int(max_gb * 1e9))
            shrink(connection)
            print(f"{num_deleted:,} episodes deleted, {before_bytes / 1e6:.1f} MB before, {file_bytes(connection) / 1e6:.1f} MB now")


def _path() -> Path:
    location = trace_location()
    if location is None:
        raise ConfigurationError(f"{VARIABLE} is off, so there is no store to look into; unset it, or set it to the store's path")
    return location.path


@contextlib.contextmanager
def _store() -> Iterator[sqlite3.Connection]:
    path = _path()
    with contextlib.closing(open_to_read(path)) as connection, typed_errors(path):
        yield connection


def _read(connection: sqlite3.Connection, episode: int) -> "StoredEpisode":
    from posttrain.traces.reading import read_episode

    found = read_episode(connection, episode)
    if found is None:
        raise DataError(f"there is no episode {episode} (any more); `posttrain traces list` has the numbers")
    return found


def _settings(run: "Run", params: Path | None) -> tuple["WorldParams", "AgentParams"]:
    """Of the run, or of a file that a person names."""
    from pydantic import ValidationError

    from posttrain.params import AgentParams, WorldParams, load_params

    if params is not None:
        knobs = load_params(params)
        return knobs.world, knobs.agent
    try:
        return WorldParams.model_validate(run.settings["world"]), AgentParams.model_validate(run.settings["agent"])
    except (KeyError, ValidationError) as error:
        raise ConfigurationError(
            f"the run had other knobs than this code knows ({str(error).splitlines()[0]}): play by today's with --params params.yaml"
        ) from error


def _hint(connection: sqlite3.Connection, wanted: EpisodeFilter) -> None:
    """On stderr, where a tool's name was called by no episode at all."""
    if wanted.tool is not None and (similar := similar_tool(connection, wanted.tool)) is not None:
        print(f"no episode called {wanted.tool!r}" + (f"; did you mean {similar!r}?" if similar else ""), file=sys.stderr)
