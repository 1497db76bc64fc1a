"""The debugger in a world that can be played on paper: a lock that 123 opens, and an agent that
guesses 1 and 2."""

import io
import re
from dataclasses import replace

import pytest

from posttrain.data.edits import SCHEMA, VerifiedEdit, add_edits, read_edits, write_edits
from posttrain.debug.player import Player
from posttrain.debug.session import Session
from posttrain.debug.suggest import first_deviation, num_plays, suggest
from posttrain.debug.terminal import Debugger
from posttrain.debug.verify import verify
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message
from tests.debug.page_server import Guesser
from tests.rollout.lock_world import LIMITS, LockDomain, LockWorld, ScriptedExpert, arguments_of, call, lock_task, say


class Domain(LockDomain):
    def expert(self, task, *, seed, is_flawless, reasoning_frac):
        return ScriptedExpert([call("try_code", arguments_of("123")), say("done")])


TASK, PLAYER = lock_task(), Player("guesser", Domain(), LIMITS, lambda _: Guesser())
RIGHT = call("try_code", arguments_of("123"))


@pytest.fixture
def recorded():
    [episode] = run_episodes(Guesser(), [TASK], domain=Domain(), limits=LIMITS, seeds=[3])
    assert (episode.outcome.failure, len(episode.turns)) == ("still_shut", 3)
    return episode


@pytest.fixture
def session(recorded):
    return Session(TASK, recorded, PLAYER)


def told(session, *lines, **options):
    """What the debugger prints for these commands, line by line."""
    debugger = Debugger(session, who="me", **options)
    debugger.stdout = io.StringIO()
    for line in lines:
        debugger.onecmd(line)
    return debugger.stdout.getvalue().splitlines()


# -- look


def test_turns_are_a_line_each_and_show_has_what_was_read_before_one(session):
    assert told(session, "go 2") == [
        "branch 0: failed (still_shut)",
        '  1  try_code({"code":"1"})',
        '* 2  try_code({"code":"2"})',
        "  3  done",
    ]
    shown = told(session, "show", "show 1", "goal", "tools")
    assert '  {"open":false,"tries":1}' in shown
    assert "  locks" in shown
    assert "try_code(code): Turn the wheels." in shown


def test_a_break_stands_at_the_next_turn_where_it_holds(session, recorded):
    assert told(session, "break tool try_code")[2][0] == "*"
    assert told(session, "break tool try_code code=1")[1][0] == "*"
    assert told(session, "break error") == ["no turn of this branch does"]
    assert told(session, "break tool")[0].startswith("break where: tool NAME [KEY=VALUE …], error, credit")
    turns = [replace(turn, num_read=1, num_written=1) for turn in recorded.turns]
    tokens = {"token_ids": (1,) * 6, "mask": (0, 1) * 3, "logprobs": (0.0, -0.1, 0.0, -3.0, 0.0, -0.1)}
    sampled = Session(TASK, replace(recorded, turns=tuple(turns), **tokens), PLAYER)
    assert told(sampled, "break logprob -2")[2][0] == "*"
    reader = replace(PLAYER, entropies=lambda ids: [0.1, 0.5, 0.1, 1.5, 0.1, 0.5][: len(ids)])
    sampled.player = reader
    assert told(sampled, "go 1", "break entropy 1")[-2][0] == "*"
    credited = replace(recorded, outcome=replace(recorded.outcome, turn_scores=(0.2, 0.2, -0.5)))
    assert told(Session(TASK, credited, PLAYER), "break credit")[3][0] == "*"


def test_the_others_of_a_group_are_branches_to_compare_with(session, recorded):
    [right] = PLAYER.branches([Fork(TASK, recorded, 2, message=RIGHT)])
    session.add_recorded([right.trajectory])
    assert told(session, "tree") == ["* 0  recorded: failed (still_shut)", "  1  recorded: success"]
    assert told(session, "break part 1")[2][0] == "*"
    assert told(session, "compare 0 1") == ["they differ from turn 2 on"]
    assert told(session, "compare 0 0") == ["the same"]


def test_what_is_wrong_is_explained_and_changes_nothing(session):
    for line, expected in {
        "go 9": "branch 0 has the turns 1 to 3",
        "go 1 4": "there is no branch 4: there are 0 to 0",
        "show 0": "this branch has the turns 1 to 3",
        "call open {}": "there is no tool 'open'; offered are try_code, jam",
        'args {"number":1}': "try_code: unknown argument 'number'; try_code takes code",
        "args {": "try_code: arguments are not valid JSON",
        "message []": "that is no message of OpenAI's chat format",
        "save": "there is no edited message to verify",
        "tokens": "tokens are a model's",
        "compare 0": "not enough values to unpack",
        "compare 0 7": "there is no branch 7: there are 0 to 0",
        "offer open": "the world has no tool 'open'; it has try_code, jam",
        "mode fast": "mode stub, pin or live",
        "break entropy 1": "entropies are a model's",
        "fork x": "invalid literal for int()",
        "jump": "there is no command 'jump'; `help` lists them",
    }.items():
        assert expected in "\n".join(told(session, line)), line
    assert (session.at, session.pending, len(session.nodes)) == (1, None, 1)


def test_what_an_agent_wrote_cannot_control_the_terminal(recorded):
    messages = [replace(one, content="\x1b[2Jdone") if one.content == "done" else one for one in recorded.messages]
    session = Session(TASK, replace(recorded, messages=tuple(messages)), PLAYER)
    assert not any("\x1b" in line for line in told(session, "turns", "show 3", "tree"))


# -- edit and play on


def test_edited_arguments_are_played_on_and_the_tree_has_the_outcome(session):
    assert told(session, f"args {arguments_of('123')}")[2] == '  → try_code({"code":"123"})   (edited, not played on)'
    assert told(session, "undo")[2].startswith("  2")
    found = told(session, f"args {arguments_of('123')}", "continue", "tree", "compare 0 1")
    assert found[-3:] == [
        "  0  recorded: failed (still_shut)",
        "*   1  from turn 1, edited: success",
        "they differ from turn 1 on",
    ]
    assert session.node.episode.messages[2].tool_calls[0].arguments == arguments_of("123")


def test_a_step_stops_behind_the_turn(session):
    told(session, f"call try_code {arguments_of('7')}", "step")
    assert len(session.node.episode.turns) == 1
    assert session.nodes[0].episode.turns[1:]


def test_several_branches_leave_the_edit_where_it_is(session):
    found = told(session, "go 2", f"args {arguments_of('123')}", "fork 3")
    assert "3 of 3 succeed" in found
    assert (session.current, session.at, session.pending is None) == (0, 2, False)
    assert [node.parent for node in session.nodes] == [None, 0, 0, 0]


def test_an_edited_result_and_system_text_are_counterfactual_or_another_task(session):
    found = told(session, "go 2", 'result call_1 {"open":true}', "continue", "tree")
    assert found[-1] == "*   1  from turn 2: counterfactual"
    found = told(session, "go 1 0", "system be brief", "continue", "show 1")
    assert "  be brief" in found
    assert told(session, "go 1 0", "say never mind", "continue")[-1] == "* 1  never mind"


def test_a_branch_keeps_its_system_text_and_its_tools(session):
    told(session, "system be brief", "offer try_code", "continue")
    assert [node.task.tools for node in session.nodes] == [("try_code", "jam"), ("try_code",)]
    told(session, "go 2 1", f"args {arguments_of('7')}", "continue")
    assert session.node.episode.messages[0].content == "be brief"
    assert told(session, f"args {arguments_of('123')}", "save")[-1].startswith("the system text, the tools or a result")
    assert "there is no tool 'jam'; offered are try_code" in told(session, "call jam {}")[0]


def test_a_system_text_where_there_was_none_leaves_the_turns_in_their_places(recorded):
    task = replace(TASK, messages=TASK.messages[1:])
    [bare] = run_episodes(Guesser(), [task], domain=Domain(), limits=LIMITS, seeds=[3])
    session = Session(task, bare, PLAYER)
    told(session, "go 3", "system be brief", "continue")
    assert [message.role for message in session.node.episode.messages[:3]] == ["system", "user", "assistant"]
    assert session.node.episode.turn_messages[:2] == bare.turn_messages[:2]


def test_modes_say_what_tools_do(session):
    found = told(session, "mode stub", "continue", "tree")
    assert found[0] == "mode stub"
    assert found[-1] == "*   1  from turn 1: counterfactual"
    found = told(session, "go 1 0", f"args {arguments_of('9')}", "continue")
    assert any("no result of try_code" in line for line in found), found
    assert told(session, "mode live anyway") == ["mode live anyway"]
    assert session.allow_differences


def test_the_state_of_the_world_is_shown_as_before_the_turn(recorded, monkeypatch):
    session = Session(TASK, recorded, PLAYER, at=3)
    assert told(session, "world") == ["this world shows no state"]
    monkeypatch.setattr(LockWorld, "describe", lambda self: f"{self.num_tries} tries", raising=False)
    assert told(session, "world", "go 1", "world")[::6] == ["2 tries"]


# -- verified edits


def test_an_edit_that_helps_is_kept_once_and_is_read_again(session, tmp_path):
    path = tmp_path / "edits/edits.parquet"
    line = f"call try_code {arguments_of('123')}"
    found = told(session, line, "save", "save", edits=path, code="abc1234")
    [edit] = read_edits(path)
    assert found[-2] == f"kept as {edit.edit_id} in {path}: 0 of 8 → 8 of 8 (+100 points, +54 … +100)"
    assert found[-1].startswith("already kept")
    assert (edit.turn, edit.who, edit.code, edit.model) == (1, "me", "abc1234", "guesser")
    assert edit.edited.tool_calls[0].arguments == arguments_of("123")
    assert (edit.recorded.messages, edit.task) == (session.recorded.messages, TASK)
    assert edit.played_on.is_strict_success
    write_edits([], path)
    assert read_edits(path) == []


def test_an_edit_that_does_not_help_is_not_kept(session, tmp_path):
    path = tmp_path / "edits.parquet"
    assert told(session, "say done", "save 4", edits=path)[-1] == (
        "not kept: 0 of 4 succeed behind it, no more than without it"
    )
    assert not path.exists()


def test_a_kept_edit_is_a_pair_and_a_row_that_is_trained_from_the_edit_on(recorded):
    [edit] = verify([Fork(TASK, recorded, 2, message=RIGHT)], PLAYER, who="me", num=2)
    assert isinstance(edit, VerifiedEdit)
    chosen, rejected = edit.pair()
    assert (chosen.is_success, rejected.is_success, chosen.token_ids) == (True, False, ())
    messages, _, untrained = edit.sft_row(PLAYER.domain.tools).conversation
    assert [messages[place].tool_calls[0].arguments for place in untrained] == [arguments_of("1")]
    assert [one.content for one in messages if one.role == "assistant"] == ["", "", "done"]


def test_an_edit_of_a_held_out_task_and_one_of_a_result_are_refused(recorded):
    for task, fork, expected in (
        (replace(TASK, split="test"), Fork(TASK, recorded, 1, message=RIGHT), "of the split test"),
        (TASK, Fork(TASK, recorded, 1), "of the agent's own message"),
        (TASK, Fork(TASK, recorded, 2, message=RIGHT, results={"call_1": ""}), "and of nothing else"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            verify([replace(fork, task=task)], PLAYER, who="me")


def test_a_damaged_file_of_edits_is_named(tmp_path):
    path = tmp_path / "edits.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"edits\.parquet"):
        add_edits([], path)
    assert {"recorded", "edited", "before", "after", "played_on", "who", "model", "code"} <= set(SCHEMA.names)


# -- suggestions


class Opener(Guesser):
    """Tries 123 where an odd seed begins, and 1 else; what was tried stands."""

    async def reply(self, episode):
        if not any(one.role == "tool" for one in episode.messages):
            return Reply(call("try_code", arguments_of("123" if episode.seed % 2 else "1")))
        return Reply(say("done"))


def test_the_suggested_turn_is_where_the_value_falls(recorded):
    player = replace(PLAYER, policy_at=lambda _: Opener())
    [found] = suggest([TASK], [recorded], player, num=16)
    assert 0 < found.values[0] < 1
    assert (found.values[1:], found.turn) == ((0.0, 0.0), 1)
    assert num_plays([recorded], 16) == 48


def test_the_experts_first_other_message_is_the_flawed_turn(recorded):
    assert first_deviation(Domain(), TASK, recorded) == (1, RIGHT)
    [right] = PLAYER.branches([Fork(TASK, recorded, 1, message=RIGHT)])
    assert first_deviation(Domain(), TASK, right.trajectory) is None
    cut = replace(recorded, messages=(*recorded.messages[:2], Message("assistant", "done")))
    assert first_deviation(Domain(), TASK, replace(cut, turns=recorded.turns[:1])) == (1, RIGHT)


# -- the page about it


def test_the_page_names_every_command_and_no_other(repository):
    page = (repository / "docs/debugger.md").read_text(encoding="utf-8")
    commands = page.partition("## Commands")[2].partition("## What")[0]
    rows = re.findall(r"^\| (`.*?) \|", commands, flags=re.MULTILINE)
    named = {words.split()[0] for row in rows for words in re.findall(r"`([^`]+)`", row)}
    assert named == {name.removeprefix("do_") for name in dir(Debugger) if name.startswith("do_")} - {"EOF", "help"}


def test_each_command_of_the_page_runs(session, tmp_path):
    found = told(
        session,
        *("turns", "show", "goal", "tools", "suggest 2", "go 2", 'args {"code":"123"}', "undo"),
        *('call try_code {"code":"123"}', "fork 2", "tree", "compare 0 1", "save 2", "step", "world", "mode pin"),
        *("offer try_code", "undo", "break part 1", "quit"),
        edits=tmp_path / "edits.parquet",
    )
    assert not [line for line in found if "there is no command" in line or "Traceback" in line]
    assert len(read_edits(tmp_path / "edits.parquet")) == 1
