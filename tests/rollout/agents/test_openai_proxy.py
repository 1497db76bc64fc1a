"""Agents written with the plain `openai` client, over real HTTP, against a policy that recites."""

import asyncio
import json
import threading

import openai
import pytest

from posttrain.rollout.agents.openai_proxy import AgentTask
from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.episode import Reply
from posttrain.rollout.policy import ScriptedPolicy, TokenPolicy
from posttrain.types import Message, StopReason, ToolRun
from tests.limits import limits_of
from tests.rollout.agents.program_episodes import LINES, Stateless, check_same_as_tools, play, play_with, scripted
from tests.rollout.lock_world import (
    LIMITS,
    EndingDomain,
    ScriptedExpert,
    WordCodec,
    arguments_of,
    call,
    say,
)
from tests.rollout.scripted_engine import ScriptedEngine

LOST_ALLOWED = LIMITS.model_copy(update={"max_aborted_frac": 0.99})


def client_of(task: AgentTask, **options) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, **options)


async def react(task: AgentTask) -> None:
    """The textbook loop: ask, run the calls, ask again."""
    messages = list(task.messages)
    async with client_of(task) as client:
        while True:
            completion = await client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return
            for made in message.tool_calls:
                content = await task.acall_tool(made.function.name, made.function.arguments)
                messages.append({"role": "tool", "tool_call_id": made.id, "content": content})


def react_in_a_thread(task: AgentTask) -> None:
    """The same with the blocking client."""
    messages = list(task.messages)
    with openai.OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        while (
            message := client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
            .choices[0]
            .message
        ):
            messages.append(message.model_dump())
            if not message.tool_calls:
                return
            for made in message.tool_calls:
                content = task.call_tool(made.function.name, made.function.arguments)
                messages.append({"role": "tool", "tool_call_id": made.id, "content": content})


async def react_to_a_stream(task: AgentTask) -> None:
    """The same with answers in pieces."""
    messages = list(task.messages)
    async with client_of(task) as client:
        while True:
            async with client.chat.completions.stream(model="any", messages=messages, tools=task.tools) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            calls = [call.model_dump(exclude={"index"}) for call in message.tool_calls or []]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            if not calls:
                return
            for made in message.tool_calls:
                content = await task.acall_tool(made.function.name, made.function.arguments)
                messages.append({"role": "tool", "tool_call_id": made.id, "content": content})


@pytest.mark.parametrize("agent", [react, react_in_a_thread, react_to_a_stream])
def test_a_plain_agent_makes_the_record_that_the_loop_of_tools_makes(agent):
    check_same_as_tools(play(agent, *LINES))


def token_play(agent, *texts, limits=LIMITS):
    codec = WordCodec()
    engine = ScriptedEngine({5: [[*codec.ids(text), 0] for text in texts]})
    [trajectory] = play_with(TokenPolicy(engine, codec, temperature=1.0), agent, limits=limits)
    words = [codec.words[token] for token in trajectory.token_ids]
    marks = " ".join(("^" if flag else ".") * len(word) for word, flag in zip(words, trajectory.mask, strict=True))
    return trajectory, " ".join(words) + "\n" + marks


def test_a_program_that_rewrites_history_trains_on_its_last_conversation_only():
    async def summarise(task):
        client = client_of(task)
        first = await client.chat.completions.create(model="any", messages=task.messages, tools=task.tools)
        messages = [
            {"role": "user", "content": "so far:"},
            {"role": "assistant", "content": first.choices[0].message.content + " etc"},
        ]
        await client.chat.completions.create(model="any", messages=[*messages, {"role": "user", "content": "go on"}])

    trajectory, drawn = token_play(summarise, "one", "two")
    assert (
        drawn
        == "so far: agent: one etc <stop> user: go on agent: two <stop>\n.. .... ...... ... ... ...... ..... .. .. "
        "...... ^^^ ^^^^^^"
    )
    assert trajectory.num_forks == 1


def test_no_other_process_speaks_for_an_episode():
    async def intrude(task):
        with pytest.raises(openai.AuthenticationError):
            await openai.AsyncOpenAI(base_url=task.base_url, api_key="guessed").chat.completions.create(
                model="any", messages=task.messages
            )
        elsewhere = task.base_url.replace("/e/", "/e/x")
        with pytest.raises(openai.NotFoundError, match="no episode has this address"):
            await openai.AsyncOpenAI(base_url=elsewhere, api_key=task.api_key).chat.completions.create(
                model="any", messages=task.messages
            )
        with pytest.raises(openai.NotFoundError, match="is not served"):
            await client_of(task).embeddings.create(model="any", input="x")

    assert play(intrude).failure == ""


async def stubborn(task: AgentTask) -> None:
    """Takes no error for an answer."""
    messages = list(task.messages)
    client = client_of(task, max_retries=3)
    while True:
        try:
            completion = await client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
            messages += [completion.choices[0].message, {"role": "user", "content": "go on"}]
        except openai.APIError:
            await asyncio.sleep(0)


def test_an_agent_that_never_stops_ends_at_its_limit_of_turns():
    trajectory = play(stubborn, *[say("one")] * 4)
    assert trajectory.stop_reason == StopReason.TURN_LIMIT
    assert [message.role for message in trajectory.messages[2:]] == ["assistant", "user"] * 4


def test_an_agent_that_never_asks_ends_at_its_limit_of_time_in_a_thread_too():
    never = threading.Event()

    async def sleep(task):
        await asyncio.Event().wait()

    limits = LIMITS.model_copy(update={"max_seconds": 0.2})
    assert play(sleep, limits=limits).stop_reason == StopReason.TIME_LIMIT
    assert play(lambda task: never.wait(), limits=limits).stop_reason == StopReason.TIME_LIMIT
    never.set()


@pytest.mark.parametrize("agent", [react, react_in_a_thread])
def test_an_episode_that_takes_too_long_ends_in_the_middle_of_a_message_which_is_written_no_further(agent):
    class Hangs(Slow):
        async def reply(self, episode):
            return Reply(self.lines.pop(0)) if self.lines else await super().reply(episode)

    policy = Hangs(call("try_code", arguments_of("1")))
    limits = LIMITS.model_copy(
        update={"max_seconds": 2.0}
    )  # the agent comes to its second message before, also on busy cores
    [trajectory] = play_with(policy, agent, limits=limits)
    assert (trajectory.stop_reason, policy.given_up) == (StopReason.TIME_LIMIT, 1)
    assert [message.role for message in trajectory.messages[2:]] == ["assistant", "tool"]


def test_a_message_cut_at_its_limit_is_served_so_and_is_the_last():
    finishes = []

    async def note(task):
        messages = list(task.messages)
        while True:
            completion = await client_of(task).chat.completions.create(model=task.model, messages=messages)
            finishes.append(completion.choices[0].finish_reason)
            messages += [completion.choices[0].message, {"role": "user", "content": "go on"}]

    trajectory, _ = token_play(note, "a b c d e f g h i j", "never said")
    assert (trajectory.stop_reason, finishes) == (StopReason.TOKEN_LIMIT, ["length"])
    assert sum(trajectory.mask) == 8


def test_a_conversation_that_fills_the_context_ends_the_episode():
    trajectory, _ = token_play(stubborn, "one", "two", limits=limits_of(9, 8, 9))
    assert (trajectory.stop_reason, len(trajectory.token_ids), len(trajectory.turns)) == (StopReason.TOKEN_LIMIT, 6, 2)


@pytest.mark.parametrize("agent", [stubborn, react, react_in_a_thread])
def test_an_engine_that_is_gone_is_never_hidden_by_the_clients_retries(agent):
    asked = []

    class Gone(Stateless):
        async def reply(self, episode):
            asked.append(episode.episode_id)
            raise EngineFailed("no server answers")

    with pytest.raises(Exception, match="ended as engine_lost: no server answers"):
        play_with(Gone(), agent, limits=LIMITS)
    assert len(asked) == 2, "an episode is played twice, each time it asks once"


def mixed(first, second):
    """An agent of two minds: the first episode and its second try are the first's."""
    number = iter(range(99))
    owners = {}

    async def agent(task):
        owner = owners.setdefault(task.base_url, next(number))
        await (second if owner == 1 else first)(task)

    return agent


@pytest.mark.parametrize(
    ("mistake", "failure"),
    [
        (KeyError("x"), "KeyError: 'x' (in raising, line"),
        (SystemExit(3), "RuntimeError: the agent's program exited with 3"),
    ],
)
def test_a_program_that_raises_loses_its_episode_and_no_other(mistake, failure):
    async def raising(task):
        raise mistake

    policy = scripted(say("done"))
    lost, played = play_with(policy, mixed(raising, react), limits=LOST_ALLOWED, seeds=[1, 2])
    assert (lost.stop_reason, played.stop_reason) == (StopReason.AGENT_FAILED, StopReason.DONE)
    assert lost.failure.startswith(failure)


def test_a_coroutine_that_would_block_its_own_loop_is_told_so():
    async def block(task):
        task.call_tool("try_code", arguments_of("1"))

    with pytest.raises(Exception, match=r"await task\.acall_tool"):
        play(block)


class Slow(Stateless):
    """A policy that writes nothing; `given_up` counts the askers that went away."""

    def __init__(self, *lines):
        self.lines, self.given_up = list(lines), 0

    async def reply(self, episode):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise


def test_the_same_question_asked_again_has_the_same_answer():
    answers = []

    async def ask_twice(task):
        for _ in range(2):
            completion = await client_of(task).chat.completions.create(model=task.model, messages=task.messages)
            answers.append(completion.choices[0].message.content)

    trajectory = play(ask_twice, say("one"), say("two"))
    assert (answers, trajectory.num_forks, len(trajectory.turns)) == (["one", "one"], 0, 1)


def test_a_stop_tool_ends_the_episode_and_its_result_is_in_the_record():
    trajectory = play(react, call("try_code", arguments_of("1")), say("never said"), domain=EndingDomain())
    assert trajectory.stop_reason == StopReason.STOP_TOOL
    assert trajectory.messages[-1] == Message("tool", '{"open":false,"tries":1}', tool_call_id="call_1")
    assert trajectory.turns[0].tool_runs == (ToolRun("call_1", "try_code", "ok"),)


def test_many_episodes_share_one_server_and_each_hears_its_own_policy():
    addresses = set()

    async def note(task):
        addresses.add(task.base_url.partition("/e/")[0])
        await react(task)

    policy = ScriptedPolicy(
        lambda task, seed: ScriptedExpert([call("try_code", arguments_of(str(seed))), say(f"seed {seed}")])
    )
    played = play_with(policy, note, seeds=range(20))
    assert [one.messages[-1].content for one in played] == [f"seed {seed}" for seed in range(20)]
    assert json.loads(played[7].messages[3].content) == {"open": False, "tries": 1}
    assert len(addresses) == 1


def test_what_a_program_adds_is_read_and_recorded_without_keys_and_is_no_fork(monkeypatch):
    monkeypatch.setenv("PROGRAM_KEY", "prg-55aa66bb77cc88dd")

    async def agent(task):
        messages = [{"role": "system", "content": "log in with prg-55aa66bb77cc88dd"}, *task.messages]
        async with client_of(task) as client:
            for text in ("again, prg-55aa66bb77cc88dd", "x" * 2_000_000):
                completion = await client.chat.completions.create(model=task.model, messages=messages)
                messages += [completion.choices[0].message, {"role": "user", "content": text}]
            await client.chat.completions.create(model=task.model, messages=messages)

    played = play(agent, say("one"), say("two"), say("three"))
    texts = [message.content for message in played.messages]
    assert texts[0] == "log in with [key removed: PROGRAM_KEY]"
    assert texts[4] == "again, [key removed: PROGRAM_KEY]"
    assert texts[6].endswith("x… [1000000 of 2000000 characters cut]")
    assert (texts[3], texts[5], texts[7], played.num_forks) == ("one", "two", "three", 0)


def test_what_a_model_wrote_token_by_token_stands_as_it_was_sampled():
    class Sampled(Stateless):
        async def reply(self, episode):
            return Reply(Message("assistant", "Bearer abc1234567890"), token_ids=(1, 2), logprobs=(-1.0, -1.0))

    async def agent(task):
        messages = list(task.messages)
        async with client_of(task) as client:
            for _ in range(2):
                completion = await client.chat.completions.create(model=task.model, messages=messages)
                messages += [completion.choices[0].message, {"role": "user", "content": "go on"}]

    [played] = play_with(Sampled(), agent)
    assert [message.content for message in played.messages if message.role == "assistant"] == [
        "Bearer abc1234567890"
    ] * 2
    assert (played.num_forks, len(played.token_ids)) == (0, 4)
