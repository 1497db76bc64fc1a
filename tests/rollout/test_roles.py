"""A worker's conversation within an episode: its windows are the rows that SFT would make of it,
the record keeps whose they are, and other weights may play a role."""

import asyncio
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pydantic import ValidationError

from posttrain.config.params import load_params
from posttrain.data.files import ParquetBatches, read_parquet, write_parquet
from posttrain.data.schemas import (
    TRAJECTORIES_SCHEMA,
    read_trajectories,
    rows_from_table,
    tool_names,
    trajectories_table,
    trajectory_columns,
    trajectory_from_columns,
    write_trajectories,
)
from posttrain.evals.roles import role_summary
from posttrain.models.loading import save_model
from posttrain.models.scratch import scratch_model
from posttrain.rollout.agent_loops import ToolFailed, run_calls
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.memory import window_rows
from posttrain.rollout.params import NoMemory, WorkerParams
from posttrain.rollout.play_on import Fork, play_on
from posttrain.rollout.policy import expert_policy
from posttrain.rollout.roles import OtherPlayers
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.traces.replay import replay
from posttrain.traces.values import TracedEpisode
from posttrain.types import PLANNER, WORKER, StopReason, ToolCall
from tests.rollout.voiced import BOTH, DOMAIN, LIMITS, OWN, TASKS, Voiced, codec_of, demonstrations

NONE = NoMemory(type="none")


@pytest.fixture(scope="module")
def rows():
    return demonstrations()


@pytest.fixture(scope="module")
def codec(rows):
    return codec_of(rows)


def play(policy, limits=LIMITS, tasks=TASKS):
    return run_episodes(policy, tasks, domain=DOMAIN, limits=limits, seeds=range(len(tasks)))


@pytest.fixture(scope="module")
def episodes(codec):
    return play(Voiced(codec))


def test_a_worker_reads_and_writes_the_rows_that_sft_makes_of_a_demonstration(rows, codec, episodes):
    for row, one in zip(rows, episodes, strict=True):
        assert one.is_strict_success
        assert one.window_roles == (PLANNER, *[WORKER] * len(row.trajectory.delegated))
        encoded = codec.encode_rows(own.conversation for own in window_rows(row, NONE))
        windows = [(list(one.token_ids[part]), list(one.mask[part])) for part in one.windows]
        assert windows == [(own.input_ids, own.mask) for own in encoded]
        assert one.num_own_tokens == len(encoded[0].input_ids)
        assert sum(turn.num_read + turn.num_written for turn in one.turns) == one.num_own_tokens
    assert {"delegate", "begin", "check", "confirm"} < tool_names(rows)


def test_a_worker_reads_its_own_text_and_tools_and_is_seeded_apart(codec):
    asked = []

    class Heard(Voiced):
        async def reply(self, episode):
            asked.append(
                (
                    WORKER if episode.parent else PLANNER,
                    episode.episode_id,
                    episode.seed,
                    [*episode.tools],
                    episode.limits,
                )
            )
            return await super().reply(episode)

    play(Heard(codec), tasks=TASKS[:1])
    ids = {role: list(dict.fromkeys(one[1] for one in asked if one[0] == role)) for role in (PLANNER, WORKER)}
    first = f"{TASKS[0].task_id}/0"
    assert ids[PLANNER] == [first]
    assert ids[WORKER] == [f"{first}/worker-{number}" for number in range(1, len(ids[WORKER]) + 1)]
    assert len({one[2] for one in asked}) == 1 + len(ids[WORKER])
    worker = next(one for one in asked if one[0] == WORKER)
    assert (worker[3], worker[4].max_turns) == (["begin", "check", "confirm"], BOTH.max_turns)


def test_stores_keep_whose_a_window_is_and_read_what_an_older_version_wrote(rows, episodes, tmp_path):
    for one in episodes:
        assert trajectory_from_columns(trajectory_columns(one)) == one
    played = [replace(row, trajectory=one) for row, one in zip(rows, episodes, strict=True)]
    write_trajectories(tmp_path / "now.parquet", played)
    assert [row.trajectory.delegated for row in read_trajectories(tmp_path / "now.parquet")] == [
        one.delegated for one in episodes
    ]
    older = pa.schema([one for one in TRAJECTORIES_SCHEMA if one.name not in ("window_roles", "delegated")])
    table = trajectories_table(played)
    write_parquet(tmp_path / "older.parquet", table.select(older.names))
    read = rows_from_table(read_parquet(tmp_path / "older.parquet", TRAJECTORIES_SCHEMA))
    assert [(one.trajectory.token_ids, one.trajectory.delegated) for one in read] == [
        (one.token_ids, ()) for one in episodes
    ]
    write_parquet(tmp_path / "odd.parquet", table.drop_columns(["mask"]))
    with pytest.raises(DataError, match="no column mask"):
        list(ParquetBatches(tmp_path / "odd.parquet", TRAJECTORIES_SCHEMA))


def test_an_episode_of_two_policies_is_replayed_by_its_messages_and_not_by_tokens(rows, codec):
    recorded = TracedEpisode(rows[0].trajectory, TASKS[0])
    assert recorded.trajectory.delegated
    assert replay(recorded, DOMAIN, LIMITS) == []
    [one] = play(Voiced(codec), tasks=TASKS[:1])
    with pytest.raises(DataError, match="has workers, whose tokens cannot be fed back"):
        replay(TracedEpisode(one, TASKS[0]), DOMAIN, LIMITS, codec)
    with pytest.raises(DataError, match="play on from turn 1"):
        play_on([Fork(TASKS[0], one, 2)], Voiced(codec), domain=DOMAIN, limits=LIMITS)


def test_without_a_roles_tokens_the_others_stand_where_they_stood(codec, episodes):
    """Those that other weights wrote are of another tokenizer, and no rows."""
    one, other = episodes[0], {"type": "folder", "path": "elsewhere"}
    own, *workers = one.windows

    def by_others(**players):
        worker = WorkerParams.model_validate({"max_turns": 8, "planner": OWN, "worker": OWN} | players)
        [found] = play(Voiced(codec), LIMITS.model_copy(update={"worker": worker}), TASKS[:1])
        assert (found.messages, found.turns, found.delegated) == (one.messages, one.turns, one.delegated)
        return found

    planner, worker = by_others(worker=other), by_others(planner=other)
    assert (planner.token_ids, planner.window_starts, planner.window_roles) == (one.token_ids[own], (), ())
    assert [worker.token_ids[part] for part in worker.windows] == [(), *(one.token_ids[part] for part in workers)]
    assert worker.roles == one.roles


def test_other_weights_play_a_role_from_their_folder(codec, tmp_path):
    folder, section = tmp_path / "policy", load_params().model.model_copy(update={"hidden_size": 32, "num_layers": 1})
    model = scratch_model(section, tokenizer=codec.tokenizer, max_context_tokens=900, seed=1)
    save_model(model, codec.tokenizer, folder)
    worker = WorkerParams.model_validate(
        {"max_turns": 2, "planner": OWN, "worker": {"type": "folder", "path": str(folder)}}
    )
    limits = LIMITS.model_copy(update={"worker": worker, "max_turns": 3})
    players = OtherPlayers(limits)
    one, again = (play(players.with_own(Voiced(codec), temperature=0.0), limits, TASKS[:1]) for _ in range(2))
    assert one == again
    assert all(len(own.turns) <= 2 and own.turns[0].num_written for own in one[0].delegated)
    assert one[0].window_roles == ()
    missing = worker.model_copy(update={"worker": worker.worker.model_copy(update={"path": "data/nowhere"})})
    with pytest.raises(ConfigurationError, match=r"agent.worker.worker.path is data/nowhere, where there is no model"):
        OtherPlayers(LIMITS.model_copy(update={"worker": missing})).with_own(Voiced(codec), temperature=0.0)
    with pytest.raises(ValidationError, match="there is no role left"):
        WorkerParams.model_validate({"max_turns": 2, "planner": worker.worker, "worker": worker.worker})


def test_an_episode_that_runs_out_of_time_keeps_its_workers_part(codec):
    class Slow(Voiced):
        async def reply(self, episode):
            if episode.parent and episode.turns:
                await asyncio.sleep(30)
            return await super().reply(episode)

    start = time.monotonic()
    [one] = play(Slow(codec), LIMITS.model_copy(update={"max_seconds": 1.5}), TASKS[:1])
    assert time.monotonic() - start < 10
    assert [one.stop_reason, *(own.stop_reason for own in one.delegated)] == [StopReason.TIME_LIMIT] * 2
    assert one.window_roles == (PLANNER, WORKER)
    assert not one.is_success


def test_an_agents_program_cannot_delegate():
    world = DOMAIN.open(TASKS[0])
    state = DOMAIN.case(TASKS[0]).at.working[0]
    call = ToolCall("a", "delegate", f'{{"agent":"{DOMAIN.case(TASKS[0]).owners[state]}","instruction":"{state}"}}')
    with pytest.raises(ToolFailed, match="the agent loop tools alone can do"):
        asyncio.run(run_calls([call], world.tools(), LIMITS))


def test_a_summary_tells_what_each_role_wrote_and_whose_the_failures_are(episodes):
    one = episodes[0]
    lost = replace(one, outcome=replace(one.outcome, success=False, strict_success=False, failure="false_report"))
    own = replace(one, outcome=replace(lost.outcome, failure="state_lost"))
    found = role_summary([one, lost, own, own], DOMAIN.worker_failures)
    assert (found["failures"], found["failed_by_worker"]) == (3, 0.333333)
    assert found["delegations"] == len(one.delegated)
    assert found[PLANNER]["tokens"] == sum(one.mask[: one.num_own_tokens])
    assert found[WORKER]["tokens"] == sum(one.mask[one.num_own_tokens :])
    scripted = play(expert_policy(DOMAIN, is_flawless=True, reasoning_frac=0.0), tasks=TASKS[:1])
    assert role_summary(scripted, ())["failed_by_worker"] is None
