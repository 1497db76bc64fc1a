"""The server of a world by OpenEnv's protocol: sessions, their end, and what is refused."""

import json
import time
from dataclasses import replace

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from posttrain.export.env_server import EnvServer
from posttrain.export.world_folder import load_exported, write_world_folder
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy

ADDRESS = "http://127.0.0.1:8200"


def exported(folder, name):
    write_world_folder(name, folder, "openenv")
    return load_exported(folder)


def client_of(world, *, max_sessions=4, session_timeout_s=30.0, is_open=False, base_url=ADDRESS):
    server = EnvServer(world, max_sessions=max_sessions, session_timeout_s=session_timeout_s, is_open=is_open)
    return TestClient(server.app(), base_url=base_url)


def session_of(client, path="/ws", **headers):
    return client.websocket_connect(path, headers={"Host": "127.0.0.1:8200", **headers})


def ask(session, kind, **data):
    session.send_json({"type": kind, "data": data})
    return session.receive_json()


def step(session, **action):
    answer = ask(session, "step", **action)
    assert answer["type"] == "observation", answer
    return answer["data"]


@pytest.fixture
def calculator(tmp_path):
    return exported(tmp_path, "calculator")


@pytest.mark.parametrize("name", ["calculator", "toy", "brokerage"])
def test_an_experts_messages_earn_in_a_session_what_they_earn_in_our_loop(tmp_path, name):
    world = exported(tmp_path, name)
    tasks = world.tasks("rl")[:12]
    policy = expert_policy(world.domain, is_flawless=False, reasoning_frac=0.0)
    played = run_episodes(policy, tasks, domain=world.domain, limits=world.limits, seeds=range(len(tasks)))
    with session_of(client_of(world)) as session:
        for index, (task, trajectory) in enumerate(zip(tasks, played, strict=True)):
            begun = ask(session, "reset", split="rl", index=index)["data"]["observation"]
            assert begun["task_id"] == task.task_id
            conversation = begun["messages"]
            for message in trajectory.messages:
                if message.role == "assistant":
                    seen = step(session, type="message", message=message.to_openai())
                    conversation += [message.to_openai(), *seen["observation"]["messages"]]
            assert (seen["done"], seen["reward"]) == (True, world.reward.score(trajectory, task).reward)
            assert [(one["role"], one["content"]) for one in conversation] == [
                (one.role, one.content) for one in trajectory.messages
            ]


def test_single_calls_and_words_are_an_episode_and_steps_before_the_end_earn_nothing(calculator):
    goal = json.loads(calculator.tasks("rl")[3].goal)
    with session_of(client_of(calculator)) as session:
        assert {tool["name"] for tool in step(session, type="list_tools")["observation"]["tools"]} == {
            "calculate",
            "say",
        }
        ask(session, "reset", split="rl", index=3, episode_id="mine")
        called = step(session, type="call_tool", tool_name="calculate", arguments={"expression": goal["expression"]})
        assert (json.loads(called["observation"]["result"]), called["reward"], called["done"]) == (
            {"value": goal["answer"]},
            0.0,
            False,
        )
        assert ask(session, "state") == {"type": "state", "data": {"episode_id": "mine", "step_count": 1}}
        said = step(session, type="call_tool", tool_name="say", arguments={"text": f"ANSWER: {goal['answer']}"})
        assert (said["reward"], said["done"], said["metadata"]["strict_success"]) == (1.0, True, True)
        refused = ask(session, "step", type="call_tool", tool_name="calculate", arguments={})
        assert refused["data"]["code"] == "EXECUTION_ERROR"


def test_an_episode_that_its_agent_leaves_unfinished_is_graded_as_it_is(calculator):
    with session_of(client_of(calculator)) as session:
        ask(session, "reset", seed=5)
        seen = step(session, type="stop", stop="token_limit")
        assert (seen["done"], seen["metadata"]["stop_reason"], seen["reward"]) == (True, "token_limit", 0.0)
        ask(session, "reset", seed=5)
        for _ in range(calculator.limits.max_turns):
            seen = step(session, type="call_tool", tool_name="calculate", arguments={"expression": "1+1"})
        assert (seen["done"], seen["metadata"]["stop_reason"]) == (True, "turn_limit")


def test_results_have_the_ids_that_the_client_gave_its_calls(calculator):
    calls = [
        {
            "id": f"x{index}",
            "type": "function",
            "function": {"name": "calculate", "arguments": f'{{"expression":"{index}+1"}}'},
        }
        for index in (5, 3)
    ]
    with session_of(client_of(calculator)) as session:
        ask(session, "reset", index=0)
        step(session, type="call_tool", tool_name="calculate", arguments={"expression": "2"})
        seen = step(session, type="message", message={"role": "assistant", "content": None, "tool_calls": calls})
    assert [(one["tool_call_id"], one["content"]) for one in seen["observation"]["messages"]] == [
        ("x5", '{"value":"6"}'),
        ("x3", '{"value":"4"}'),
    ]


def test_an_agent_that_writes_for_too_long_hears_of_the_end_and_its_reward_once(calculator):
    knobs = calculator.knobs.model_copy(update={"agent": calculator.limits.model_copy(update={"max_seconds": 0.2})})
    with session_of(client_of(replace(calculator, knobs=knobs))) as session:
        ask(session, "reset", index=0)
        step(session, type="call_tool", tool_name="calculate", arguments={"expression": "2"})
        time.sleep(0.6)
        seen = step(session, type="call_tool", tool_name="say", arguments={"text": "ANSWER: 2"})
        assert (seen["done"], seen["metadata"]["stop_reason"]) == (True, "time_limit")
        assert ask(session, "step", type="stop")["data"]["code"] == "EXECUTION_ERROR"


def test_a_full_server_says_so_and_has_room_again_when_a_silent_session_has_ended(calculator):
    client = client_of(calculator, max_sessions=1, session_timeout_s=0.5)
    with session_of(client) as first:
        ask(first, "reset")
        with session_of(client) as second:
            assert second.receive_json()["data"]["code"] == "CAPACITY_REACHED"
        with pytest.raises(WebSocketDisconnect):
            first.receive_json()  # it was silent
    with session_of(client) as third:
        assert ask(third, "reset", index=0)["type"] == "observation"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[]", "INVALID_JSON"),
        ('{"type": "jump"}', "UNKNOWN_TYPE"),
        ('{"type": "reset", "data": {"split": "train"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"index": 100000}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"index": "1"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": "1"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": [1]}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "message", "message": {"role": "user"}}}', "EXECUTION_ERROR"),
    ],
)
def test_what_cannot_be_served_is_an_error_with_its_code_and_the_session_goes_on(calculator, asked, code):
    with session_of(client_of(calculator)) as session:
        session.send_text(asked)
        assert session.receive_json()["data"]["code"] == code
        assert ask(session, "reset", index=0)["type"] == "observation"
        odd = ask(session, "step", type="message", message={"role": "user", "content": "x"})
        assert odd["data"]["code"] == "VALIDATION_ERROR"


def test_tasks_are_listed_by_split(calculator):
    client = client_of(calculator)
    assert {"name": "rl", "type": "train"} in client.get("/calculator/splits").json()
    assert client.post("/calculator/num_tasks", json={"split": "rl"}).json() == {"num_tasks": 128}
    [task] = client.post("/calculator/task_range", json={"split": "rl", "start": 3, "stop": 4}).json()["tasks"]
    assert task["id"] == calculator.tasks("rl")[3].task_id
    assert client.post("/calculator/task", json={"split": "rl", "index": 3}).json() == {"task": task}
    assert client.post("/calculator/task", json={"split": "rl", "index": 128}).status_code == 400
    assert client.get("/health").json() == {"status": "healthy"}


def test_the_splits_that_a_world_has_of_its_own_are_served(tmp_path):
    client = client_of(exported(tmp_path, "stocks"))
    kinds = {one["name"]: one["type"] for one in client.get("/stocks/splits").json()}
    assert (kinds["dev_paraphrase"], kinds["test_noisy"]) == ("validation", "test")
    [task] = client.post("/stocks/tasks", json={"split": "dev_paraphrase", "stop": 1}).json()["tasks"]
    assert task["index"] == 0
    assert client.post("/stocks/num_tasks", json={"split": "test_quiet"}).status_code == 400


def test_a_page_of_another_site_gets_no_session_unless_the_server_is_open(calculator):
    with pytest.raises(WebSocketDisconnect), session_of(client_of(calculator), Origin="http://elsewhere.example"):
        pass
    assert client_of(calculator, base_url="http://elsewhere.example").get("/health").status_code == 403
    assert client_of(calculator, is_open=True, base_url="http://elsewhere.example").get("/health").status_code == 200
