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
TASKS = DOMAIN.tasks("rl", 24)
PROMPT, REFLECTION = "That was not right. Say what went wrong.", Message("assistant", "I asked in the wrong shop.")


def played(*, is_flawless):
    policy = expert_policy(DOMAIN, is_flawless=is_flawless, reasoning_frac=0.0)
    return run_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=[*range(24)])


def own(trajectory):
    return [message for message in trajectory.messages if message.role == "assistant"]


@pytest.fixture(scope="module")
def codec():
    shown = [one.messages for is_flawless in (False, True) for one in played(is_flawless=is_flawless)]
    names = {name for task in TASKS for name in task.tools}
    return ChatCodec(train_tokenizer(shown, tool_names=names, vocab_size=600, max_length=500))


def sampled(codec, tasks, messages_N, limits=LIMITS):
    """Episodes of a model that writes these messages, seeds 0, 1, …, and its engine."""
    engine = ScriptedEngine({seed: list(map(codec.encode_assistant, own)) for seed, own in enumerate(messages_N)})
    policy = TokenPolicy(engine, codec, temperature=1.0)
    return run_episodes(policy, tasks, domain=RetryDomain(DOMAIN), limits=limits, seeds=[*range(len(tasks))]), engine


@pytest.fixture(scope="module")
def failures(codec):
    """Tasks on which the flawed expert failed, its episodes, and the flawless one's, as sampled."""
    both = [*zip(TASKS, played(is_flawless=False), played(is_flawless=True), strict=True)]
    tasks, *experts = zip(*(one for one in both if not one[1].is_success), strict=True)
    assert len(tasks) >= 5
    return tasks, *(sampled(codec, tasks, [own(one) for one in which])[0] for which in experts)


def retried(codec, failures, reflection=REFLECTION, limits=LIMITS):
    """Reflections and retries, which the flawless expert plays, and the engine of the latter."""
    tasks, failed, right = failures

    def play(own_tasks):
        nonlocal engine
        messages_N = [[reflection] if engine is None else own(one) for one in right]
        found, engine = sampled(codec, own_tasks, messages_N, limits)
        return [ScoredEpisode(one) for one in found]

    engine = None
    found = reflect_and_retry(play, list(zip(tasks, failed, strict=True)), PROMPT)
    return *([one.trajectory for one in part] for part in found), engine


def without_ids(trajectory):
    """Calls are numbered through an episode: a retry begins behind those of the failed try."""
    messages = [
        replace(one, tool_call_id=None, tool_calls=tuple(replace(call, id="") for call in one.tool_calls))
        for one in trajectory.messages
    ]
    runs = [tuple(replace(run, call_id="") for run in turn.tool_runs) for turn in trajectory.turns]
    turns = [replace(turn, tool_runs=of_turn) for turn, of_turn in zip(trajectory.turns, runs, strict=True)]
    return replace(trajectory, messages=tuple(messages), turns=tuple(turns))


@pytest.mark.parametrize("is_calling", [False, True])
def test_a_retry_becomes_the_episode_of_a_play_without_failure_and_reflection(codec, failures, is_calling):
    calling = next(one for one in own(failures[1][0]) if one.tool_calls)
    reflections, retries, _ = retried(codec, failures, calling if is_calling else REFLECTION)
    assert list(map(without_ids, retries)) == list(map(without_ids, failures[2]))
    assert all(one.is_strict_success for one in retries)
    # a call in a reflection is not run
    assert {(len(one.turns), one.turns[0].tool_runs) for one in reflections} == {(1, ())}
    assert (reflections[0].messages[-1].content == '{"error":"done"}') == is_calling


def test_the_agent_reads_the_failed_try_the_prompt_its_reflection_and_the_question_again(codec, failures):
    tasks, failed, _ = failures
    reflections, _, engine = retried(codec, failures)
    firsts = {request.seed: request.token_ids for request in reversed(engine.requests)}
    for seed, (task, before, reflected) in enumerate(zip(tasks, failed, reflections, strict=True)):
        assert reflected.messages == (*before.messages, Message("user", PROMPT), REFLECTION)
        assert (reflected.stop_reason, reflected.task_id) == (StopReason.DONE, task.task_id)
        assert sum(reflected.mask) == len(codec.encode_assistant(REFLECTION))
        question = codec.encode_results([Message("user", task.messages[-1].content)])
        assert firsts[seed] == [*reflected.token_ids, *question]


def test_without_room_for_a_retry_it_ends_at_the_limit_of_tokens(codec, failures):
    longest = max(len(one.token_ids) for one in failures[1])
    _, retries, _ = retried(codec, failures, limits=limits_of(6, 100, longest + 1))
    assert {one.stop_reason for one in retries} == {StopReason.TOKEN_LIMIT}
    assert not any(one.is_success for one in retries)


class Door:
    """A world that speaks first: it names its door, which is another one each time; that said
    first, and then yes, is the success."""

    name, tools = "door", {}

    def __init__(self):
        self.worlds, self.tasks = [], None

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
        return None if message.content == "yes" else "sure?"

    def grade(self, trajectory):
        self.graded = trajectory
        return Outcome(own(trajectory)[0].content == str(self.number), False)

    async def close(self):
        self.is_closed = True


class Says:
    """Says 9 at first, later the door that it was told last."""

    async def reply(self, episode):
        last = episode.messages[-1].content
        answers = {"sure?": "yes", "door 0": "9", PROMPT: REFLECTION.content}
        return Reply(Message("assistant", answers.get(last, last.split()[-1])))

    def release(self, episode): ...


def test_a_world_that_speaks_first_and_a_user_that_answers_begin_anew():
    domain, task = Door(), Task("door", "rl", (Message("system", "Be brief."), Message("user", "Which?")), ())

    def play(tasks):
        played = run_episodes(Says(), tasks, domain=RetryDomain(domain), limits=LIMITS, seeds=[1])
        return [ScoredEpisode(one) for one in played]

    [failed] = [one.trajectory for one in play([task])]
    [reflected], [retry] = reflect_and_retry(play, [(task, failed)], PROMPT)
    assert reflected.trajectory.messages == (*failed.messages, Message("user", PROMPT), REFLECTION)
    graded = domain.worlds[2].graded
    assert [message.content for message in graded.messages[1:]] == ["Which?", "door 2", "2", "sure?", "yes"]
    assert [turn.message_index for turn in graded.turns] == [3, 5]
    assert (failed.is_success, retry.is_success) == (False, True)
    assert all(world.is_closed for world in domain.worlds)
    # the failed try had read of another door: the retry, which has not, stays as it was played
    assert retry.trajectory.messages[: len(reflected.trajectory.messages)] == reflected.trajectory.messages
    assert reflect_and_retry(play, [], PROMPT) == ([], [])
    silent = replace(retry.trajectory, turns=())
    assert distilled(silent, task, failed) is silent
