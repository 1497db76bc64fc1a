import asyncio
import contextlib
import gzip
import re
import traceback

import pytest
from aiohttp import web

from posttrain.rollout import openai_policy
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.runtime.endpoint_limits import ChatParameters, account_of
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.types import StopReason
from tests.limits import limits_of
from tests.rollout.lock_world import LockDomain, lock_task
from tests.rollout.openai_endpoint import Endpoint, answer_of

LIMITS = limits_of(4, 8, 40)


def opens_the_lock(_, body):
    if body["messages"][-1]["role"] == "tool":
        return answer_of("done")
    return answer_of(calls=[("try_code", '{"code":"123"}')], finish="tool_calls")


@pytest.fixture
def endpoint(monkeypatch):
    started = []

    def start(script):
        started.append(Endpoint(script))
        monkeypatch.setenv("OPENAI_BASE_URL", started[-1].base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "planted-key")
        monkeypatch.setattr(openai_policy, "NUM_RETRIES", 2)
        monkeypatch.setattr(openai_policy, "TIMEOUT_S", 0.3)
        return started[-1]

    yield start
    for one in started:
        one.stop()


def play(count=1, max_aborted_frac=0.9, **settings):
    policy = OpenAiPolicy("big", temperature=0.0, max_new_tokens=50, **settings)
    limits = LIMITS.model_copy(update={"max_aborted_frac": max_aborted_frac})
    return run_episodes(
        policy,
        [lock_task(f"t{index}") for index in range(count)],
        domain=LockDomain(),
        limits=limits,
        seeds=list(range(count)),
    )


def test_an_endpoint_plays_with_the_tools_of_the_task(endpoint):
    server = endpoint(opens_the_lock)
    [trajectory] = play()
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (trajectory.messages[3].content, trajectory.stop_reason) == ('{"open":true,"tries":1}', StopReason.DONE)
    assert (trajectory.token_ids, trajectory.logprobs) == ((), ())
    first, second = server.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["try_code", "jam"]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("big", 0.0, 50)
    assert second["messages"][2]["tool_calls"][0]["id"] == second["messages"][3]["tool_call_id"] == "call_1"
    assert set(server.keys) == {"Bearer planted-key"}


@pytest.mark.parametrize("arguments", ["", None])
def test_a_call_without_arguments_is_recorded_and_goes_back_with_the_empty_object(endpoint, arguments):
    def tries_nothing(_, body):
        if body["messages"][-1]["role"] == "tool":
            return answer_of("done")
        return answer_of(calls=[("try_code", arguments)], finish="tool_calls")

    server = endpoint(tries_nothing)
    [trajectory] = play()
    assert trajectory.messages[2].tool_calls[0].arguments == "{}"
    assert "missing argument 'code'" in trajectory.messages[3].content
    assert server.bodies[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_thought_in_the_text_is_one_and_goes_back_where_it_stood(endpoint):
    def thinks(_, body):
        if body["messages"][-1]["role"] == "tool":
            return answer_of("<think>open</think>done")
        return answer_of(" <think> try </think>\n", calls=[("try_code", '{"code":"123"}')], finish="tool_calls")

    server = endpoint(thinks)
    [trajectory] = play()
    said = [(one.reasoning_content, one.content) for one in trajectory.messages if one.role == "assistant"]
    assert said == [("try", ""), ("open", "done")]
    assert server.bodies[1]["messages"][2]["content"] == "<think>try</think>"
    assert "reasoning_content" not in server.bodies[1]["messages"][2]


def test_a_thought_in_a_field_of_its_own_goes_back_in_it(endpoint):
    def thinks(_, body):
        if body["messages"][-1]["role"] == "tool":
            return answer_of("done")
        answer = answer_of("", calls=[("try_code", '{"code":"123"}')], finish="tool_calls")
        answer["choices"][0]["message"]["reasoning"] = "\ntry\n"
        return answer

    server = endpoint(thinks)
    [trajectory] = play()
    assert [one.reasoning_content for one in trajectory.messages if one.role == "assistant"] == ["try", None]
    assert (server.bodies[1]["messages"][2]["reasoning"], server.bodies[1]["messages"][2]["content"]) == ("try", "")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_endpoint_that_is_busy_or_broken_for_a_while_is_asked_again(endpoint, status):
    server = endpoint(lambda number, body: status if number <= 2 else opens_the_lock(number, body))
    [trajectory] = play()
    assert trajectory.stop_reason == StopReason.DONE
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    "answer", [500, 429, None, {"choices": []}, answer_of("x", finish="content_filter"), "no object at all"]
)
def test_an_endpoint_that_never_makes_sense_loses_the_episode_with_the_reason(endpoint, answer):
    endpoint(lambda *_: answer)
    with pytest.raises(Interrupted, match=r"1 of 1 episodes were aborted.*engine_lost: the endpoint"):
        play(max_aborted_frac=0.0)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_is_a_wrong_configuration_and_not_asked_again(endpoint, status):
    server = endpoint(lambda *_: status)
    with pytest.raises(ConfigurationError, match=f"answers {status} for big"):
        play()
    assert len(server.bodies) == 1


def error_of(status, message, **settings):
    return web.json_response({"error": {"message": message, "code": None}}, status=status, **settings)


@pytest.mark.parametrize(("status", "end"), [(400, ConfigurationError), (401, ConfigurationError), (500, Interrupted)])
def test_an_error_that_quotes_the_key_is_quoted_without_it_and_in_short(endpoint, monkeypatch, status, end):
    monkeypatch.setenv("POSTTRAIN_OPENAI_CONCURRENT", "1")
    endpoint(lambda *_: error_of(status, "no planted-key here, " + "x" * 100_000, headers={"retry-after-ms": "1"}))
    with pytest.raises(end) as raised:
        play(max_aborted_frac=0.0)
    printed = "".join(traceback.format_exception(raised.value))
    assert "no [key removed: OPENAI_API_KEY] here" in printed
    assert "planted-key" not in printed
    assert re.search(r"\[\d+ of 1000\d\d characters cut\]", printed)
    assert len(str(raised.value)) < 1500


@pytest.mark.parametrize(
    ("status", "complaint"), [(200, "the answer has more than 16 MiB"), (401, "answers 401 for big: Error code: 401")]
)
def test_no_answer_is_read_beyond_its_limit(endpoint, monkeypatch, status, complaint):
    """The endpoint would give 2 GB."""
    monkeypatch.setattr(openai_policy, "TIMEOUT_S", 30.0)
    num_sent = []

    class Endless(web.StreamResponse):
        async def prepare(self, request):
            writer = await super().prepare(request)
            with contextlib.suppress(ConnectionError):
                for _ in range(2000):
                    await self.write(b"x" * 1_000_000)
                    num_sent.append(1)
            return writer

    endpoint(lambda *_: Endless(status=status))
    with pytest.raises((ConfigurationError, Interrupted), match=complaint):
        play(max_aborted_frac=0.0)
    assert len(num_sent) < 100


def test_an_answer_that_is_compressed_unasked_is_not_unpacked(endpoint):
    bomb = gzip.compress(b"x" * 50_000_000)
    endpoint(lambda *_: web.Response(body=bomb, headers={"content-encoding": "gzip"}))
    with pytest.raises(Interrupted, match=r"the answer is compressed \('gzip'\)"):
        play(max_aborted_frac=0.0)


def test_what_an_endpoint_writes_is_recorded_without_keys_and_within_a_limit(endpoint):
    server = endpoint(lambda *_: answer_of("planted-key " + "x" * 2_000_000))
    [trajectory] = play()
    content = trajectory.messages[-1].content
    assert content.startswith("[key removed: OPENAI_API_KEY] xxx")
    assert content.endswith("x… [1000012 of 2000012 characters cut]")
    assert len(server.bodies) == 1


def test_an_answer_cut_at_its_limit_ends_the_episode_as_token_limit(endpoint):
    endpoint(lambda *_: answer_of("and so on and so", finish="length"))
    assert play()[0].stop_reason == StopReason.TOKEN_LIMIT


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "type": "invalid_request_error", "message": "too long"},
        {"code": 400, "type": "exceed_context_size_error", "message": "request (9000 tokens) exceeds"},
        {"code": 400, "type": "BadRequestError", "message": "This model's maximum context length is 512 tokens."},
    ],
    ids=["openai", "llama.cpp", "vllm"],
)
def test_a_conversation_that_does_not_fit_the_model_ends_as_token_limit(endpoint, error):
    endpoint(lambda *_: web.json_response({"error": error}, status=400))
    [trajectory] = play()
    assert (trajectory.stop_reason, trajectory.failure) == (StopReason.TOKEN_LIMIT, "")


def test_what_is_spent_is_counted_and_ends_at_the_limit(endpoint):
    endpoint(opens_the_lock)
    account = account_of(
        "POSTTRAIN_OPENAI",
        {"POSTTRAIN_OPENAI_PRICES": "1,10", "POSTTRAIN_OPENAI_MAX_COST": "0.005", "POSTTRAIN_OPENAI_CONCURRENT": "1"},
    )
    with pytest.raises(Interrupted, match=r"has cost 0\.01 and POSTTRAIN_OPENAI_MAX_COST is 0\.005"):
        play(count=4, account=account)
    assert account.cost == pytest.approx(3 * (1000 * 1 + 100 * 10) / 1e6)  # the third request passes the limit


def test_requests_keep_the_distance_that_the_account_allows():
    waited = []
    account = account_of("POSTTRAIN_OPENAI", {"POSTTRAIN_OPENAI_RPM": "6000"})

    async def ask_for_three():
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(3):
            await account.wait()
            waited.append(loop.time() - started)

    asyncio.run(ask_for_three())
    # counted from the start: a busy machine wakes one late, and the next comes on time
    assert all(seconds > 0.01 * index - 1e-3 for index, seconds in enumerate(waited))


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"POSTTRAIN_OPENAI_RPM": "many"}, "could not convert"),
        ({"POSTTRAIN_OPENAI_CONCURRENT": "0"}, "must be above 0"),
        ({"POSTTRAIN_OPENAI_MAX_COST": "3"}, "POSTTRAIN_OPENAI_PRICES is not"),
        ({"POSTTRAIN_OPENAI_MAX_COST": "nan", "POSTTRAIN_OPENAI_PRICES": "1,1"}, "amounts of money"),
        ({"POSTTRAIN_OPENAI_PRICES": "1,-1"}, "amounts of money"),
    ],
)
def test_a_wrong_variable_is_named(environment, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        account_of("POSTTRAIN_OPENAI", environment)


def test_without_a_key_nothing_is_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY is not set and big is asked for"):
        OpenAiPolicy("big", temperature=0.0, max_new_tokens=5)


def refuses(status, *names, message="no {}"):
    """An endpoint that refuses the first of these parameters that a request has."""

    def script(number, body):
        found = next((name for name in names if name in body), None)
        if found is None:
            return opens_the_lock(number, body)
        return web.json_response({"error": {"message": message.format(found), "param": None}}, status=status)

    return script


REFUSALS = [
    (400, {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. "
                     "Use 'max_completion_tokens' instead.", "param": "max_tokens"}}),
    (400, {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model.",
                     "param": "temperature"}}),
    (422, {"message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "not permitted"}]}}),
]  # fmt: skip


def test_parameters_that_the_endpoint_refuses_are_renamed_or_dropped_once_and_said(endpoint, tmp_path, capsys):
    left = list(REFUSALS)

    def script(number, body):
        if left:
            status, said = left.pop(0)
            return web.json_response(said, status=status)
        return opens_the_lock(number, body)

    server = endpoint(script)
    file = tmp_path / "refused.json"
    [trajectory] = play(parameters=ChatParameters(file))
    assert trajectory.stop_reason == StopReason.DONE
    sent = [{name for name in body if name not in ("model", "messages", "tools")} for body in server.bodies]
    assert sent[3:] == [{"max_completion_tokens"}] * 2
    assert server.bodies[-1]["max_completion_tokens"] == 50
    said = capsys.readouterr().err
    assert said.count("the endpoint refuses") == 3
    assert "temperature, which is not sent from now on, so its own default is measured" in said
    known = ChatParameters(file)
    assert known.changed == {
        "max_tokens": "sent as max_completion_tokens",
        "temperature": "not sent",
        "seed": "not sent",
    }
    [trajectory] = play(parameters=known)
    assert (trajectory.stop_reason, len(server.bodies)) == (StopReason.DONE, 7)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "names", "complaint"),
    [
        (400, ("messages",), "answers 400 for big: Error code: 400 - no messages"),
        (422, ("model",), "answers 422 for big: Error code: 422 - no model"),
        (400, ("max_tokens", "max_completion_tokens"), "answers 400 for big: Error code: 400 - no max_completion"),
        (402, ("model",), "answers 402 for big"),
    ],
)
def test_a_refusal_that_no_fallback_mends_is_a_wrong_configuration_in_the_endpoints_words(
    endpoint, status, names, complaint
):
    server = endpoint(refuses(status, *names))
    with pytest.raises(ConfigurationError, match=complaint):
        play()
    assert len(server.bodies) == len(names)


def test_a_parameter_that_a_refusal_names_in_passing_is_not_dropped(endpoint):
    endpoint(lambda *_: error_of(400, "the content names seedlings and my.temperature"))
    with pytest.raises(ConfigurationError, match="seedlings"):
        play(parameters=(parameters := ChatParameters()))
    assert parameters.changed == {}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirection_takes_the_key_and_the_conversation_to_another_host(endpoint, status):
    other = Endpoint(opens_the_lock)
    try:
        endpoint(lambda *_: web.Response(status=status, headers={"location": f"{other.base_url}/chat/completions"}))
        with pytest.raises(ConfigurationError, match=rf"redirects to {other.base_url}.*OPENAI_BASE_URL"):
            play()
    finally:
        other.stop()
    assert other.bodies == []


def test_a_redirection_to_the_same_host_is_followed(endpoint):
    """`/v1/chat/completions` with a slash at its end, as proxies do it; the same path once."""
    server = endpoint(
        lambda number, body: (
            web.Response(status=307, headers={"location": "/v1/chat/completions"})
            if number == 1
            else opens_the_lock(number, body)
        )
    )
    [trajectory] = play()
    assert (trajectory.stop_reason, len(server.bodies)) == (StopReason.DONE, 3)


@pytest.mark.parametrize("count", [-5, "many", float("nan"), 10**400])
def test_a_count_of_tokens_that_is_no_number_loses_the_episode_and_not_the_limit_of_costs(endpoint, count):
    answer = answer_of("done")
    answer["usage"]["prompt_tokens"] = count
    endpoint(lambda *_: answer)
    with pytest.raises(Interrupted, match="the endpoint's count of tokens is"):
        play(max_aborted_frac=0.0)
