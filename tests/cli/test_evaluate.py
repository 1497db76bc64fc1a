"""A model behind an endpoint plays any world, and what it did is told as an evaluation tells it."""

import json
import re

import pytest
from aiohttp import web

from tests.console import posttrain
from tests.rollout.openai_endpoint import Endpoint, answer_of

WORLD = "tests.world_check.planted:Boxes"
ARGUMENTS = ("evaluate", "big", "--endpoint", "--world", WORLD, "--num-tasks", 4, "--num-samples", 2)


def opens(_, body):
    """Opens the box as gold does; of every fourth box it tells another number, and of the first it
    also shouts."""
    last = body["messages"][-1]
    index = int(body["messages"][1]["content"].rpartition("-")[2])
    num_said = sum(message["role"] == "assistant" for message in body["messages"])
    if num_said == 0:
        return answer_of(calls=[("look", "{}"), *([("shout", '{"words":"o"}')] if index == 0 else [])])
    told = next(message for message in body["messages"] if message["role"] == "tool")
    number = json.loads(told["content"])["number"]
    if num_said == 1:
        return answer_of(calls=[("turn", json.dumps({"number": number}))])
    assert last["role"] == "tool"
    return answer_of(content=f"ANSWER: {number + (index % 4 == 3)}")


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    started = Endpoint(opens)
    monkeypatch.setenv("OPENAI_BASE_URL", started.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key")
    yield started
    started.stop()


def test_strict_success_intervals_pass_k_failures_and_scores_are_told(endpoint):
    ended = posttrain(*ARGUMENTS)
    assert ended.exit_code == 0, ended.stderr
    # of 4 tasks 3 succeed, one of these after a shout; Wilson's interval of 2 of 4 is 15.0 … 85.0
    assert re.search(r"strict success +50\.0 %  15\.0 … 85\.0 \(95%, Wilson\)", ended.stdout)
    assert re.search(r"\nsuccess +75\.0 %  30\.1 … 95\.4", ended.stdout)
    assert re.search(r"pass\^2 +75\.0 %  strictly 50\.0 %", ended.stdout)
    assert "failures: wrong_number 1\n" in ended.stdout
    assert "completion 0.750" in ended.stdout
    assert "opened 1.000" in ended.stdout
    assert "4 tasks of test, each greedily and 2 times at temperature 1; the default reward" in ended.stdout


def test_what_was_played_is_not_asked_for_again_and_more_tasks_are(endpoint):
    first = posttrain(*ARGUMENTS, "--json")
    num_asked = len(endpoint.bodies)
    assert num_asked == 4 * (1 + 2) * 3
    again = posttrain(*ARGUMENTS, "--json")
    assert len(endpoint.bodies) == num_asked
    summary = json.loads(again.stdout)
    assert summary["success_rate"] == json.loads(first.stdout)["success_rate"] == 0.75
    assert summary["by"] == {"kind": {"box": {name: summary[name] for name in summary["by"]["kind"]["box"]}}}
    more = posttrain(*ARGUMENTS[:6], 5, "--num-samples", 2, "--json")
    assert json.loads(more.stdout)["num_tasks"] == 5
    assert len(endpoint.bodies) == num_asked + 3 * 3
    assert posttrain(*ARGUMENTS, "--split", "dev").exit_code == 0
    assert len(endpoint.bodies) == 2 * num_asked + 3 * 3


def test_without_a_key_or_a_world_it_ends_with_78(endpoint, monkeypatch):
    assert posttrain("evaluate", "big", "--endpoint", "--world", "nowhere").exit_code == 78
    assert posttrain(*ARGUMENTS[:6], 0).exit_code == 78
    monkeypatch.delenv("OPENAI_API_KEY")
    ended = posttrain(*ARGUMENTS)
    assert ended.exit_code == 78
    assert "OPENAI_API_KEY is not set" in ended.stderr


def test_a_temperature_that_the_endpoint_refuses_stands_in_the_result_and_also_when_nothing_is_asked(endpoint):
    def script(number, body):
        if "temperature" in body:
            error = {"message": "Unsupported value: 'temperature' does not support 0", "param": "temperature"}
            return web.json_response({"error": error}, status=400)
        return opens(number, body)

    endpoint.script = script
    told = posttrain(*ARGUMENTS, "--json")
    assert json.loads(told.stdout)["endpoint_parameters"] == {"temperature": "not sent"}
    assert told.stderr.count("the endpoint refuses temperature") == 1
    num_asked = len(endpoint.bodies)
    assert "\nthe endpoint refused: temperature (not sent)\n" in posttrain(*ARGUMENTS).stdout
    assert len(endpoint.bodies) == num_asked
