"""Round trips of `traces export` as OpenTelemetry's spans and as ATIF: an import gives back an
equal episode, whatever an agent wrote; and the files are as the two formats say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as conventions
import pytest

from posttrain.data.importing.importer import import_trajectories
from posttrain.traces.atif import atif_line
from posttrain.traces.otel import otel_line
from posttrain.traces.values import StoredEpisode, TracedEpisode
from posttrain.types import Message, Outcome, StopReason, ToolCall, ToolRun, Trajectory, Turn
from tests.rollout.lock_world import LockDomain, call, lock_task, say
from tests.traces.drawn import Draw
from tests.traces.episodes import TRY_123, run_of, spoken, written

WRITERS = {"otel": otel_line, "atif": atif_line}
SCHEMAS = {name: tool.schema() for name, tool in LockDomain().tools.items()}
TEXTS = (
    *("", "open", "价格 12.30 元", "a\x00b\n", "\\ud83d", "0", "<think>no</think> yes", "[try_code(code=1)]", " \n"),
    *('<tool_call>{"name": "jam"}</tool_call>', "</think>", '{"name": "jam", "arguments": {}}', "<|im_end|>"),
)
ARGUMENTS = ("{}", '{"code": "1"}', '{"code":"1"}', '{"code":null}', '{"code":"1', "[1]", '{"a":1,"a":2}', "价")


class WellFormed(Draw):
    """Conversations that an import accepts: results follow their calls, and ids are told apart."""

    texts = TEXTS

    def trajectory(self) -> Trajectory:
        messages = [Message("system", self.text())] if self.random() < 0.7 else []
        messages.append(Message("user", self.text()))
        turns, runs = [], []
        for number in range(self.randrange(1, 5)):
            ids = [f"c{number}_{at}" for at in range(self.randrange(3))]
            calls = tuple(ToolCall(one, self.choice(["try_code", "jam"]), self.choice(ARGUMENTS)) for one in ids)
            runs = [ToolRun(one.id, one.name, "error", 2) for one in calls]
            turns.append(Turn(self.randrange(1, 4), self.randrange(1, 4), number, len(messages), tuple(runs)))
            messages.append(Message("assistant", self.text(), self.text().strip() or None, calls))
            messages += [Message("tool", self.text(), tool_call_id=one.id) for one in calls]
            messages += [Message("user", self.text())] if not calls or self.random() < 0.3 else []
            if self.random() < 0.2:  # words that the agent's program put there
                messages.append(Message("assistant", f"so far {number}", self.choice([None, "hm"])))
        num_after = self.randrange(3)
        mask = [one for turn in turns for one in (*[0] * turn.num_read, *[1] * turn.num_written)] + [0] * num_after
        mask = mask if self.random() < 0.8 else []
        return replace(
            super().trajectory(),
            messages=tuple(messages),
            turns=tuple(turns),
            token_ids=tuple(self.getrandbits(30) for _ in mask),
            mask=tuple(mask),
            logprobs=tuple(self.float32() if one else 0.0 for one in mask),
            scores={"completion": self.random()},
        )


def line(written_as: str, episode: TracedEpisode, number: int = 1) -> str:
    return WRITERS[written_as](StoredEpisode(number, run_of("train_policy"), episode), SCHEMAS)


def imported(written_as: str, *lines: str, folder: Path) -> Any:
    path = folder / f"{written_as}.jsonl"
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    found = import_trajectories(path)
    assert found.file_format == written_as
    return found


@pytest.mark.parametrize("written_as", WRITERS)
def test_whatever_was_played_comes_back_equal(written_as, tmp_path):
    draw = WellFormed(3)
    episodes = [draw.traced() for _ in range(150)]
    found = imported(written_as, *(line(written_as, one, at) for at, one in enumerate(episodes)), folder=tmp_path)
    assert (found.bad, set(found.unread) - {"gen_ai.evaluation.explanation"}) == ([], set())
    for row, episode in zip(found.rows, episodes, strict=True):
        expected = episode.trajectory
        if expected.outcome is not None:  # its feedback may tell the goal
            expected = replace(expected, outcome=replace(expected.outcome, feedback=""))
        assert row.trajectory == expected
        assert [tool["function"]["name"] for tool in row.tools] == list(episode.task.tools)
        assert all(tool == SCHEMAS[tool["function"]["name"]] for tool in row.tools)
        assert dict(row.labels) | dict(episode.task.labels) == dict(row.labels)


@pytest.mark.parametrize("written_as", WRITERS)
def test_half_a_character_goes_aside_and_a_forged_record_does_too(written_as, tmp_path):
    episode, _ = written((TRY_123, True), ("done", True))
    half = replace(episode.trajectory, messages=(Message("user", "\ud83d"), Message("assistant", "x")), turns=())
    forged = line(written_as, episode, 2).replace("-0.5", "-1e12")
    found = imported(written_as, line(written_as, replace(episode, trajectory=half)), forged, folder=tmp_path)
    assert ["half of a character" in found.bad[0].reason, "must be a number" in found.bad[1].reason] == [True, True]


@pytest.mark.parametrize("written_as", WRITERS)
def test_a_file_without_our_namespace_still_tells_the_conversation_and_its_grade(written_as, tmp_path):
    """As another tool would hand it on."""
    episode, _ = written((TRY_123, True), ("done", True))
    graded = replace(episode.trajectory, outcome=Outcome(True, True, {"care": 0.5}), scores={}, reward=0.75)
    text = line(written_as, replace(episode, trajectory=graded, is_success=True))
    content = json.loads(text)
    if written_as == "atif":
        del content["extra"]
    else:
        for span in spans_of(text):
            assert span["traceId"]
        [scope] = content["resourceSpans"][0]["scopeSpans"]
        for span in scope["spans"]:
            span["attributes"] = [one for one in span["attributes"] if not one["key"].startswith("posttrain.")]
    [row] = imported(written_as, json.dumps(content), folder=tmp_path).rows
    assert row.trajectory.messages == graded.messages
    assert (row.trajectory.outcome.success, row.trajectory.outcome.reward) == (True, 0.75)
    if written_as == "atif":
        tokens = (row.trajectory.token_ids, row.trajectory.mask, row.trajectory.logprobs)
        assert tuple(map(tuple, tokens)) == (graded.token_ids, graded.mask, graded.logprobs)


def spans_of(text: str) -> list[dict[str, Any]]:
    return [span for scope in json.loads(text)["resourceSpans"][0]["scopeSpans"] for span in scope["spans"]]


def attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in holder["attributes"]}


def test_a_trace_has_a_span_for_the_run_each_turn_and_each_call_with_attributes_of_the_conventions():
    episode, _ = written((TRY_123, True), ("done", True))
    spans = spans_of(line("otel", episode))
    assert [span["name"].split()[0] for span in spans] == ["invoke_agent", "chat", "execute_tool", "chat"]
    assert {span.get("parentSpanId") for span in spans[1:]} == {spans[0]["spanId"]}
    assert len({span["spanId"] for span in spans}) == len(spans)
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI_")} | {"error.type"}
    names = {name for span in spans for holder in (span, *span["events"]) for name in attributes(holder)}
    assert {name for name in names if not name.startswith("posttrain.")} <= known
    chat = attributes(spans[3])
    said = json.loads(chat["gen_ai.input.messages"])
    assert [(one["role"], [part["type"] for part in one["parts"]]) for one in said] == [
        ("user", ["text"]),
        ("assistant", ["tool_call"]),
        ("tool", ["tool_call_response"]),
    ]
    assert set(said[2]["parts"][0]) == {"type", "id", "response"}  # the schema's word; examples say `result`
    # the second prompt: five tokens read, four written, three read
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == ("12", "2")
    graded = [attributes(event) for event in spans[0]["events"]]
    labels = {one["gen_ai.evaluation.name"]: one.get("gen_ai.evaluation.score.label") for one in graded}
    assert labels["success"] == "pass"


def test_a_lost_episode_and_a_failed_call_are_errors():
    lost = spoken(call("jam", "{}"))
    [turn] = lost.trajectory.turns
    turn = replace(turn, tool_runs=(ToolRun("call_1", "jam", "timeout", 2),))
    spans = spans_of(line("otel", replace(lost, trajectory=replace(lost.trajectory, turns=(turn,)))))
    assert [(span["status"].get("code"), attributes(span).get("error.type")) for span in spans] == [
        (2, str(StopReason.TOOL_FAILED)),
        (None, None),
        (2, "timeout"),
    ]


def test_steps_hold_the_tokens_of_their_turns_and_words_put_there_are_copied_context():
    episode, _ = written((TRY_123, True), ("done", True))
    put = Message("assistant", "so far")
    content = json.loads(line("atif", replace(episode, trajectory=replace(episode.trajectory, reward=0.5))))
    first, last = (step["metrics"] for step in content["steps"] if step["source"] == "agent")
    assert [*first["prompt_token_ids"], *first["completion_token_ids"]] == last["prompt_token_ids"][:9]
    assert (len(last["prompt_token_ids"]), last["logprobs"]) == (12, [-0.5, -0.5])
    assert (content["schema_version"], content["final_metrics"]["extra"]["reward"]) == ("ATIF-v1.8", 0.5)
    greeted = spoken(say("done"), task=replace(lock_task(), messages=(put, *lock_task().messages)))
    steps = json.loads(line("atif", greeted))["steps"]
    assert [step.get("is_copied_context", False) for step in steps] == [True, False, False, False]
