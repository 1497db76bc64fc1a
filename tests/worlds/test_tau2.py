"""tau2's goals, simulated users and rule of success; tests/real/test_tau2.py plays its package."""

import asyncio
import json
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.types import Message, StopReason, ToolCall, Trajectory
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.goals import Action, Goal, Scenario, goal_text
from posttrain.worlds.tau2.grade import grade
from posttrain.worlds.tau2.params import OpenAiUserParams
from posttrain.worlds.tau2.users import GREETING, OpenAiUser, ScriptedUser, UserEndpoint, is_end
from tests.worlds.loopback import serving

SCENARIO = Scenario("", "You want to cancel AAA111.", "You are Ann.", "", "You are in a hurry.")
CANCEL = Action("cancel_reservation", {"reservation_id": "AAA111"})
GOAL = Goal((CANCEL,), ("1628",), ("DB", "COMMUNICATE"), SCENARIO)
WRITES = frozenset({"cancel_reservation", "send_certificate"})


def trajectory(*calls, words="It is 1,628 dollars.", stop=StopReason.DONE, result="{}"):
    messages = [Message("user", "hello")]
    for place, (name, arguments) in enumerate(calls):
        messages.append(Message("assistant", tool_calls=(ToolCall(str(place), name, json.dumps(arguments)),)))
        messages.append(Message("tool", result, tool_call_id=str(place)))
    return Trajectory("t", (*messages, Message("assistant", words)), stop)


def graded(played, goal=GOAL, is_right=True):
    return grade(played, goal, is_database_right=is_right, write_tools=WRITES)


def test_all_that_the_task_counts_must_be_right():
    made = ("cancel_reservation", {"reservation_id": "AAA111"})
    assert graded(trajectory(made)).strict_success
    assert graded(trajectory(made), is_right=False).failure == "wrong_database"
    assert graded(trajectory(made, words="Done.")).failure == "not_communicated"
    assert not graded(trajectory(made, stop=StopReason.TURN_LIMIT)).success
    assert graded(trajectory(made, words=" "), replace(GOAL, communicated=())).failure == "empty_message"
    acted = replace(GOAL, basis=("ACTION",), communicated=())
    assert graded(trajectory(), acted).failure == "missing_action"
    assert graded(trajectory(made), acted).success


def test_a_success_is_strict_without_other_writes_and_failing_calls():
    made = ("cancel_reservation", {"reservation_id": "AAA111"})
    assert graded(trajectory()).success
    assert not graded(trajectory()).strict_success
    read = ("get_user_details", {"user_id": "ann"})
    assert graded(trajectory(read, made)).strict_success
    for played in (
        trajectory(made, made),
        trajectory(made, ("send_certificate", {"user_id": "ann", "amount": 1})),
        trajectory(made, result='{"error":"no"}'),
    ):
        assert graded(played).success
        assert not graded(played).strict_success


def test_arguments_are_compared_as_the_action_says():
    assert not Action("book", {"a": 1}).is_made_by("cancel", {"a": 1})
    assert not Action("book", {"a": 1}).is_made_by("book", {"a": 1, "b": 2})
    assert Action("book", {"a": 1, "b": 2}, ("a",)).is_made_by("book", {"a": 1, "b": 3})
    assert Action("book", {"a": 1}, ()).is_made_by("book", {})


def test_what_is_not_graded_here_is_refused():
    told = {
        "id": "3",
        "user_scenario": {"instructions": "Ask."},
        "evaluation_criteria": {"actions": [], "reward_basis": ["DB", "NL_ASSERTION"]},
    }
    with pytest.raises(ConfigurationError, match="NL_ASSERTION"):
        goal_text(told)
    told["evaluation_criteria"]["reward_basis"] = ["DB"]
    assert json.loads(goal_text(told))["scenario"]["instructions"] == "Ask."
    with pytest.raises(ConfigurationError, match="initial_state"):
        goal_text({**told, "initial_state": {"initialization_actions": [1]}})


def test_the_scripted_user_tells_what_it_knows_agrees_and_stops():
    user = ScriptedUser(SCENARIO)

    def after(*said):
        return asyncio.run(user.speak(said))

    first = after()
    assert first == "You want to cancel AAA111.\nYou are Ann."
    assert after(first, "Why?") == "You are in a hurry."
    assert after(first, "Why?", "I am in a hurry.", "Shall I?") == "Yes, please go ahead."
    assert after(first, "Done.") == "###STOP###"
    assert after(first, "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.") == "###TRANSFER###"
    assert after(first, *["Really?", "Yes"] * 12, "Really?") == "###STOP###"
    assert is_end("Thanks! ###OUT-OF-SCOPE###")
    assert not is_end("STOP")


MODEL = OpenAiUserParams(type="openai", model="small", temperature=0.0, max_new_tokens=99)


def replies_of_user(answer, *conversations, **environment):
    """The user's endpoint and its words after each conversation; `answer` handles the requests."""
    with serving(Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])) as url:
        endpoint = UserEndpoint(MODEL, {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any", **environment})

        async def play():
            user = OpenAiUser(SCENARIO, endpoint)
            try:
                return [await user.speak(said) for said in conversations]
            finally:
                await user.close()

        return endpoint, asyncio.run(play())


def test_a_model_plays_the_user_and_reads_nothing_of_the_calls():
    heard = []

    async def answer(request: Request):
        heard.append((request.headers["authorization"], await request.json()))
        if len(heard) == 1:
            return JSONResponse({"error": "later"}, status_code=503)
        return JSONResponse({"choices": [{"message": {"content": "I am Ann."}}]})

    assert replies_of_user(answer, ("Cancel it.", "Who are you?"))[1] == ["I am Ann."]
    assert len(heard) == 2
    key, body = heard[1]
    assert key == "Bearer any"
    assert (body["model"], body["max_tokens"]) == ("small", 99)
    assert "You want to cancel AAA111." in body["messages"][0]["content"]
    assert [(message["role"], message["content"]) for message in body["messages"][1:]] == [
        ("user", GREETING),
        ("assistant", "Cancel it."),
        ("user", "Who are you?"),
    ]


@pytest.mark.parametrize(
    ("status", "body", "ends"),
    [
        (401, {}, ConfigurationError),
        (200, {"choices": []}, WorldFailed),
        (200, {"choices": [{"message": {"content": " "}}]}, WorldFailed),
    ],
)
def test_a_model_that_says_nothing_ends_the_episode_as_lost_and_one_that_refuses_ends_all(status, body, ends):
    async def answer(request: Request):
        return JSONResponse(body, status_code=status)

    with pytest.raises(ends):
        replies_of_user(answer, ())


def test_what_the_user_spends_ends_at_its_limit():
    async def answer(request: Request):
        usage = {"prompt_tokens": 1000, "completion_tokens": 100}  # 0.002 each time
        return JSONResponse({"choices": [{"message": {"content": "Hello."}}], "usage": usage})

    money = {"POSTTRAIN_USER_PRICES": "1,10", "POSTTRAIN_USER_MAX_COST": "0.003"}
    endpoint, _ = replies_of_user(answer, (), (), **money)
    assert endpoint.account.cost == pytest.approx(2 * (1000 + 100 * 10) / 1e6)
    with pytest.raises(Interrupted, match=r"POSTTRAIN_USER_MAX_COST is 0\.003"):
        replies_of_user(answer, (), (), (), **money)


def test_a_user_that_nobody_plays_is_refused():
    with pytest.raises(ConfigurationError, match="POSTTRAIN_USER_API_KEY"):
        UserEndpoint(MODEL, {})
