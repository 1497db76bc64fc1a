"""Logs of agents become the conversations that they tell (OpenTelemetry's spans, ATIF, files of
SWE-agent and OpenHands); what they have besides is reported or refuses the record."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.data.importing.importer import Imported, import_trajectories
from posttrain.data.schemas import untrained_messages
from posttrain.types import Outcome, StopReason
from tests.data.imported_samples import SAMPLES

Record = dict[str, Any]
OTHER_TOOLS = Path(__file__).parent / "other_tools"


@pytest.fixture
def read(tmp_path: Path):
    def imported(*records: object) -> Imported:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return import_trajectories(path)

    return imported


def sample(name: str) -> Record:
    return copy.deepcopy(SAMPLES[name][1])


def spans_of(record: Record) -> list[Record]:
    return record["resourceSpans"][0]["scopeSpans"][0]["spans"]


def said(imported: Imported) -> list[tuple[str, str, list[tuple[str, str]]]]:
    assert imported.bad == []
    [row] = imported.rows
    messages = row.trajectory.messages
    return [(one.role, one.content, [(call.name, call.arguments) for call in one.tool_calls]) for one in messages]


QUOTED = [
    ("system", "rules", []),
    ("user", "Tencent?", []),
    ("assistant", "", [("quote", '{"code":"00700.HK"}')]),
    ("tool", "380.20", []),
    ("assistant", "380.20", []),
]


@pytest.mark.parametrize("tool", ["openllmetry", "openinference", "opentelemetry"])
def test_spans_that_other_tools_wrote_are_one_conversation_with_its_tools(tool):
    imported = import_trajectories(OTHER_TOOLS / f"{tool}.json")
    spaced = [(*one[:2], [(name, json.dumps(json.loads(text))) for name, text in one[2]]) for one in said(imported)]
    assert spaced == [(*one[:2], [(name, json.dumps(json.loads(text))) for name, text in one[2]]) for one in QUOTED]
    [tools] = imported.rows[0].tools
    assert (tools["function"]["name"], tools["function"]["description"]) == ("quote", "Price of a share.")


def test_a_trajectory_that_harbor_wrote_keeps_its_steps_and_says_what_was_not_read():
    imported = import_trajectories(OTHER_TOOLS / "harbor.json")
    assert [role for role, _, _ in said(imported)] == ["system", "assistant", "tool", "assistant"]
    assert imported.rows[0].trajectory.messages[1].reasoning_content == "I look."
    assert imported.unread == {"agent: extra": 1, "notes": 1}


def test_spans_tell_reasoning_that_a_later_prompt_left_out_and_the_grade(read):
    imported = read(sample("otel"))
    assert said(imported) == QUOTED
    played = imported.rows[0].trajectory
    assert (played.messages[2].reasoning_content, played.outcome) == ("HK", Outcome(True, True, reward=1.0))


def test_spans_in_any_order_over_several_lines_are_one_record_by_their_trace(read):
    spans = spans_of(sample("otel"))
    lines = [{"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]} for one in reversed(spans)]
    assert said(read(*lines)) == QUOTED
    others = [{**one, "traceId": "other"} for one in spans]
    assert len(read(*lines, {"resourceSpans": [{"scopeSpans": [{"spans": others}]}]}).rows) == 2


def test_messages_of_the_agent_that_no_chat_wrote_are_not_trained_on_and_other_chats_are_reported(read):
    record = sample("otel")
    greeting = {"role": "assistant", "parts": [{"type": "text", "content": "Hi!"}]}
    for span in spans_of(record):
        for one in span["attributes"]:
            if one["key"] == "gen_ai.input.messages":
                one["value"]["stringValue"] = json.dumps([greeting, *json.loads(one["value"]["stringValue"])])
    aside = copy.deepcopy(spans_of(record)[1])
    read_by_it = next(one for one in aside["attributes"] if one["key"] == "gen_ai.input.messages")
    read_by_it["value"]["stringValue"] = json.dumps(
        [{"role": "user", "parts": [{"type": "text", "content": "A title?"}]}]
    )
    spans_of(record).append(aside)
    imported = read(record)
    assert untrained_messages(imported.rows[0].trajectory) == {1}
    assert imported.unread["spans: chats of other conversations"] == 1


def test_the_older_attributes_of_openllmetry_are_messages(read):
    told = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Tencent?",
        "gen_ai.prompt.1.role": "assistant",
        "gen_ai.prompt.1.tool_calls.0.id": "c1",
        "gen_ai.prompt.1.tool_calls.0.name": "quote",
        "gen_ai.prompt.1.tool_calls.0.arguments": '{"code":"00700.HK"}',
        "gen_ai.prompt.2.role": "tool",
        "gen_ai.prompt.2.content": "380.20",
        "gen_ai.prompt.2.tool_call_id": "c1",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "380.20",
        "gen_ai.completion.0.finish_reason": "stop",
    }
    assert said(read({"trace_id": "1", "attributes": told})) == QUOTED[1:]


def test_a_result_that_no_chat_read_comes_from_the_span_of_its_tool(read):
    record = sample("otel")
    del spans_of(record)[3]
    called = {"key": "gen_ai.tool.call.id", "value": {"stringValue": "c1"}}
    spans_of(record)[2]["attributes"].append(called)
    assert said(read(record)) == QUOTED[:4]


def test_a_trace_without_messages_goes_aside_and_says_why(read):
    record = sample("otel")
    for span in spans_of(record):
        span["attributes"] = [one for one in span["attributes"] if "messages" not in one["key"]]
    assert "none of its 4 spans is a chat that says what was read and written" in read(record).bad[0].reason


def test_atif_keeps_tokens_reward_and_thoughts_and_copied_steps_are_not_trained_on(read):
    imported = read(sample("atif"))
    [row] = imported.rows
    played = row.trajectory
    assert (untrained_messages(played), played.messages[4].reasoning_content) == ({2}, "HK")
    assert (list(played.token_ids), list(played.mask)) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 1])
    assert list(played.logprobs) == [0.0, 0.0, -0.5, 0.0, -1.0, -2.0]
    assert (played.outcome.reward, imported.unread) == (0.5, {})


def test_what_atif_says_of_other_trajectories_is_reported_and_steps_without_a_model_are_not_trained_on(read):
    record = sample("atif")
    record |= {"continued_trajectory_ref": "next.json", "subagent_trajectories": [{"trajectory_id": "a"}]}
    record["steps"][4] |= {"llm_call_count": 0, "extra": {"note": 1}, "metrics": None}
    record["steps"][4]["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_id": "a"}]
    imported = read(record)
    assert untrained_messages(imported.rows[0].trajectory) == {2, 4}
    told = ("continued_trajectory_ref", "subagent_trajectories", "steps: extra")
    assert set(imported.unread) == {*told, "observations: subagent_trajectory_ref"}


def test_atif_images_are_refused_and_results_of_no_call_are_a_users_words(read):
    record = sample("atif")
    record["steps"][3]["message"] = [{"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}]
    assert "only text can be trained on" in read(record).bad[0].reason
    record = sample("atif")
    del record["steps"][4]["tool_calls"]
    record["steps"][4] |= {"message": "ls", "observation": {"results": [{"content": "a.py"}]}}
    assert said(read(record))[4:6] == [("assistant", "ls", []), ("user", "a.py", [])]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("submitted", StopReason.STOP_TOOL),
        ("submitted (exit_cost)", StopReason.TOKEN_LIMIT),
        ("exit_format", StopReason.TURN_LIMIT),
        ("exit_environment_error", StopReason.TOOL_FAILED),
    ],
)
def test_swe_agents_history_is_read_and_its_exit_is_the_end(read, status, reason):
    record = sample("swe_agent")
    record["info"]["exit_status"] = status
    imported = read(record)
    assert said(imported) == [
        ("system", "rules", []),
        ("user", "fix it", []),
        ("assistant", "I look.", [("bash", '{"command": "ls"}')]),
        ("tool", "a.py", []),
        ("assistant", "Done.", [("submit", "{}")]),
    ]
    assert (imported.rows[0].trajectory.stop_reason, imported.rows[0].trajectory.task_id) == (reason, "repo-1")
    assert imported.unread == {"environment": 1, "info: submission": 1}


def test_a_swe_agent_log_without_history_has_its_responses_and_demonstrations_are_not_trained_on(read):
    record = sample("swe_agent")
    del record["history"]
    record["trajectory"][0]["query"] = [{"role": "user", "content": "fix it"}]
    assert said(read(record)) == [("user", "fix it", []), ("assistant", "I look.", []), ("user", "a.py", [])]
    record = sample("swe_agent")
    shown = [{"role": "assistant", "content": "So it goes.", "is_demo": True, "agent": "main"}]
    record["history"][1:1] = shown
    record["history"].append({"role": "user", "content": "review", "agent": "reviewer"})
    imported = read(record)
    assert untrained_messages(imported.rows[0].trajectory) == {1}
    assert imported.unread["history: messages of another agent"] == 1


def test_openhands_events_are_messages_and_the_report_is_the_outcome(read):
    record = sample("openhands")
    expected = [
        ("system", "rules", []),
        ("user", "fix it", []),
        ("assistant", "I look.", [("bash", '{"command": "ls"}')]),
        ("tool", "a.py", []),
        ("assistant", "", [("finish", '{"message": "fixed"}')]),
    ]
    imported = read(record)
    assert said(imported) == expected
    played = imported.rows[0].trajectory
    assert (played.outcome.success, played.stop_reason, played.task_id) == (True, StopReason.STOP_TOOL, "repo-1")
    assert imported.unread == {"events: agent_state_changed": 1, "test_result: git_patch": 1}
    events = record["history"]
    assert said(read(*events)) == expected
    assert said(read({**record, "history": [events[:2], events[2:4], events[4:]]})) == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("RuntimeError: the container died", StopReason.TOOL_FAILED),
        ("AgentStuckInLoopError: Agent got stuck in a loop", StopReason.TURN_LIMIT),
    ],
)
def test_an_error_of_openhands_is_the_infrastructures_unless_it_is_the_agents_own(read, error, reason):
    assert read({**sample("openhands"), "error": error}).rows[0].trajectory.stop_reason == reason


def test_openhands_calls_without_the_models_response_are_read_from_their_args_and_reported(read):
    record = sample("openhands")
    for event in record["history"]:
        event.pop("tool_call_metadata", None)
    imported = read(record)
    assert [calls for _, _, calls in said(imported) if calls] == [
        [("run", '{"command":"ls"}')],
        [("finish", '{"final_thought":"fixed"}')],
    ]
    assert imported.unread["events: calls without the model's response, read from their args"] == 1


def test_images_of_openhands_users_refuse_the_record(read):
    record = sample("openhands")
    record["history"][1]["args"]["image_urls"] = ["data:image/png;base64,AA=="]
    assert "images" in read(record).bad[0].reason
