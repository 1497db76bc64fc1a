"""Environments behind a server of AgentGym's contract, over real HTTP."""

import asyncio
import json

import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import Interrupted
from posttrain.types import Message, StopReason, ToolCall, Trajectory
from posttrain.worlds.http_env.domain import HttpEnvDomain
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.scripts import ScriptedExpert, raw_call, say
from posttrain.worlds.text_env import Step, Unreadable, outcome_of, read_action
from tests.limits import limits_of
from tests.worlds.loopback import serving


class Guessing:
    """A server of a game: guess the number of the task, 0 to 9. `style` is whose shapes it
    answers in."""

    def __init__(self, style="textcraft"):
        self.style, self.targets, self.closed, self.steps, self.turned_away = style, {}, [], 0, 0
        self.id_field, self.task_field = ("env_idx", "session_id") if style == "webshop" else ("id", "data_idx")
        routes = [
            Route(f"/{name}", getattr(self, name), methods=["POST"]) for name in ("create", "reset", "step", "close")
        ]
        self.application = Starlette(routes=[*routes, Route("/observation", self.observation)])

    async def create(self, request: Request):
        if not self.turned_away:
            self.turned_away = 1
            return Response("busy", status_code=503)
        number = len(self.targets)
        self.targets[number] = None
        return JSONResponse(number if self.style == "webshop" else {"id": number, "observation": "unused"})

    async def reset(self, request: Request):
        body = await request.json()
        self.targets[body[self.id_field]] = body[self.task_field]
        if self.style == "webshop":
            return JSONResponse(["unused", None])
        return JSONResponse({"task_description": "Guess.", "observation": f"hint {'long ' * body.get('words', 0)}"})

    async def observation(self, request: Request):
        return JSONResponse(f"shop {self.targets[int(request.query_params[self.id_field])]}")

    async def step(self, request: Request):
        body = await request.json()
        self.steps += 1
        guess, target = body["action"], self.targets[body[self.id_field]]
        if guess == "break":
            return JSONResponse({"error": "no such environment"})
        if guess == "crash":
            return Response("no", status_code=500)
        if guess == "nonsense":
            return JSONResponse({"observation": "x", "reward": "1", "done": False})
        is_right, is_aborted = guess == str(target), guess == "give up"
        seen = {"state" if self.style == "webshop" else "observation": "right" if is_right else f"not {guess}"}
        return JSONResponse({**seen, "reward": 1.0 if is_right else 0.0, "done": is_right or is_aborted})

    async def close(self, request: Request):
        self.closed.append((await request.json())[self.id_field])
        return JSONResponse({"closed": True})


def params_of(url, **others):
    section = {
        "type": "http_env",
        "seed": 7,
        "num_sft_tasks": 3,
        "num_rl_tasks": 3,
        "num_dev_tasks": 2,
        "num_test_tasks": 2,
        "name": "guessing",
        "url": url,
        "id_field": "id",
        "task_field": "data_idx",
        "reward_field": "reward",
        "create": {},
        "reset": {},
        "timeout_s": 5.0,
        "tries": 3,
        "first_index": {"sft": 0, "rl": 3, "dev": 6, "test": 8},
        "instructions": "Guess a number.",
        "action_format": "react",
        "episode_reward": "sum",
        "success_reward": 1.0,
        "max_observation_chars": 200,
    }
    return HttpEnvParams.model_validate({**section, **others})


def guesses(*actions):
    def script():
        for action in actions:
            yield action if isinstance(action, Message) else say(f"Thought:\nhm\n\nAction:\n{action}")

    return ScriptedExpert(script())


def play(domain, tasks, make_script, **limits):
    policy = ScriptedPolicy(lambda task, seed: make_script(task))
    wide = limits_of(20, 8, 40, **limits)
    return run_episodes(policy, tasks, domain=domain, limits=wide, seeds=list(range(len(tasks))))


@pytest.mark.parametrize("style", ["textcraft", "webshop"])
def test_many_episodes_at_once_have_an_environment_each_and_give_it_back(style):
    server = Guessing(style)
    with serving(server.application) as url:
        domain = HttpEnvDomain(params_of(url, id_field=server.id_field, task_field=server.task_field))
        tasks = [task for split in ("sft", "rl", "dev", "test") for task in domain.tasks(split, 2)] * 5

        def counting(task):
            target = json.loads(task.goal)["index"]
            return guesses(*map(str, range(target + 1)))

        played = play(domain, tasks, counting)
    for task, one in zip(tasks, played, strict=True):
        target = json.loads(task.goal)["index"]
        assert one.stop_reason is StopReason.WORLD_OVER
        assert one.is_strict_success
        assert one.outcome.reward == 1.0
        assert one.outcome.turn_scores == (0.0,) * target + (1.0,)
        assert one.messages[1].content == (f"shop {target}" if style == "webshop" else "Guess.\nhint ")
    assert sorted(server.closed) == sorted(server.targets) == list(range(40))


def test_an_episode_that_the_environment_ends_below_the_threshold_is_a_failure():
    server = Guessing()
    with serving(server.application) as url:
        domain = HttpEnvDomain(params_of(url))
        (one,) = play(domain, domain.tasks("rl", 1), lambda task: guesses("1", "give up"))
    assert (one.is_success, one.outcome.failure, one.stop_reason) == (False, "low_reward", StopReason.WORLD_OVER)


def test_a_message_without_an_action_is_answered_and_not_sent():
    server = Guessing()
    with serving(server.application) as url:
        domain = HttpEnvDomain(params_of(url))
        task = domain.tasks("sft", 1)[0]
        (one,) = play(domain, [task], lambda task: guesses(say("zero?"), raw_call("guess", "{}"), "0"))
    assert server.steps == 1
    assert one.is_success
    assert not one.is_strict_success
    assert one.outcome.turn_scores == (0.0, 0.0, 1.0)
    assert "No action was taken" in one.messages[3].content


@pytest.mark.parametrize("action", ["break", "crash", "nonsense"])
def test_a_server_that_fails_loses_the_episode_and_no_step_is_sent_twice(action):
    server = Guessing()
    with serving(server.application) as url:
        domain = HttpEnvDomain(params_of(url))
        tasks = domain.tasks("sft", 2)
        _, one = play(domain, tasks, lambda task: guesses(action if task == tasks[1] else "0"), max_aborted_frac=0.9)
    assert one.stop_reason is StopReason.TOOL_FAILED
    assert one.outcome is None
    assert server.steps == 3  # the good one's, and one in each of the two tries of the other
    assert len(server.closed) == 3


def test_a_server_that_is_gone_loses_all_episodes():
    server = Guessing()
    with serving(server.application) as url:
        pass
    domain = HttpEnvDomain(params_of(url, tries=1))
    with pytest.raises(Interrupted, match="guessing"):
        play(domain, domain.tasks("sft", 1), lambda task: guesses("0"))


def test_a_long_observation_is_cut():
    server = Guessing()
    with serving(server.application) as url:
        domain = HttpEnvDomain(params_of(url, reset={"words": 1000}))
        (one,) = play(domain, domain.tasks("sft", 1), lambda task: guesses("0"))
    assert "characters cut" in one.messages[1].content
    assert len(one.messages[1].content) < 300


def test_splits_that_share_a_task_are_refused():
    with pytest.raises(ValidationError, match="the task 3 is in sft and in rl"):
        params_of("http://127.0.0.1:1", num_sft_tasks=4)


def test_the_action_is_what_stands_behind_the_last_mark():
    assert read_action("Thought:\nAction: is a word\n\nAction:\n go left ", "react") == "go left"
    assert read_action(" go left\n", "text") == "go left"
    for text in ("go left", "Action:  "):
        with pytest.raises(Unreadable):
            read_action(text, "react")


def test_rewards_make_the_verdict():
    messages = (Message("user", "go"), *(Message("assistant", "a") for _ in range(3)))
    done = Trajectory("t", messages, StopReason.WORLD_OVER)
    steps = [Step("", -1.0, False), None, Step("", 2.0, True)]
    rules = params_of("http://127.0.0.1:1")
    outcome = outcome_of(steps, done, rules)
    assert (outcome.success, outcome.strict_success, outcome.reward) == (True, False, 1.0)
    assert outcome.turn_scores == (0.0, 0.0, 1.0)
    last = params_of("http://127.0.0.1:1", episode_reward="last", success_reward=4.0)
    outcome = outcome_of(steps, done, last)
    assert (outcome.success, outcome.reward, outcome.scores["progress"]) == (False, 2.0, 0.5)
    assert not outcome_of([Step("", 5.0, False)], done, rules).success
    assert outcome_of([Step("", 0.0, True, True)], done, rules).success
    with_call = Trajectory("t", (Message("assistant", tool_calls=(ToolCall("1", "x", "{}"),)),), StopReason.DONE)
    assert outcome_of([], with_call, rules).turn_scores == (0.0,)


def test_an_environment_that_was_never_opened_can_be_closed():
    domain = HttpEnvDomain(params_of("http://127.0.0.1:1"))
    asyncio.run(domain.open(domain.tasks("sft", 1)[0]).close())
