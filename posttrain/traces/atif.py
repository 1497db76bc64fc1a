"""Writes an episode as a trajectory of ATIF v1.8 (Agent Trajectory Interchange Format, Harbor's), a
line of JSON.

A turn is a step of the agent with its token ids, log-probabilities and the results of its calls.
Messages that the agent's program wrote in its name are copied context, which nobody trains on.
Reward and success are in `final_metrics.extra`, all else of ours under `extra.posttrain`.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.traces.otel import Schemas, arguments_of, written_tokens
from posttrain.traces.reading import episode_columns, json_line, token_columns
from posttrain.traces.values import StoredEpisode
from posttrain.types import ToolCall, Trajectory


def atif_line(episode: StoredEpisode, schemas: Schemas) -> str:
    """The episode as one object. A tool without a schema has its name only."""
    run, traced, played = episode.run, episode.traced, episode.traced.trajectory
    tools = [schemas.get(name, {"type": "function", "function": {"name": name}}) for name in traced.task.tools]
    columns, tokens = episode_columns(episode), token_columns(episode)
    # steps hold the tokens of turns whose message there is; whatever does not fit stays whole
    num_told = _num_told(played, tokens["logprobs"])
    rest = {"token_ids_after": tokens["token_ids"][num_told:]} if num_told else tokens
    model = f"{run.stage}@{run.key}"
    graded = {"reward": columns["reward"], "success": traced.is_success, "scores": columns["scores"] or None}
    totals = {
        "total_prompt_tokens": sum(told.start for told in written_tokens(played.turns)),
        "total_completion_tokens": sum(turn.num_written for turn in played.turns),
    }
    steps = _steps(episode, tokens if num_told else None)
    content = {
        "schema_version": "ATIF-v1.8",
        "session_id": run.uid,
        "trajectory_id": f"{run.uid}/{episode.episode_id}",
        "agent": {"name": traced.task.agent_name, "version": run.key, "model_name": model, "tool_definitions": tools},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {**(totals if played.turns else {}), "total_steps": len(steps), "extra": _given(graded)},
        "extra": {"posttrain": {**columns, **(rest if any(rest.values()) else {})}},
    }
    return json_line(content)


def _steps(episode: StoredEpisode, tokens: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    played = episode.traced.trajectory
    turns = dict(zip((turn.message_index for turn in played.turns), written_tokens(played.turns), strict=True))
    written = set(episode.traced.written())
    steps: list[dict[str, Any]] = []
    for index, message in enumerate(played.messages):
        if message.role == "assistant":
            said = {
                "reasoning_content": message.reasoning_content,
                "tool_calls": [*map(_call, message.tool_calls)] or None,
            }
            by = {"llm_call_count": 1} if index in written else {"is_copied_context": True}
            metrics = {"metrics": _metrics(turns[index], tokens)} if index in turns else {}
            steps.append({"source": "agent", "message": message.content, **_given(said), **by, **metrics})
        elif message.role != "tool":
            steps.append({"source": message.role, "message": message.content})
        else:
            if not steps or steps[-1]["source"] != "agent":  # a result that answers no turn
                steps.append({"source": "system", "message": ""})
            calls = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
            named = message.tool_call_id in calls
            answered = (
                {"source_call_id": message.tool_call_id} if named else {"extra": {"tool_call_id": message.tool_call_id}}
            )
            observation = steps[-1].setdefault("observation", {"results": []})
            observation["results"].append({**answered, "content": message.content})
    return steps


def _call(call: ToolCall) -> dict[str, Any]:
    told = arguments_of(call)
    arguments = told.pop("arguments")
    return {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": arguments,
        **({"extra": told} if told else {}),
    }


def _metrics(written: range, tokens: Mapping[str, Any] | None) -> dict[str, Any]:
    counts = {"prompt_tokens": written.start, "completion_tokens": len(written)}
    if tokens is None:
        return counts
    read, own = slice(0, written.start), slice(written.start, written.stop)
    ids = {"prompt_token_ids": tokens["token_ids"][read], "completion_token_ids": tokens["token_ids"][own]}
    return {**counts, **ids, "logprobs": tokens["logprobs"][own]}


def _num_told(played: Trajectory, logprobs: list[float | None]) -> int:
    """The number of tokens up to the last that a turn wrote; 0 where the turns do not tell the
    mask, or one has no message, or a log-probability is no number of JSON."""
    written = [index for index, is_written in enumerate(played.mask) if is_written]
    is_whole = None not in logprobs and all(turn.message_index is not None for turn in played.turns)
    fits = is_whole and written == [index for told in written_tokens(played.turns) for index in told]
    return max(written, default=-1) + 1 if fits else 0


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
