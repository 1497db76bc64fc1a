"""The annotation page without a browser: what it hands out, keeps and refuses, and the way of a
judgement into the preferences."""

import json

import pytest

from posttrain.data.annotations import corrections_of, item_of, read_annotations
from posttrain.data.importing.preferences import import_preferences
from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.debug.annotation import TEMPLATE, AnnotationPage
from posttrain.debug.server import DebugServer
from posttrain.debug.suggest import corrected_forks
from posttrain.report.html import rendered
from posttrain.rollout.episodes import run_episodes
from posttrain.types import Message, StopReason, ToolCall, Trajectory
from tests.debug.page_server import Guesser, ask, asked
from tests.loopback import serving
from tests.rollout.lock_world import LIMITS, LockDomain, lock_task

LOCK = lock_task()


def episode(number, answer):
    messages = (
        Message("user", f"Question {number}?"),
        Message("assistant", "", tool_calls=(ToolCall("c", "look", "{}"),)),
        Message("tool", "<script>alert(1)</script>", tool_call_id="c"),
        Message("assistant", answer),
    )
    tools = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},)
    return TrajectoryRow(Trajectory(f"t{number}", messages, StopReason.DONE), {}, "rl", "plain", (), tools)


def pairs(count):
    return [item_of(episode(number, "right"), episode(number, "wrong")) for number in range(count)]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "feedback" / "annotations.parquet"


def said_by(page, who, winner="a", **more):
    """All items that are handed to `who`, each judged."""
    found = []
    status, told = page.run("next", {"who": who})
    while told["item"]:
        found.append(told["item"])
        status, told = page.run("say", {"who": who, "item": told["item"], "winner": winner, **more})
        assert status == 200, told
    return found


def test_one_in_ten_is_shown_to_everybody_and_every_other_once(file):
    page = AnnotationPage(pairs(200), file=file)
    first = said_by(page, "ann")
    second = said_by(page, "bob")
    assert len(first) == 200
    assert {int(item, 16) % 10 for item in second} == {0}
    assert len(second) == sum(int(item, 16) % 10 == 0 for item in first)
    told = page.run("next", {"who": "bob"})[1]
    assert (told["num_shared"], told["alpha"], told["by"]) == (len(second), None, {"ann": 200, "bob": len(second)})


def test_agreement_is_that_of_the_items_that_both_judged(file):
    page = AnnotationPage(pairs(200), file=file)
    shared = [item for item in said_by(page, "ann", "a") if int(item, 16) % 10 == 0]
    winners = ["a" if place % 2 else "b" for place in range(len(shared))]
    for item, winner in zip(shared, winners, strict=True):
        page.run("say", {"who": "bob", "item": item, "winner": winner})
    told = page.run("next", {"who": "bob"})[1]
    # by hand: n items of two values; of 2n values k are b and observed disagreement is k / n
    num, k = 2 * len(shared), winners.count("b")
    assert told["alpha"] == pytest.approx(1 - (num - 1) * 2 * k / (2 * k * (num - k)))


def test_two_who_look_at_once_see_different_items(file):
    page = AnnotationPage(pairs(40), file=file)
    seen = [page.run("next", {"who": who})[1]["item"] for who in ("ann", "bob", "cleo")]
    alone = [item for item in seen if int(item, 16) % 10]
    assert len({*alone}) == len(alone)


def test_a_judgement_is_in_the_file_before_the_next_item_and_may_be_taken_again(file):
    page = AnnotationPage(pairs(20), file=file)
    item = page.run("next", {"who": "ann"})[1]["item"]
    page.run("say", {"who": "ann", "item": item, "winner": "tie", "comment": "both fine"})
    again = AnnotationPage(pairs(20), file=file)  # another process, after a kill
    assert again.run("next", {"who": "ann"})[1]["num_own"] == 1
    assert again.run("back", {"who": "ann"})[1]["item"] == item
    again.run("say", {"who": "ann", "item": item, "winner": "b"})
    [row] = read_annotations(file)
    assert (row["item"], row["who"], row["winner"], row["comment"]) == (item, "ann", "b", None)


def test_judgements_become_preferences(file):
    page = AnnotationPage(pairs(6), file=file)
    for place, winner in enumerate("aabbtt"):
        told = page.run("next", {"who": "ann"})[1]
        page.run("say", {"who": "ann", "item": told["item"], "winner": "tie" if winner == "t" else winner})
        assert place < 6
    found = import_preferences([file])
    assert (len(found.pairs), found.num_ties, found.bad, set(found.unread)) == (4, 2, [], {"item"})
    items = {one.item_id: one for one in pairs(6)}
    for row, pair in zip([row for row in read_annotations(file) if row["winner"] != "tie"], found.pairs, strict=True):
        better = items[row["item"]].episodes["ab".index(row["winner"])]
        assert pair.chosen.trajectory.messages == better.trajectory.messages
        assert (pair.said.who, pair.chosen.tools) == ("ann", better.tools)


def test_marks_of_one_episode_become_scores_and_marks_of_turns(file):
    page = AnnotationPage([item_of(episode(1, "right"))], file=file)
    told = page.run("next", {"who": "ann"})[1]
    assert [message["role"] for message in told["episodes"][0]] == ["user", "assistant", "tool", "assistant"]
    page.run("say", {"who": "ann", "item": told["item"], "rating": 4, "marks": {"1": 1, "3": 0}})
    found = import_preferences([file])
    assert [one.score for one in found.scored] == [4.0]
    assert [one.turn_marks for one in found.verdicts] == [(1.0, 0.0)]


def test_a_correction_is_a_bad_mark_and_an_edit_to_be_verified(file):
    [played] = run_episodes(Guesser(), [LOCK], domain=LockDomain(), limits=LIMITS, seeds=[3])
    row = trajectory_row(played, LOCK, LockDomain().tools)
    page = AnnotationPage([item_of(row)], file=file)
    told = page.run("next", {"who": "ann"})[1]
    first = played.turns[0].message_index
    drafts = {message["place"]: message["draft"] for message in told["episodes"][0]}
    assert json.loads(drafts[first])["tool_calls"][0]["function"]["name"] == "try_code"
    right = drafts[first].replace("1", "123") if '"1"' in drafts[first] else drafts[first]
    for text, status in (('{"tool_calls": 3}', 400), (right, 200)):
        corrections = {str(first): text}
        assert page.run("say", {"who": "ann", "item": told["item"], "corrections": corrections})[0] == status
    [verdict] = import_preferences([file]).verdicts
    assert verdict.turn_marks == (0.0, *[None] * (len(played.turns) - 1))
    forks = corrected_forks(corrections_of(read_annotations(file)), [row], {LOCK.task_id: LOCK})
    assert [(who, fork.at) for who, own in forks.items() for fork in own] == [("ann", 1)]
    assert forks["ann"][0].message.tool_calls[0].name == "try_code"
    assert corrected_forks(corrections_of(read_annotations(file)), [row], {}) == {}


@pytest.mark.parametrize(
    ("command", "given", "status", "why"),
    [
        ("next", {"who": ""}, 400, "who"),
        ("next", {}, 400, "who"),
        ("say", {"who": "ann", "item": "0", "winner": "a"}, 400, "there is no item 0"),
        ("say", {"who": "ann", "winner": "c"}, 400, "item"),
        ("say", {"who": "ann", "winner": None}, 400, "item"),
        ("back", {"who": "ann"}, 400, "you have judged none"),
        ("drop", {"who": "ann"}, 404, "no such command"),
    ],
)
def test_what_makes_no_sense_is_refused(file, command, given, status, why):
    found, told = AnnotationPage(pairs(3), file=file).run(command, given)
    assert (found, why in told["error"]) == (status, True), told
    assert not file.exists()


def test_a_pair_wants_a_winner_and_an_episode_a_mark(file):
    page = AnnotationPage([*pairs(1), item_of(episode(7, "right"))], file=file)
    for item in (pairs(1)[0], item_of(episode(7, "right"))):
        is_pair = len(item.episodes) == 2
        wrong = {"rating": 3} if is_pair else {"winner": "a"}
        assert page.run("say", {"who": "ann", "item": item.item_id, **wrong})[0] == 400
        assert page.run("say", {"who": "ann", "item": item.item_id})[0] == 400
    assert page.run("say", {"who": "ann", "item": item.item_id, "rating": 6})[0] == 400


def test_nobody_without_the_key_reads_or_writes(file):
    page = AnnotationPage(pairs(3), file=file)
    with serving(DebugServer(page, rendered(TEMPLATE, title="Annotate", data={"who": "me"}))) as server:
        assert asked(server, "/next", b'{"who": "ann"}', Authorization="Bearer no")[0] == 403
        assert asked(server, "/next", b'{"who": "ann"}', Origin="http://evil.example")[0] == 403
        status, told = ask(server, "next", who="ann")
        assert (status, told["num_items"]) == (200, 3)
        assert b"<script>alert" not in asked(server, "/", method="GET")[2]
        assert json.loads(asked(server, "/say", b"[]")[2]) == {"error": "a command takes a JSON object"}
