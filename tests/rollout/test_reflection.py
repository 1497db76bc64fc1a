"""Failed episodes that are tried again behind a reflection."""

from dataclasses import replace

import pytest

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import TokenPolicy, expert_policy
from posttrain.rollout.reflection import RetryDomain, distilled, reflect_and_retry
from posttrain.types import Message, Outcome, ScoredEpisode, StopReason, Task
from posttrain.worlds.toy.domain import ToyDomain
from tests.limits import limits_of
from tests.rollout.scripted_engine import ScriptedEngine
from tests.worlds_of import TOY_FLAWS, toy_params

LIMITS = limits_of(6, 100, 1500)
FLAWS = dict.fromkeys(TOY_FLAWS, 0.0) | {"wrong_shop": 1.0, "look_alike": 1.0}
DOMAIN = ToyDomain(toy_params(num_rl_tasks=24, flaw_rates=FLAWS))
PROMPT, REFLECTION = "That was not right. Say what went wrong.", Message("assistant", "I asked in the wrong shop.")


def played(*, is_flawless):
    policy = expert_policy(DOMAIN, is_flawless=is_flawless, reasoning_frac=0.0)
    tasks = DOMAIN.tasks("rl", 24)
    return tasks, run_episodes(policy, tasks, domain=DOMAIN, limits=LIMITS, seeds=[*range(24)])


def own(trajectory):
    return [message for message in trajectory.messages if message.role == "assistant"]


@pytest.fixture(scope="module")
def codec():
    shown = [one.messages for is_flawless in (False, True) for one in played(is_flawless=is_flawless)[1]]
    names = {name for task in DOMAIN.tasks("rl", 24) for name in task.tools}
    return ChatCodec(train_tokenizer(shown, tool_names=names, vocab_size=600, max_length=500))


def sampled(codec, tasks, messages_N, *, domain=DOMAIN, limits=LIMITS):
    """Episodes of a model that writes these messages, seeds 0, 1, …, and its engine."""
    engine = ScriptedEngine({seed: list(map(codec.encode_assistant, own)) for seed, own in enumerate(messages_N)})
    policy = TokenPolicy(engine, codec, temperature=1.0)
    return run_episodes(policy, tasks, domain=domain, limits=limits, seeds=[*range(len(tasks))]), engine


@pytest.fixture(scope="module")
def failures(codec):
    """Tasks on which the flawed expert failed, its episodes, and the flawless one's, as sampled."""
    tasks, wrong = played(is_flawless=False)
    right = played(is_flawless=True)[1]
    kept = [place for place, one in enumerate(wrong) if not one.is_success]
    tasks = [tasks[place] for place in kept]
    found = [sampled(codec, tasks, [own(which[place]) for place in kept])[0] for which in (wrong, right)]
    assert len(tasks) >= 5
    return tasks, *found


def retried(codec, failures, *, reflection=REFLECTION, limits=LIMITS):
    """Reflections and retries, which the flawless expert plays, and the engines of both."""
    tasks, failed, right = failures
    engines = []

    def play(own_tasks):
        messages_N = [own(one) for one in right] if engines else [[reflection]] * len(own_tasks)
        found, engine = sampled(codec, own_tasks, messages_N, domain=RetryDomain(DOMAIN), limits=limits)
        engines.append(engine)
        return [ScoredEpisode(one) for one in found]

    found = reflect_and_retry(play, list(zip(tasks, failed, strict=True)), PROMPT)
    return *([one.trajectory for one in part] for part in found), engines


def without_ids(trajectory):
    """Calls are numbered through an episode: a retry begins behind those of the failed try."""
    messages = [
        replace(one, tool_call_id=None, tool_calls=tuple(replace(call, id="") for call in one.tool_calls))
        for one in trajectory.messages
    ]
    turns = [
        replace(one, tool_runs=tuple(replace(run, call_id="") for run in one.tool_runs)) for one in trajectory.turns
    ]
    return replace(trajectory, messages=tuple(messages), turns=tuple(turns))


def test_a_retry_becomes_the_episode_that_a_play_without_failure_and_reflection_would_have_been(codec, failures):
    _, retries, _ = retried(codec, failures)
    assert list(map(without_ids, retries)) == list(map(without_ids, failures[2]))
    assert all(one.is_strict_success for one in retries)


def test_the_agent_reads_the_failed_try_the_prompt_its_reflection_and_the_question_again(codec, failures):
    tasks, failed, _ = failures
    reflections, _, (of_reflections, of_retries) = retried(codec, failures)
    for task, before, reflected in zip(tasks, failed, reflections, strict=True):
        assert reflected.messages == (*before.messages, Message("user", PROMPT), REFLECTION)
        assert (reflected.stop_reason, reflected.is_success) == (StopReason.WORLD_OVER, False)
        assert reflected.task_id == task.task_id
        assert codec.decode([one for one, is_own in zip(reflected.token_ids, reflected.mask, strict=True) if is_own])
        assert sum(reflected.mask) == len(codec.encode_assistant(REFLECTION))
    # what the engine was asked first for each retry: the tokens of all that stands before it
    firsts = {request.seed: request.token_ids for request in reversed(of_retries.requests)}
    for seed, (task, reflected) in enumerate(zip(tasks, reflections, strict=True)):
        read = [*reflected.token_ids, *codec.encode_results([Message("user", task.messages[-1].content)])]
        assert firsts[seed] == read
    assert len(of_reflections.requests) == len(tasks)


def test_a_call_in_a_reflection_runs_no_tool_and_ends_it(codec, failures):
    offered = next(one for one in own(failures[1][0]) if one.tool_calls)
    reflections, retries, _ = retried(codec, failures, reflection=offered)
    assert {len(one.turns) for one in reflections} == {1}
    results = [one.messages[-1] for one in reflections]
    assert {result.role for result in results} == {"tool"}
    name = offered.tool_calls[0].name
    for task, result in zip(failures[0], results, strict=True):
        assert ("say in words" if name in task.tools else "no tool") in result.content
    assert list(map(without_ids, retries)) == list(map(without_ids, failures[2]))


def test_without_room_for_a_retry_it_ends_at_the_limit_of_tokens(codec, failures):
    longest = max(len(one.token_ids) for one in failures[1])
    limits = limits_of(6, 100, longest + 1)
    reflections, retries, _ = retried(codec, failures, limits=limits)
    assert StopReason.TOKEN_LIMIT in {one.stop_reason for one in reflections}
    assert {one.stop_reason for one in retries} == {StopReason.TOKEN_LIMIT}
    assert not any(one.is_success for one in retries)


class Door:
    """A world that says the number of the door, which differs from world to world, and answers
    once; its success is an agent whose first word is that number."""

    name, tools = "door", {}

    def __init__(self):
        self.worlds = []

    def tasks(self, split, count):
        return [Task("door", split, (Message("system", "Be brief."), Message("user", "Which?")), ())][:count]

    def open(self, task):
        self.worlds.append(DoorWorld(len(self.worlds)))
        return self.worlds[-1]


class DoorWorld:
    def __init__(self, number):
        self.number, self.is_closed, self.graded = number, False, None

    def tools(self):
        return {}

    async def opening(self):
        return [Message("user", f"door {self.number}")]

    async def user_reply(self, message):
        return "sure?" if message.content != "yes" else None

    def is_over(self):
        return False

    def grade(self, trajectory):
        self.graded = trajectory
        first = next(message for message in trajectory.messages if message.role == "assistant")
        return Outcome(first.content == str(self.number), False)

    async def close(self):
        self.is_closed = True


class Says:
    """Says the number of the last door of which it was told, then yes; at its first try another."""

    async def reply(self, episode):
        last = episode.messages[-1].content
        if last == "sure?":
            return Reply(Message("assistant", "yes"))
        if last == PROMPT:
            return Reply(REFLECTION)
        is_first = not any(message.role == "assistant" for message in episode.messages)
        return Reply(Message("assistant", "9" if is_first else last.split()[-1]))

    def release(self, episode): ...


def test_a_world_that_speaks_first_and_a_user_that_answers_begin_anew():
    domain = Door()
    [task] = domain.tasks("rl", 1)

    def play(tasks):
        found = run_episodes(Says(), tasks, domain=RetryDomain(domain), limits=LIMITS, seeds=[1] * len(tasks))
        return [ScoredEpisode(one) for one in found]

    [failed] = [one.trajectory for one in play([task])]
    assert not failed.is_success
    [reflected], [retry] = reflect_and_retry(play, [(task, failed)], PROMPT)
    assert reflected.trajectory.messages == (*failed.messages, Message("user", PROMPT), REFLECTION)
    texts = ["Which?", "door 2", "2", "sure?", "yes"]
    graded = domain.worlds[2].graded
    assert [message.content for message in graded.messages[1:]] == texts
    assert [turn.message_index for turn in graded.turns] == [3, 5]
    assert retry.is_success
    assert all(world.is_closed for world in domain.worlds)
    # door 2 is not the door that the failed try began at: nothing else would have been read there
    assert retry.trajectory.messages[: len(reflected.trajectory.messages)] == reflected.trajectory.messages


def test_of_an_agent_without_a_word_nothing_is_taken_out(failures):
    tasks, failed, right = failures
    silent = replace(right[0], turns=())
    assert distilled(silent, tasks[0], failed[0]) is silent
