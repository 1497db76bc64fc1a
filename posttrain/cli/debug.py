"""`posttrain debug` and `posttrain edits`: stop a recorded episode at a turn, look, edit, play on,
and keep the edits that help."""

import getpass
import os
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.cli.command import Commands, add_command, add_commands
from posttrain.cli.traces import open_store, read_stored, recorded_settings
from posttrain.runtime.exits import ConfigurationError, DataError

if TYPE_CHECKING:
    from posttrain.data.edits import VerifiedEdit
    from posttrain.debug.player import Player
    from posttrain.debug.session import Session
    from posttrain.rewards.total import RuleReward
    from posttrain.traces.values import Run, StoredEpisode
    from posttrain.types import Task, Trajectory
    from posttrain.worlds.protocol import Domain


def add_debug(commands: Commands) -> None:
    """The commands `debug` and `edits`."""
    parser = add_command(commands, "debug", debug)
    parser.add_argument("episode", type=int, nargs="?", help="an episode's number, from `posttrain traces list`")
    parser.add_argument("--model", type=Path, help="who plays on: a model's folder (by default that of its stage)")
    parser.add_argument("--expert", action="store_true", help="the world's expert plays on")
    parser.add_argument("--params", type=Path, help="play by this params.yaml, not by what the run had")
    parser.add_argument("--at", type=int, default=1, help="the turn to stop at")
    parser.add_argument("--suggest", action="store_true", help="say which turn to edit first, and end")
    parser.add_argument("--ui", dest="has_page", action="store_true", help="as a page in a browser, until Ctrl-C")
    parser.add_argument("--port", type=int, default=0, help="of the page, on 127.0.0.1; any free one by default")
    edits = add_commands(commands, "edits", "Edits of agents' messages that were verified by playing on.")
    add_command(edits, "list", list_edits)
    parser = add_command(edits, "propose", propose)
    parser.add_argument("--stage", default="sample_preferences", help="whose failed episodes are edited")
    parser.add_argument("--num", type=int, default=50, help="edits to keep, at most one of a task")
    parser.add_argument("--model", type=Path, help="the policy that plays on (by default that of the stage)")
    parser.add_argument("--params", type=Path, help="play by this params.yaml, not by what the run had")
    for name, command in (("show", show_edit), ("drop", drop_edit)):
        add_command(edits, name, command).add_argument("edit", help="an edit's id, or its beginning")


def debug(
    episode: int | None,
    model: Path | None,
    expert: bool,
    params: Path | None,
    at: int,
    suggest: bool,
    has_page: bool,
    port: int,
) -> None:
    """Stop a recorded episode at a turn, look, edit, and play on. Commands are read from stdin;
    `help` lists them. Verified edits go to data/edits; nothing else is changed."""
    from posttrain.debug.terminal import Debugger
    from posttrain.provenance.code_version import read_version

    sessions, who, code = _Sessions(model, expert, params), getpass.getuser(), str(read_version(Path.cwd()))
    if has_page:
        _serve(sessions, episode, at, port, who=who, code=code)
        return
    if episode is None:
        raise ConfigurationError("name an episode, from `posttrain traces list`, or look for one with --ui")
    with open_store() as connection:
        session = sessions.open(read_stored(connection, episode))
    session.go_to(at)
    debugger = Debugger(session, who=who, code=code)
    if suggest:
        debugger.do_suggest("")
    else:
        debugger.cmdloop()


class _Sessions:
    """Makes a session of an episode; the model that played last stays loaded."""

    def __init__(self, model: Path | None, expert: bool, params: Path | None) -> None:
        self._model, self._expert, self._params = model, expert, params
        self._last: tuple[object, Player] | None = None
        self._reward: Callable[[], RuleReward | None] = lambda: None

    def open(self, stored: "StoredEpisode") -> "Session":
        from posttrain.debug.player import expert_player, model_player
        from posttrain.debug.session import Session
        from posttrain.worlds.catalog import make_domain

        model = None if self._expert else self._model or _model_of(stored.run)
        asked = (model, stored.run.settings)
        if self._last is None or self._last[0] != asked:
            world, agent = recorded_settings(stored.run, self._params)
            domain = make_domain(world)
            self._last = asked, model_player(model, domain, agent) if model else expert_player(domain, agent)
            self._reward = cache(lambda: _reward_of(domain, self._params or Path("params.yaml")))
        return Session(stored.traced.task, stored.traced.trajectory, self._last[1])

    def score(self, episode: "Trajectory", task: "Task") -> "Trajectory":
        """By the reward of params.yaml; unchanged where there is none."""
        reward = self._reward()
        return episode if reward is None else reward.score(episode, task)


def _reward_of(domain: "Domain", params: Path) -> "RuleReward | None":
    from posttrain.config.params import load_params
    from posttrain.rewards.total import load_reward
    from posttrain.worlds.catalog import score_names

    try:
        return load_reward(load_params(params).reward, score_names(domain))
    except ConfigurationError as error:
        print(f"branches have no reward: {error}", flush=True)
        return None


def _serve(sessions: _Sessions, episode: int | None, at: int, port: int, *, who: str, code: str) -> None:
    from posttrain.debug.page import TEMPLATE, DebugPage, Source
    from posttrain.debug.server import DebugServer
    from posttrain.report.html import rendered

    page = DebugPage(Source(open_store, sessions.open, sessions.score), who=who, code=code)
    server = DebugServer(page, rendered(TEMPLATE, title="Debugger"), port)
    if episode is not None:
        page.open(episode, at=at)
    print(f"the debugger, until Ctrl-C: {server.address}", flush=True)
    server.serve_forever()
    if page.is_playing:
        os._exit(0)  # the play's thread computes on, and torch aborts where Python ends around it


def list_edits() -> None:
    """The verified edits of data/edits."""
    from posttrain.data.edits import read_edits
    from posttrain.debug.session import message_text
    from posttrain.debug.terminal import gain_text

    found = read_edits()
    for one in found:
        print(f"{one.edit_id}  {one.task.task_id}  turn {one.turn}  {gain_text(one)}  {one.who}", end="  ")
        print(message_text(one.edited))
    print(f"{len(found)} verified edits")


def propose(stage: str, num: int, model: Path | None, params: Path | None) -> None:
    """Have the world's expert edit the first wrong turn of failed episodes, in place of a person,
    and keep the edits that are verified."""
    from posttrain.data.edits import VerifiedEdit, add_edits
    from posttrain.debug.player import model_player
    from posttrain.debug.suggest import expert_edits
    from posttrain.debug.verify import verify
    from posttrain.provenance.code_version import read_version
    from posttrain.traces.query import EpisodeFilter, matching
    from posttrain.traces.reading import read_episodes
    from posttrain.worlds.catalog import make_domain, require_expert

    code, tried, kept = str(read_version(Path.cwd())), 0, list[VerifiedEdit]()
    with open_store() as connection:
        episodes = matching(connection, EpisodeFilter(stage=stage, is_failed=True))
        if not episodes:
            raise DataError(f"the trace store has no failed episode of {stage}")
        run = read_stored(connection, episodes[0]).run
        world, agent = recorded_settings(run, params)
        domain = require_expert(make_domain(world), needed_by="an edit of its own")
        player = model_player(model or _model_of(run), domain, agent)
        # Other settings are another world, in which an episode would be played otherwise.
        of_these = (one for one in read_episodes(connection, episodes) if one.run.settings == run.settings)
        forks = expert_edits(of_these, domain)
        while batch := list(islice(forks, num - len(kept))):
            tried += len(batch)
            kept += [one for one in verify(batch, player, who="expert", code=code) if isinstance(one, VerifiedEdit)]
    print(f"{add_edits(kept)} edits are new, of {len(kept)} that help among {tried} that were tried")


def show_edit(edit: str) -> None:
    """Print the recorded episode and the branch behind the edit."""
    from posttrain.debug.terminal import gain_text
    from posttrain.traces.show import transcript

    one = _edit(edit)
    print(f"recorded:\n{transcript(one.recorded)}\n\nedited at turn {one.turn}, {gain_text(one)}:")
    print(transcript(one.played_on))


def drop_edit(edit: str) -> None:
    """Remove an edit from data/edits."""
    from posttrain.data.edits import read_edits, write_edits

    gone = _edit(edit)
    write_edits([one for one in read_edits() if one.edit_id != gone.edit_id])
    print(f"{gone.edit_id} is dropped")


def _edit(text: str) -> "VerifiedEdit":
    from posttrain.data.edits import read_edits

    found = [one for one in read_edits() if one.edit_id.startswith(text)]
    if len(found) != 1:
        raise DataError(f"{len(found)} edits begin with {text!r}; `posttrain edits list` has all")
    return found[0]


def _model_of(run: "Run") -> Path:
    """The folder of the model that a stage's episodes are of."""
    stage, _, item = run.stage.partition("@")
    name = {"evaluate": item, "train_policy": "policy", "sample_preferences": "sft"}.get(stage, "")
    folder = Path("data/models") / name
    if not name or not folder.is_dir():
        raise ConfigurationError(f"say who plays on from an episode of {run.stage}: --model FOLDER or --expert")
    return folder
