import asyncio
import threading
import time

import pytest

from posttrain.rollout.agent_loops import ToolFailed, run_calls
from posttrain.types import ToolCall, ToolRun
from posttrain.worlds.tools import ToolError, is_error, tool_from
from tests.limits import limits_of


def run(functions, *calls, **limits):
    """Calls are (name, arguments); returns (content, run) of each in their order."""
    tools = {function.__name__: tool_from(function) for function in functions}
    made = [ToolCall(f"call_{index}", name, arguments) for index, (name, arguments) in enumerate(calls, 1)]
    return asyncio.run(run_calls(made, tools, limits_of(1, 1, 2, **limits)))


def test_calls_of_one_message_wait_beside_each_other_and_answer_in_their_order():
    met = threading.Barrier(3, timeout=5)

    def wait(number: int) -> int:
        """Returns when three are here: called one after another they would wait for ever."""
        met.wait()
        return number

    results = run([wait], *[("wait", f'{{"number":{number}}}') for number in (3, 1, 2)])
    assert results == [
        (str(number), ToolRun(f"call_{index}", "wait", "ok")) for index, number in enumerate((3, 1, 2), 1)
    ]


def test_a_coroutine_function_is_a_tool():
    async def fetch(code: str) -> dict[str, str]:
        """Fetch."""
        await asyncio.sleep(0)
        if code == "x":
            raise ToolError("no such code")
        return {"code": code}

    [(first, _), (second, second_run)] = run([fetch], ("fetch", '{"code":"a"}'), ("fetch", '{"code":"x"}'))
    assert (first, second) == ('{"code":"a"}', '{"error":"no such code"}')
    assert second_run == ToolRun("call_2", "fetch", "error")


def test_a_tool_that_hangs_is_tried_again_and_then_the_agent_reads_so():
    begun, release = [], threading.Event()

    def hang() -> str:
        """Hangs."""
        begun.append(1)
        release.wait()
        return "late"

    [(content, result)] = run([hang], ("hang", "{}"), tool_timeout_s=0.02, tool_retries=2)
    release.set()
    assert content == '{"error":"hang did not answer within 0.02 s"}'
    assert (result.outcome, result.num_attempts, len(begun)) == ("timeout", 3, 3)
    assert result.latency_s >= 0.06


def test_a_tool_that_raises_is_tried_again_and_one_good_try_is_enough():
    tries = []

    def flaky() -> str:
        """Fails once."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("reset")
        return "ok"

    assert run([flaky], ("flaky", "{}"), tool_retries=1) == [('"ok"', ToolRun("call_1", "flaky", "ok", 2))]


def test_a_tool_that_always_raises_is_broken_and_the_error_names_the_call_and_the_reason():
    def broken(code: str) -> str:
        """Broken."""
        raise ConnectionError("reset")

    with pytest.raises(ToolFailed, match=r'broken\({"code":"7"}\) raised ConnectionError: reset'):
        run([broken], ("broken", '{"code":"7"}'), tool_retries=1)


def test_a_result_that_is_no_json_is_the_tools_fault():
    def odd() -> object:
        """Returns what JSON has not."""
        return {1, 2}

    with pytest.raises(ToolFailed, match="odd"):
        run([odd], ("odd", "{}"))


def test_a_long_result_is_cut_and_says_so():
    def megabyte() -> str:
        """Returns a megabyte."""
        return "x" * 1_000_000

    [(content, _)] = run([megabyte], ("megabyte", "{}"), max_result_chars=50)
    assert content == '"' + "x" * 49 + "… [999952 of 1000002 characters cut]"


@pytest.mark.parametrize("is_instant", [True, False])
def test_a_long_error_is_cut_like_a_result(is_instant):
    def refuse() -> str:
        """Refuses at length."""
        raise ToolError("x" * 50_000_000)

    call = ToolCall("call_1", "refuse", "{}")
    tools = {"refuse": tool_from(refuse, is_instant=is_instant)}
    [(content, ended)] = asyncio.run(run_calls([call], tools, limits_of(1, 1, 2, max_result_chars=50)))
    assert content == '{"error":"' + "x" * 40 + "… [49999962 of 50000012 characters cut]"
    assert is_error(content)
    assert ended.outcome == "error"


def test_what_a_tool_says_of_a_key_is_read_and_recorded_without_it(monkeypatch):
    monkeypatch.setenv("BROKER_TOKEN", 'b"0f1e2d3c4b5a69788796')

    def quote() -> dict[str, str]:
        """Gives the key."""
        return {"key": 'b"0f1e2d3c4b5a69788796'}

    def refuse() -> str:
        """Quotes the key."""
        raise ToolError('no b"0f1e2d3c4b5a69788796 here')

    def crash() -> str:
        """Breaks with the key."""
        raise ConnectionError("x" * 1000 + 'b"0f1e2d3c4b5a69788796')

    [(read, _), (refused, _)] = run([quote, refuse], ("quote", "{}"), ("refuse", "{}"))
    assert read == '{"key":"[key removed: BROKER_TOKEN]"}'
    assert refused == '{"error":"no [key removed: BROKER_TOKEN] here"}'
    with pytest.raises(ToolFailed) as failed:
        run([crash], ("crash", "{}"))
    assert str(failed.value).endswith("x… [522 of 1022 characters cut]")


def test_waiting_calls_are_stopped_with_their_episode():
    stopped = []

    async def wait() -> str:
        """Waits for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(1)
        return ""

    async def give_up() -> None:
        call = ToolCall("call_1", "wait", "{}")
        async with asyncio.timeout(0.02):
            await run_calls([call, call], {"wait": tool_from(wait)}, limits_of(1, 1, 2))

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    assert stopped == [1, 1]


def test_instant_tools_run_in_order_in_the_calling_thread():
    seen = []

    def note(word: str) -> str:
        """Notes."""
        seen.append((word, threading.current_thread()))
        time.sleep(0.01 if word == "a" else 0)
        return word

    tools = {"note": tool_from(note, is_instant=True)}
    calls = [ToolCall(word, "note", f'{{"word":"{word}"}}') for word in "ab"]
    asyncio.run(run_calls(calls, tools, limits_of(1, 1, 2)))
    assert seen == [("a", threading.main_thread()), ("b", threading.main_thread())]
