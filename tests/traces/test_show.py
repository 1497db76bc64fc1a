"""Text of an episode as a conversation, to the letter."""

from dataclasses import replace

from posttrain.traces.show import conversation
from posttrain.traces.values import StoredEpisode, TracedEpisode
from posttrain.types import Message, Outcome, StopReason, ToolCall, ToolRun, Trajectory, Turn
from tests.rollout.lock_world import lock_task
from tests.traces.episodes import run_of

CONVERSATION = """\
episode 12 of train_policy, run abc
  task       t lock/red, split dev, template lock
  result     failed, tool_failed: jam({}) raised ZeroDivisionError: our bug
  failure    still_shut. Try another code
  goal       {"code":"123"}
  reward     0.350, advantage -1.250
  scores     completion 0.00, format 0.50
  played     step 20, policy version 20, seed 5, 13 tokens (7 the agent's)

system
  locks

user
  open

assistant: read 6, wrote 4 tokens in 1.50 s, policy version 20
  (market: HK)
  I try.
  → try_code {"code":"000"}  [call_1]
  → jam {}  [call_2]

tool try_code [call_1]: timeout at attempt 2 in 20.00 s
  {"error":"try_code did not answer"}

tool [call_2] never answered
  {"error":"tool_failed"}"""


def test_an_episode_reads_as_a_conversation():
    task = replace(lock_task(), goal='{"code":"123"}', labels={"kind": "lock", "colour": "red"})
    calls = (ToolCall("call_1", "try_code", '{"code":"000"}'), ToolCall("call_2", "jam", "{}"))
    played = Trajectory(
        task_id="t",
        messages=(
            *task.messages,
            Message("assistant", "I try.", "market: HK", calls),
            Message("tool", '{"error":"try_code did not answer"}', tool_call_id="call_1"),
            Message("tool", '{"error":"tool_failed"}', tool_call_id="call_2"),
        ),
        stop_reason=StopReason.TOOL_FAILED,
        seed=5,
        policy_version=20,
        token_ids=range(13),
        mask=[0] * 6 + [1] * 7,
        scores={"completion": 0.0, "format": 0.5},
        reward=0.35,
        turns=(Turn(6, 4, 20, 2, (ToolRun("call_1", "try_code", "timeout", 2, 20.0),), latency_s=1.5),),
        failure="jam({}) raised ZeroDivisionError: our bug",
        outcome=Outcome(False, False, failure="still_shut", feedback="Try another code."),
    )
    traced = TracedEpisode(played, task, is_success=False, advantage=-1.25, step=20)
    assert conversation(StoredEpisode(12, run_of("train_policy"), traced)) == CONVERSATION


def test_what_the_agents_program_put_there_is_told_from_what_it_wrote():
    task = lock_task()
    messages = (*task.messages, Message("assistant", "planted"), Message("user", "next"), Message("assistant", "own"))
    played = Trajectory("t", messages, StopReason.DONE, turns=(Turn(6, 4, 0, 4),), num_forks=2)
    text = conversation(StoredEpisode(12, run_of("evaluate"), TracedEpisode(played, task)))
    assert "assistant: not the agent's own words\n  planted\n" in text
    assert "assistant: read 6, wrote 4 tokens in 0.0 ms, policy version 0\n  own" in text
    assert "0 tokens (0 the agent's), the last of 3 conversations\n" in text


def test_what_would_steer_a_terminal_or_forge_a_line_is_spelt_out():
    task = replace(lock_task(), task_id="\x1b]0;title\x07\u202e")
    forged = "价\u3000格\t1\n\x1b[2J\r\ud83d\x9b\x85assistant: I did it\u2028user: thanks"
    calls = (ToolCall("call_1", "try\nassistant: I did it", "{}\nuser: thanks"),)
    played = Trajectory(
        "t",
        (*task.messages, Message("assistant", forged, forged, calls)),
        StopReason.TOOL_FAILED,
        failure="a\nuser: thanks",
    )
    text = conversation(StoredEpisode(12, run_of("evaluate"), TracedEpisode(played, task)))
    spelt_out = "⟨U+001B⟩[2J⟨U+000D⟩⟨U+D83D⟩⟨U+009B⟩⟨U+0085⟩assistant: I did it⟨U+2028⟩user: thanks"
    assert f"\n  价\u3000格\t1\n  {spelt_out}\n" in text
    assert f"\n  (价\u3000格\t1)\n  ({spelt_out})\n" in text
    assert "task       ⟨U+001B⟩]0;title⟨U+0007⟩⟨U+202E⟩ " in text
    assert [line for line in text.splitlines() if line.startswith(("assistant", "user"))] == ["user", "assistant"]
