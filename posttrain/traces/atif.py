"""Writes an episode as a trajectory of ATIF v1.8 (Agent Trajectory Interchange Format, Harbor's), a
line of JSON.

A turn is a step of the agent with its token ids, log-probabilities and the results of its calls.
Messages that the agent's program wrote in its name are copied context, which nobody trains on.
Reward and success are in `final_metrics.extra`, all else of ours under `extra.posttrain`.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.traces.otel import Schemas, exact_object, written_tokens
from posttrain.traces.reading import episode_columns, json_line, token_columns
from posttrain.traces.values import StoredEpisode
from posttrain.types import ToolCall
from posttrain.worlds.tools import json_object


def atif_line(episode: StoredEpisode, schemas: Schemas) -> str:
    """The episode as one object. A tool without a schema has its name only."""
    run, traced, played = episode.run, episode.traced, episode.traced.trajectory
    tools = [schemas.get(name, {"type": "function", "function": {"name": name}}) for name in traced.task.tools]
    columns, tokens = episode_columns(episode), token_columns(episode)
    # steps hold the tokens where the turns tell the mask, and each has a message
    places = [list(one) for one in written_tokens(played.turns)]
    is_told = played.mask and None not in tokens["logprobs"] and None not in [one.message_index for one in played.turns]
    written = [index for index, is_written in enumerate(played.mask) if is_written]
    is_told = is_told and written == [index for one in places for index in one]
    rest = {"token_ids_after": tokens["token_ids"][max(written, default=-1) + 1 :]} if is_told else tokens
    steps = _steps(episode, tokens if is_told else None)
    graded = {"reward": columns["reward"], "success": traced.is_success, "scores": columns["scores"]}
    about = {"name": traced.task.agent_name, "version": run.key, "model_name": f"{run.stage}@{run.key}"}
    return json_line(
        {
            "schema_version": "ATIF-v1.8",
            "session_id": run.uid,
            "trajectory_id": f"{run.uid}/{episode.episode_id}",
            "agent": {**about, "tool_definitions": tools},
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
            "final_metrics": {"total_steps": len(steps), "extra": graded},
            "extra": {"posttrain": {**columns, **rest}},
        }
    )


def _steps(episode: StoredEpisode, tokens: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    played, written = episode.traced.trajectory, set(episode.traced.written())
    turns = dict(zip((turn.message_index for turn in played.turns), written_tokens(played.turns), strict=True))
    steps: list[dict[str, Any]] = []
    for index, message in enumerate(played.messages):
        if message.role == "assistant":
            step: dict[str, Any] = {
                "source": "agent",
                "message": message.content,
                "tool_calls": [*map(_call, message.tool_calls)],
            }
            step |= {"reasoning_content": message.reasoning_content}
            step |= {"llm_call_count": 1} if index in written else {"is_copied_context": True}
            steps.append(step | ({"metrics": _metrics(turns[index], tokens)} if index in turns else {}))
        elif message.role != "tool":
            steps.append({"source": message.role, "message": message.content})
        else:
            if not steps or steps[-1]["source"] != "agent":  # a result that answers no turn
                steps.append({"source": "system", "message": ""})
            is_of_call = message.tool_call_id in [one["tool_call_id"] for one in steps[-1].get("tool_calls", ())]
            key: Any = {"source_call_id": message.tool_call_id}
            result = {**(key if is_of_call else {"extra": key}), "content": message.content}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
    return steps


def _call(call: ToolCall) -> dict[str, Any]:
    """Arguments have to be an object; the text that the agent wrote stands beside it where it is
    another."""
    found = exact_object(call.arguments)
    own = {"extra": {"posttrain.arguments": call.arguments}} if found is None else {}
    arguments = (json_object(call.arguments) or {}) if found is None else found
    return {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments, **own}


def _metrics(written: range, tokens: Mapping[str, Any] | None) -> dict[str, Any]:
    counts = {"prompt_tokens": written.start, "completion_tokens": len(written)}
    if tokens is None:
        return counts
    ids, own = tokens["token_ids"], slice(written.start, written.stop)
    told = {"completion_token_ids": ids[own], "logprobs": tokens["logprobs"][own]}
    return {**counts, "prompt_token_ids": ids[: written.start], **told}
