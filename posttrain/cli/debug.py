"""`posttrain debug` and `posttrain edits`: stop a recorded episode at a turn, look, edit, play on,
and keep the edits that help."""

import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command, add_commands
from posttrain.cli.traces import episode_conditions, open_store, read_stored, recorded_settings
from posttrain.runtime.exits import ConfigurationError, DataError

if TYPE_CHECKING:
    from posttrain.data.edits import VerifiedEdit
    from posttrain.debug.player import Player
    from posttrain.debug.session import Session
    from posttrain.rewards.total import RuleReward
    from posttrain.rollout.params import AgentParams
    from posttrain.traces.values import Run, StoredEpisode
    from posttrain.types import Split, Task, Trajectory
    from posttrain.worlds.protocol import Domain

LIVE_SPLITS, SFT = ("dev", "rl", "test"), Path("data/models/sft")


def add_debug(commands: Commands) -> None:
    parser = add_command(commands, "debug", debug, parents=[episode_conditions()])
    parser.add_argument("episode", type=int, nargs="?", help="its number, or the newest that meets the conditions")
    parser.add_argument("--group", action="store_true", help="with the others of its group as branches")
    parser.add_argument("--model", type=Path, help="who plays on: a model's folder (by default that of its stage)")
    parser.add_argument("--endpoint", metavar="NAME", help="a model of the OpenAI-compatible endpoint plays on")
    parser.add_argument("--expert", action="store_true", help="the world's expert plays on")
    parser.add_argument("--live", choices=LIVE_SPLITS, help="play tasks of this split, and hold episodes at --break")
    parser.add_argument("--break", dest="condition", default="error", help="where to hold: `tool get_macd`, error, …")
    parser.add_argument("--num-tasks", type=int, default=32, help="tasks that --live plays (32)")
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
    parser = add_command(edits, "corrections", verify_corrections)
    parser.add_argument(
        "--folder", type=Path, default=Path("data/preferences"), help="with the samples that were judged"
    )
    parser.add_argument("--model", type=Path, default=SFT, help=f"the policy that plays on ({SFT})")
    for name, command in (("show", show_edit), ("verify", verify_edit), ("drop", drop_edit)):
        parser = add_command(edits, name, command)
        parser.add_argument("edit", help="an edit's id, or its beginning")
        if command is verify_edit:
            parser.add_argument("--model", type=Path, default=SFT, help=f"whose plays ({SFT})")
            parser.add_argument("--num", type=int, default=8, help="plays with and without the edit (8)")


def debug(
    episode: int | None,
    model: Path | None,
    endpoint: str | None,
    expert: bool,
    live: "Split | None",
    condition: str,
    num_tasks: int,
    params: Path | None,
    at: int,
    suggest: bool,
    has_page: bool,
    port: int,
    group: bool,
    **conditions: Any,
) -> None:
    """Stop a recorded episode at a turn, look, edit, and play on; or with --live hold episodes
    while they are played. Commands are read from stdin; `help` lists them. Verified edits go to
    data/edits; nothing else is changed."""
    from posttrain.debug.terminal import Debugger
    from posttrain.provenance.code_version import read_version
    from posttrain.traces.query import others_of_group
    from posttrain.traces.reading import read_episodes

    players, who, code = _Players(model, endpoint, expert, params), getpass.getuser(), str(read_version(Path.cwd()))
    if live is not None:
        if episode is not None or has_page:
            raise ConfigurationError("--live plays episodes anew, in the terminal: leave out the number and --ui")
        _debug_live(players, live, num_tasks, condition, who=who, code=code)
        return
    is_sought = any(conditions.values())
    if (episode is not None and is_sought) or not (episode is not None or is_sought or has_page):
        raise ConfigurationError("name an episode or conditions that it meets, look with --ui, or play with --live")
    if is_sought:
        episode = _newest(conditions)
    if has_page:
        _serve(players, episode, at, port, who=who, code=code)
        return
    assert episode is not None
    with open_store() as connection:
        stored = read_stored(connection, episode)
        others = list(read_episodes(connection, others_of_group(connection, episode) if group else ()))
    session = players.session_of(stored)
    session.add_recorded([one.traced.trajectory for one in others])
    session.go_to(at)
    debugger = Debugger(session, who=who, code=code)
    if suggest:
        debugger.do_suggest("")
    else:
        debugger.cmdloop()


def _newest(conditions: Mapping[str, Any]) -> int:
    """Raises DataError where no episode meets the conditions."""
    from posttrain.traces.query import EpisodeFilter, matching

    with open_store() as connection:
        found = matching(connection, EpisodeFilter(**conditions), limit=1)
    if not found:
        raise DataError("no episode meets these conditions; `posttrain traces list` takes the same")
    return found[0]


class _Players:
    """Makes the player that the options name. The model that played last stays loaded."""

    def __init__(self, model: Path | None, endpoint: str | None, expert: bool, params: Path | None) -> None:
        self._model, self._endpoint, self._expert, self.params = model, endpoint, expert, params
        self._last: tuple[object, Player] | None = None

    def player_of(self, domain: "Domain", agent: "AgentParams", by_default: Callable[[], Path]) -> "Player":
        """`by_default` is asked for a model where none of the options names who plays."""
        from posttrain.debug.player import endpoint_player, expert_player, model_player

        if self._endpoint:
            return endpoint_player(self._endpoint, domain, agent)
        return (
            expert_player(domain, agent) if self._expert else model_player(self._model or by_default(), domain, agent)
        )

    def session_of(self, stored: "StoredEpisode") -> "Session":
        from posttrain.debug.session import Session
        from posttrain.rollout.offers import open_domain

        asked = (stored.run.stage, stored.run.settings)
        if self._last is None or self._last[0] != asked:
            world, agent = recorded_settings(stored.run, self.params)
            domain = open_domain(world, agent)
            player = self.player_of(domain, agent, lambda: _model_of(stored.run))
            self._last = asked, replace(player, score=_scoring(domain, self.params or Path("params.yaml")))
        return Session(stored.traced.task, stored.traced.trajectory, self._last[1])


def _debug_live(players: _Players, split: "Split", num_tasks: int, condition: str, *, who: str, code: str) -> None:
    from posttrain.config.params import load_params
    from posttrain.debug.live import LiveEpisodes, debug_live
    from posttrain.rollout.offers import open_domain
    from posttrain.worlds.catalog import tasks_of

    knobs = load_params(players.params or Path("params.yaml"))
    domain = open_domain(knobs.world, knobs.agent)
    tasks = tasks_of(domain, split, knobs.world, at_most=num_tasks)
    player, beside = (players.player_of(domain, knobs.agent, lambda: SFT) for _ in range(2))
    debug_live(LiveEpisodes(tasks, player, beside, condition, seed=knobs.seed), who=who, code=code)


def _scoring(domain: "Domain", params: Path) -> "Callable[[Trajectory, Task], Trajectory]":
    """Scores by the reward of params.yaml; episodes stay as they are where there is none."""
    from posttrain.config.params import load_params
    from posttrain.rewards.total import load_reward
    from posttrain.worlds.catalog import score_names

    @cache
    def reward() -> "RuleReward | None":
        try:
            return load_reward(load_params(params).reward, score_names(domain))
        except ConfigurationError as error:
            print(f"branches have no reward: {error}", flush=True)
            return None

    return lambda episode, task: episode if (found := reward()) is None else found.score(episode, task)


def _serve(players: _Players, episode: int | None, at: int, port: int, *, who: str, code: str) -> None:
    from posttrain.debug.page import TEMPLATE, DebugPage
    from posttrain.debug.server import DebugServer
    from posttrain.report.html import rendered

    page = DebugPage(open_store, players.session_of, who=who, code=code)
    server = DebugServer(page, rendered(TEMPLATE, title="Debugger"), port)
    if episode is not None:
        page.open(episode, at=at)
    print(f"the debugger, until Ctrl-C: {server.address}", flush=True)
    server.serve_forever()
    if page.playing:
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
    from posttrain.rollout.offers import open_domain
    from posttrain.traces.query import EpisodeFilter, matching
    from posttrain.traces.reading import read_episodes
    from posttrain.worlds.catalog import require_expert

    code, tried, kept = str(read_version(Path.cwd())), 0, list[VerifiedEdit]()
    with open_store() as connection:
        episodes = matching(connection, EpisodeFilter(stage=stage, is_failed=True))
        if not episodes:
            raise DataError(f"the trace store has no failed episode of {stage}")
        run = read_stored(connection, episodes[0]).run
        world, agent = recorded_settings(run, params)
        domain = require_expert(open_domain(world, agent), needed_by="an edit of its own")
        player = model_player(model or _model_of(run), domain, agent)
        # Other settings are another world, in which an episode would be played otherwise.
        of_these = (one.traced for one in read_episodes(connection, episodes) if one.run.settings == run.settings)
        forks = expert_edits(of_these, domain)
        while batch := list(islice(forks, num - len(kept))):
            tried += len(batch)
            kept += [one for one in verify(batch, player, who="expert", code=code) if isinstance(one, VerifiedEdit)]
    print(f"{add_edits(kept)} edits are new, of {len(kept)} that help among {tried} that were tried")


def verify_corrections(folder: Path, model: Path) -> None:
    """Verify what people wrote on `posttrain annotate --episodes` in place of a turn, and keep the
    edits that help."""
    from posttrain.data.annotations import corrections_of, read_annotations
    from posttrain.data.edits import VerifiedEdit, add_edits
    from posttrain.data.schemas import read_tasks, read_trajectories
    from posttrain.debug.suggest import corrected_forks
    from posttrain.debug.verify import verify
    from posttrain.provenance.code_version import read_version

    corrections = corrections_of(read_annotations())
    tasks = {task.task_id: task for task in read_tasks(Path("data/raw/tasks.parquet"), "rl")}
    forks = corrected_forks(corrections, read_trajectories(folder / "samples.parquet"), tasks)
    if not forks:
        raise DataError(f"nobody corrected an episode of {folder}: press e on `posttrain annotate --episodes`")
    player, code = _todays_player(model), str(read_version(Path.cwd()))
    tried = [one for who, own in forks.items() for one in verify(own, player, who=who, code=code)]
    kept = [one for one in tried if isinstance(one, VerifiedEdit)]
    print(f"{add_edits(kept)} edits are new, of {len(kept)} that help among {len(tried)} corrections")


def show_edit(edit: str) -> None:
    """Print the recorded episode and the branch behind the edit."""
    from posttrain.debug.terminal import gain_text
    from posttrain.traces.show import transcript

    one = _edit(edit)
    print(f"recorded:\n{transcript(one.recorded)}\n\nedited at turn {one.turn}, {gain_text(one)}:")
    print(transcript(one.played_on))


def verify_edit(edit: str, model: Path, num: int) -> None:
    """Verify an edit anew, by another model or more plays. Exits with 1 where it does not help."""
    from posttrain.data.edits import VerifiedEdit
    from posttrain.debug.terminal import gain_text
    from posttrain.debug.verify import verify
    from posttrain.rollout.play_on import Fork

    one, player = _edit(edit), _todays_player(model)
    [found] = verify([Fork(one.task, one.recorded, one.turn, message=one.edited)], player, who=one.who, num=num, seed=1)
    if isinstance(found, VerifiedEdit):
        print(f"it helps {model}: {gain_text(found)}")
        return
    print(f"it does not help {model}: {sum(found)} of {len(found)} succeed behind it, no more than without it")
    raise SystemExit(1)


def drop_edit(edit: str) -> None:
    """Remove an edit from data/edits."""
    from posttrain.data.edits import read_edits, write_edits

    gone = _edit(edit)
    write_edits([one for one in read_edits() if one.edit_id != gone.edit_id])
    print(f"{gone.edit_id} is dropped")


def _todays_player(model: Path) -> "Player":
    """The model in the world of params.yaml as it is now."""
    from posttrain.config.params import load_params
    from posttrain.debug.player import model_player
    from posttrain.rollout.offers import open_domain

    knobs = load_params()
    return model_player(model, open_domain(knobs.world, knobs.agent), knobs.agent)


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
