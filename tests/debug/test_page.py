"""The debugger's page by its server: each action is one POST, and nobody else's requests are
answered."""

import json
import threading
from dataclasses import replace

import pytest

from posttrain.data.edits import read_edits
from posttrain.debug.server import DebugServer
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain
from tests.debug import page_server
from tests.debug.page_server import HOSTILE, PLAYER, Guesser, ask, asked, opened, served
from tests.rollout.lock_world import LockWorld, arguments_of
from tests.waiting import wait_until

RIGHT = {"role": "assistant", "tool_calls": [{"id": "", "name": "try_code", "arguments": arguments_of("123")}]}


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as server:
        yield server


# -- who may ask


@pytest.mark.parametrize("name", ["state", "episodes", "open", "play", "nothing"])
def test_without_the_key_nothing_is_answered(server, name):
    for given in (None, "", "Bearer ", "Bearer guessed", server.key, f"Basic {server.key}"):
        status, _, text = asked(server, f"/{name}", Authorization=given)
        assert (status, b"the key is in the address" in text) == (403, True)


def test_another_host_and_pages_of_other_origins_are_refused(server):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "localhost:1"):
        assert asked(server, "/state", Host=host)[0] == 403
        assert asked(server, "/", method="GET", Host=host)[0] == 403
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{server.port}"):
        assert asked(server, "/state", Origin=origin)[0] == 403
    for host in ("127.0.0.1", "localhost"):
        assert asked(server, "/state", Origin=f"http://{host}:{server.port}")[0] == 200


def test_a_get_gives_the_page_alone_and_other_methods_nothing(server):
    status, headers, text = asked(server, "/", method="GET", Authorization=None)
    assert (status, headers["X-Frame-Options"], headers["Cache-Control"]) == (200, "DENY", "no-store")
    assert headers["Access-Control-Allow-Origin"] is None
    assert b"default-src 'none'" in text
    assert b"connect-src 'self'" in text
    assert server.key.encode() not in text
    assert [asked(server, "/open", method=method)[0] for method in ("GET", "PUT", "DELETE", "OPTIONS")] == [405] * 4
    assert asked(server, "/", method="POST")[0] == 405
    assert server.address.endswith(f":{server.port}/#{server.key}")


def test_what_is_no_json_object_or_too_long_is_refused(server):
    for body in (b"{", b"[]", b"\xff", b"[" * 100_000, b"NaN"):
        status, _, text = asked(server, "/state", body)
        assert (status, json.loads(text)) == (400, {"error": "a command takes a JSON object"})
    assert asked(server, "/state", b" " * (5 * 2**20))[0] == 413


def test_a_port_that_is_taken_is_a_wrong_argument(server):
    with pytest.raises(ConfigurationError, match=f"port {server.port} of 127.0.0.1 cannot be had"):
        DebugServer(server.page, "", server.port)


# -- episodes and groups


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"stage": "evaluate"}, [5]),
        ({"steps": "1"}, [2, 1]),
        ({"steps": "1..2", "outcome": "failed"}, [4, 3, 1]),
        ({"outcome": "success"}, [2]),
        ({"low": 0.2}, [5, 2]),
        ({"low": 0.2, "high": 0.6}, [5]),
        ({"failure": "still_shut", "high": 0.2}, [4, 3, 1]),
        ({"text": "WELL"}, [2]),
        ({"text": "no such words"}, []),
    ],
)
def test_episodes_are_found(server, given, expected):
    status, answer = ask(server, "episodes", **given)
    assert (status, [one["episode"] for one in answer["episodes"]]) == (200, expected)
    assert answer["stages"] == ["evaluate@sft", "train_policy"]
    assert answer["session"] is None


def test_a_groups_mean_reward_is_by_step_and_task_and_it_opens_side_by_side(server):
    _, answer = ask(server, "groups")
    assert (answer["runs"], answer["run"]) == ([1], 1)
    assert [(one["step"], one["task_id"], one["reward"], one["episodes"]) for one in answer["groups"]] == [
        (1, "a", 0.5, [1, 2]),
        (2, "b", 0.1, [3, 4]),
    ]
    session = opened(server, 1, others=[2])
    assert [(one["episode"], one["result"], one["differs"]) for one in session["nodes"]] == [
        (1, "failed (still_shut)", None),
        (2, "success", 1),
    ]
    _, answer = ask(server, "compare", nodes=[0, 1])
    assert [one["differs"] for one in answer["compared"]] == [None, 1]
    assert answer["compared"][1]["turns"][0][0]["text"] == "well"
    assert answer["compared"][1]["turns"][0][1]["role"] == "tool"


def test_episodes_that_are_not_there_or_of_other_tasks_do_not_open(server):
    for given, expected in (
        ({"episode": 99}, "there is no episode 99"),
        ({"episode": 1, "others": [3]}, "of several tasks"),
        ({"episode": "x"}, "episode: Input should be a valid integer"),
        ({"episode": 1, "at": 9}, "the turns 1 to 3"),
        ({}, "Missing required argument"),
    ):
        status, answer = ask(server, "open", **given)
        assert (status, answer["session"]) == (400, None)
        assert expected in answer["error"]
    for name in ("play", "go", "save", "__init__", "state/x"):
        status, _, text = asked(server, f"/{name}")
        assert status == 404, text


# -- one session


def test_the_state_has_what_was_read_and_written_and_what_it_earned(server):
    session = opened(server, 1, at=2)
    assert session["about"]["stage"] == "train_policy"
    assert [one["text"] for one in session["turns"]] == [
        'try_code({"code":"1"})',
        'try_code({"code":"2"})',
        "done",
    ]
    assert session["turns"][0]["results"] == [{"text": '{"open":false,"tries":1}', "outcome": "ok"}]
    assert [one["role"] for one in session["read"]] == ["tool", "assistant"]
    assert (session["advantage"], session["tokens"], session["offered"]) == (0.1, None, ["try_code", "jam"])
    assert session["draft"]["results"] == {"call_1": '{"open":false,"tries":1}'}
    assert session["warnings"][0] == "2 turns of branch 0 are dropped"


def test_every_action_is_a_method_of_the_session(server, tmp_path, monkeypatch):
    monkeypatch.setattr(LockWorld, "describe", lambda self: f"{self.num_tries} tries", raising=False)
    opened(server)
    assert ask(server, "go", at=2)[1]["session"]["at"] == 2
    assert ask(server, "break", condition="tool try_code code=1")[1]["session"]["at"] == 1
    assert ask(server, "break", condition="error")[1]["said"] == "no turn of this branch does"
    ask(server, "go", at=2)
    assert ask(server, "world")[1]["world"] == "1 tries"
    assert ask(server, "mode", mode="live", anyway=True)[1]["session"]["anyway"]
    assert ask(server, "mode", mode="pin")[1]["session"]["mode"] == "pin"
    assert ask(server, "suggest", num=2)[1]["session"]["turns"][0]["value"] == 0.0
    session = ask(server, "message", message=RIGHT)[1]["session"]
    assert session["pending"]["calls"] == [["try_code", arguments_of("123")]]
    assert ask(server, "undo")[1]["session"]["pending"] is None
    ask(server, "message", message=RIGHT)
    status, answer = ask(server, "play", num=4)
    assert (status, answer["said"]) == (200, "4 of 4 succeed")
    assert [(one["parent"], one["is_edited"]) for one in answer["session"]["nodes"][1:]] == [(0, True)] * 4
    assert [one["differs"] for one in answer["session"]["nodes"]] == [None, 2, 2, 2, 2]
    answer = ask(server, "save", num=4)[1]
    [edit] = read_edits(tmp_path / "edits.parquet")
    assert f"kept as {edit.edit_id}" in answer["said"]
    assert "0 of 4 → 4 of 4 (+100 points" in answer["said"]
    assert (edit.who, edit.code, edit.turn) == ("me", "abc", 2)
    session = ask(server, "play", only_one_turn=True)[1]["session"]
    assert (session["current"], len(session["turns"])) == (5, 3)
    assert session["turns"][2]["text"] == "(not written)"
    assert ask(server, "play")[1]["session"]["current"] == 6
    assert ask(server, "go", at=1, node=0)[1]["session"]["current"] == 0


def test_results_system_text_and_tools_are_edited(server):
    opened(server, 1, at=2)
    session = ask(server, "result", call_id="call_1", text='{"open":true}')[1]["session"]
    assert (session["read"][0]["text"], session["read"][0]["is_edited"]) == ('{"open":true}', True)
    assert ask(server, "play")[1]["session"]["nodes"][1]["result"] == "counterfactual"
    ask(server, "go", at=1, node=0)
    session = ask(server, "system", text="be brief")[1]["session"]
    assert (session["has_other_task"], session["draft"]["system"]) == (True, "be brief")
    assert ask(server, "offer", names=["try_code"])[1]["session"]["offered"] == ["try_code"]


def test_arguments_are_checked_as_one_types_and_change_nothing(server):
    opened(server)
    calls = [
        {"id": "", "name": "try_code", "arguments": text} for text in ("{", '{"number":1}', "{}", arguments_of("1"))
    ]
    status, answer = ask(server, "check", calls=[*calls, {"id": "", "name": "open", "arguments": "{}"}])
    assert status == 200
    starts = [
        "try_code: arguments are not valid JSON",
        "try_code: unknown argument",
        "try_code: missing",
        "",
        "there is",
    ]
    assert all(problem.startswith(start) for problem, start in zip(answer["problems"], starts, strict=True))
    assert answer["problems"][3] == ""
    assert answer["session"]["pending"] is None


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("go", {"at": 0}, "the turns 1 to 3"),
        ("go", {"at": 1, "node": 7}, "there is no branch 7"),
        ("go", {"at": "first"}, "at: Input should be a valid integer"),
        ("go", {"at": 1, "more": 1}, "Unexpected keyword"),
        ("break", {"condition": "somewhere"}, "break where: tool NAME"),
        ("break", {"condition": "logprob x"}, "cannot be fed back"),
        (
            "message",
            {"message": {**RIGHT, "tool_calls": [{"id": "", "name": "try_code", "arguments": "{"}]}},
            "not valid",
        ),
        ("message", {"message": "done"}, "message: Input should be"),
        ("offer", {"names": ["open"]}, "the world has no tool 'open'"),
        ("mode", {"mode": "fast"}, "mode: Input should be 'stub', 'pin' or 'live'"),
        ("compare", {"nodes": [0, 7]}, "there is no branch 7: there are 0 to 0"),
        ("compare", {"nodes": [0]}, "at least 2 items"),
        ("play", {"num": 0}, "greater than or equal to 1"),
        ("play", {"num": 10**9}, "less than or equal to 256"),
        ("save", {}, "there is no edited message to verify"),
        ("episodes", {"steps": "x"}, "it is one step"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(server, name, given, expected):
    before = opened(server)
    status, answer = ask(server, name, **given)
    assert status == 400
    assert expected in answer["error"]
    assert answer["session"] == before


# -- hostile transcripts


def test_a_hostile_transcript_is_bounded_and_shows_what_cannot_be_seen(server):
    _, _, text = asked(server, "/open", b'{"episode":4}')
    assert len(text) < 300_000
    session = opened(server, 4)
    [shown] = [one["text"] for one in session["read"] if one["role"] == "assistant"]
    assert shown.startswith("<script>document.title='pwned'</script>⟨U+001B⟩[2J⟨U+202E⟩xxx")
    assert shown.endswith("characters cut]")
    assert session["draft"]["message"]["content"] == ""  # half of it would be put in its place
    assert ask(server, "episodes", text="pwned")[1]["episodes"][0]["episode"] == 4
    status, answer = ask(server, "message", message={"role": "tool", "content": HOSTILE[:60]})
    assert (status, answer["session"]["pending"]["role"]) == (200, "assistant")
    assert "\x1b" not in answer["session"]["pending"]["text"]
    status, answer = ask(server, "message", message={"role": "assistant", "content": "\ud800"})
    assert (status, answer["session"]["pending"]["text"]) == (200, "⟨U+D800⟩")
    assert ask(server, "play")[0] in (200, 400)


def test_tokens_have_figures_and_whether_they_are_trained_on(server, tmp_path, monkeypatch):
    class Tokenizer:
        def decode(self, ids):
            return " ".join(f"t{one}\x1b" for one in ids)

    codec = type("Codec", (), {"tokenizer": Tokenizer()})()
    reader = replace(PLAYER, codec=codec, entropies=lambda ids: [0.5] * len(ids))
    monkeypatch.setattr(page_server, "PLAYER", reader)
    tokens = {"token_ids": (1, 2) * 3, "mask": (0, 1) * 3, "logprobs": (0.0, -0.5, 0.0, float("-inf"), 0.0, -0.5)}
    recorded = page_server.guessed(page_server.lock_task("c"))
    turns = tuple(replace(turn, num_read=1, num_written=1) for turn in recorded.trajectory.turns)
    sampled = replace(recorded, trajectory=replace(recorded.trajectory, turns=turns, **tokens))
    page_server.record(tmp_path / "traces.db", "sampled", [sampled], uid="3")
    session = opened(server, 6, at=2)
    assert session["tokens"] == {"read": "t1⟨U+001B⟩", "written": [["t2⟨U+001B⟩", None, 0.5, True]], "num": 1}
    assert [one["logprob"] for one in session["turns"]] == [-0.5, None, -0.5]


# -- one play at a time


def test_while_one_plays_everything_else_is_refused_and_the_play_ends(server):
    opened(server)
    Guesser.may_go_on.clear()
    try:
        status, _, text = asked(server, "/play", b'{"num": 2}')
        assert (status, json.loads(text)["playing"]["name"]) == (202, "play")
        for name in ("play", "go", "open", "undo", "check", "episodes"):
            status, _, text = asked(server, f"/{name}")
            assert (status, json.loads(text)["error"]) == (409, "play is still running: wait until it ends")
        assert asked(server, "/state")[0] == 202
    finally:
        Guesser.may_go_on.set()
    wait_until(lambda: asked(server, "/state")[0] == 200)
    assert len(ask(server, "state")[1]["session"]["nodes"]) == 3


def test_of_many_that_ask_at_once_one_plays(server):
    opened(server)
    Guesser.may_go_on.clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(asked(server, "/play")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Guesser.may_go_on.set()
    assert sorted(found) == [202] + [409] * 7
    wait_until(lambda: asked(server, "/state")[0] == 200)


def test_a_play_that_fails_by_our_mistake_ends(server, monkeypatch):
    opened(server)
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    server.page.session.player = replace(PLAYER, policy_at=lambda _: 1 / 0)
    status, answer = ask(server, "play")
    assert (status, answer["error"]) == (400, "it failed by a mistake of ours: the terminal has the traceback")
    assert ask(server, "go", at=2)[0] == 200


# -- the command


def test_an_episode_is_named_or_looked_for_on_the_page():
    assert "look with --ui" in posttrain("debug").stderr
