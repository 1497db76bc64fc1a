"""Text of traces for a terminal: a table, and one episode as a conversation."""

from collections.abc import Iterator, Mapping, Sequence

from posttrain.runtime.control_chars import escape_control_chars, visible_line
from posttrain.traces.values import StoredEpisode
from posttrain.types import Message, ToolRun, Trajectory, Turn

_INDENT = "  "
_MAX_GOAL = 500  # characters; the rest of a goal is cut


def conversation(episode: StoredEpisode) -> str:
    """An episode's figures, then every message in order; above a tool's result how long the call
    took and how it ended."""
    return escape_control_chars(
        "\n".join([*map(visible_line, _header(episode)), *_messages(episode.traced.trajectory)])
    )


def transcript(played: Trajectory, places: range | None = None) -> str:
    """The messages of an episode in their order, or those at some places; over a call's answer how
    long it took and how it ended."""
    return escape_control_chars("\n".join(_messages(played, places)))


def _header(episode: StoredEpisode) -> Iterator[str]:
    run, traced = episode.run, episode.traced
    task, trajectory = traced.task, traced.trajectory
    yield f"episode {episode.episode_id} of {run.stage}{f' {traced.part}' if traced.part else ''}, run {run.key}"
    template = f", template {task.template}" if task.template else ""
    yield f"  task       {task.task_id} {'/'.join(task.labels.values())}, split {task.split}{template}"
    failure = f": {trajectory.failure}" if trajectory.failure else ""
    yield f"  result     {_result(traced.is_success, is_failed=traced.is_failed)}, {trajectory.stop_reason}{failure}"
    if trajectory.outcome and trajectory.outcome.failure:
        yield f"  failure    {trajectory.outcome.failure}. {trajectory.outcome.feedback}".rstrip(". ")
    yield f"  goal       {task.goal[:_MAX_GOAL]}"
    if trajectory.reward is not None:
        yield f"  reward     {_number(trajectory.reward)}, advantage {_number(traced.advantage)}"
        yield f"  scores     {_scores(trajectory.scores)}"
    step = "" if traced.step is None else f"step {traced.step}, "
    tokens = f"{len(trajectory.token_ids)} tokens ({sum(trajectory.mask)} the agent's)"
    forks = f", the last of {trajectory.num_forks + 1} conversations" if trajectory.num_forks else ""
    yield f"  played     {step}policy version {trajectory.policy_version}, seed {trajectory.seed}, {tokens}{forks}"


def _messages(trajectory: Trajectory, places: range | None = None) -> Iterator[str]:
    runs = {run.call_id: run for turn in trajectory.turns for run in turn.tool_runs}
    turns = {turn.message_index: turn for turn in trajectory.turns}
    for index in places or range(len(trajectory.messages)):
        message = trajectory.messages[index]
        yield ""
        is_put_there = message.role == "assistant" and bool(turns) and index not in turns
        yield (
            "assistant: not the agent's own words"
            if is_put_there
            else visible_line(_title(message, turns.get(index), runs))
        )
        if message.reasoning_content:
            yield from (f"{_INDENT}({line})" for line in escape_control_chars(message.reasoning_content).splitlines())
        yield from (f"{_INDENT}{line}" for line in escape_control_chars(message.content).splitlines())
        for call in message.tool_calls:
            yield from (
                f"{_INDENT}{line}"
                for line in escape_control_chars(f"→ {call.name} {call.arguments}  [{call.id}]").splitlines()
            )


def _title(message: Message, turn: Turn | None, runs: Mapping[str, ToolRun]) -> str:
    if turn is not None:
        return (
            f"assistant: read {turn.num_read}, wrote {turn.num_written} tokens in {_seconds(turn.latency_s)}, "
            f"policy version {turn.policy_version}"
        )
    if message.tool_call_id is None:
        return message.role
    run = runs.get(message.tool_call_id)
    if run is None:
        return f"tool [{message.tool_call_id}] never answered"
    attempts = f" at attempt {run.num_attempts}" if run.num_attempts > 1 else ""
    return f"tool {run.name} [{run.call_id}]: {run.outcome}{attempts} in {_seconds(run.latency_s)}"


def _result(is_success: bool | None, *, is_failed: bool) -> str:
    if is_success is None:
        return "aborted" if is_failed else "-"
    return "success" if is_success and not is_failed else "failed"


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [list(map(visible_line, row)) for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
