"""Exported episodes pass the models of the tools that read them: Harbor's of ATIF, and the message
classes of OpenTelemetry's own instrumentations."""

import subprocess
from pathlib import Path

import pytest

from tests.traces.test_export_formats import TRY_123, WellFormed, line, written

pytestmark = pytest.mark.needs_foreign
PYTHON = Path(__file__).resolve().parents[2] / "infra" / "foreign" / ".venv" / "bin" / "python"

ATIF = """
import sys
from harbor.models.trajectories import Trajectory
for line in sys.stdin:
    read = Trajectory.model_validate_json(line)
    told = [one for step in read.steps if step.metrics for one in step.metrics.completion_token_ids or []]
    print(read.schema_version, len(read.steps), len(told))
"""
OTEL = """
import json, sys
from opentelemetry.util.genai import types
parts = {"text": types.TextPart, "reasoning": types.ReasoningPart, "tool_call": types.ToolCallRequestPart}
parts["tool_call_response"] = types.ToolCallResponsePart
finished = {"stop", "length", "tool_call", "error", "content_filter"}
for line in sys.stdin:
    for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        found = {one["key"]: one["value"].get("stringValue") for one in span["attributes"]}
        for key, message in (("input", types.InputMessage), ("output", types.OutputMessage)):
            for one in json.loads(found.get(f"gen_ai.{key}.messages", "[]")):
                read = message(**{**one, "parts": [parts[part["type"]](**part) for part in one["parts"]]})
                assert read.role in {role.value for role in types.Role}, read
                assert key == "input" or read.finish_reason in finished, read
                assert all(isinstance(getattr(part, "content", ""), str) for part in read.parts), read
        [types.TextPart(**one) for one in json.loads(found.get("gen_ai.system_instructions", "[]"))]
        [types.FunctionToolDefinition(**one) for one in json.loads(found.get("gen_ai.tool.definitions", "[]"))]
    print("ok")
"""


@pytest.mark.parametrize(("written_as", "program"), [("atif", ATIF), ("otel", OTEL)])
def test_an_export_passes_the_models_of_those_who_read_it(written_as: str, program: str) -> None:
    draw = WellFormed(5)
    played, _ = written((TRY_123, True), ("done", True))
    lines = [line(written_as, one, at) for at, one in enumerate([played, *(draw.traced() for _ in range(100))])]
    text = "".join(f"{one}\n" for one in lines)
    ran = subprocess.run([PYTHON, "-c", program], input=text, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == {"atif": "ATIF-v1.8 4 6", "otel": "ok"}[written_as]
    assert len(ran.stdout.splitlines()) == len(lines)
