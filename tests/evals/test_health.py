import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.evals.health import Rollout, group_health, read_rollouts
from posttrain.runtime.exits import DataError
from tests.console import posttrain


def rows(*rewards: tuple[str, float | None]) -> list[Rollout]:
    return [Rollout(task, reward) for task, reward in rewards]


def test_real_groups_of_four_teach_nothing_in_48_of_100(shared_data):
    path = shared_data / "tau_bench/gpt-4o-airline.json"
    metrics = group_health(read_rollouts(path).rollouts, success_at=1.0, source=path.name)
    assert (metrics["num_trajectories"], metrics["num_groups"], metrics["num_successes"]) == (200, 50, 84)
    assert metrics["frac_reward_zero_std"] == 0.48
    assert metrics["frac_reward_zero_std_all_bad"] == 0.28
    assert metrics["frac_reward_zero_std_all_good"] == 0.20
    assert metrics["frac_reward_zero_std_other"] == 0.0
    # as tau-bench's README publishes them for GPT-4o with tool calls, airline: pass^1 … pass^4
    assert [round(metrics[f"pass_hat_{k}"], 3) for k in (1, 2, 3, 4)] == [0.42, 0.273, 0.22, 0.2]


def test_success_is_the_reward_that_one_says_it_is():
    metrics = group_health(rows(("a", 0.9), ("a", 0.9), ("b", 0.1), ("b", 0.95)), success_at=0.9, source="x")
    assert metrics["success_rate"] == 0.75
    assert metrics["frac_reward_zero_std_all_good"] == 0.5


def test_a_task_played_once_is_counted_and_left_out():
    metrics = group_health(rows(("a", 0.0), ("a", 1.0), ("b", 1.0)), success_at=1.0, source="x")
    assert (metrics["num_trajectories"], metrics["num_groups"], metrics["num_single"]) == (3, 1, 1)
    assert metrics["reward_mean"] == 0.5


def test_without_groups_there_is_no_health_to_speak_of():
    with pytest.raises(DataError, match=r"x: no task has two episodes among 2 rollouts"):
        group_health(rows(("a", 1.0), ("b", 1.0)), success_at=1.0, source="x")


def test_what_infrastructure_ended_or_nobody_scored_is_no_play():
    plays = [*rows(("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", None), ("b", 0.0)), Rollout("a", 0.0, is_aborted=True)]
    metrics = group_health(plays, success_at=1.0, source="x")
    assert (metrics["num_trajectories"], metrics["num_lost"], metrics["num_unscored"]) == (4, 1, 1)
    assert (metrics["success_rate"], metrics["frac_reward_zero_std"]) == (0.5, 1.0)


CHAT = [{"role": "user", "content": "q"}]
SAID = [{"role": "assistant", "content": "a"}]
FOUR = [("p", 1.0), ("p", 0.0), ("q", 1.0), ("q", 1.0)]
# the plays of FOUR, and where the tool can say so, one that infrastructure ended
PEERS: dict[str, list[dict[str, object]]] = {
    # verl, verl/trainer/ppo/ray_trainer.py, _dump_generations
    "verl": [{"input": i, "output": "a", "gts": "g", "score": s, "step": 3, "acc": s} for i, s in FOUR],
    # TRL, trl/trainer/grpo_trainer.py, log_completions
    "trl": [{"step": 1, "prompt": i, "completion": "a", "exact": s, "advantage": 0.1} for i, s in FOUR],
}


def written(path: Path, tool: str, records: list[dict[str, object]]) -> Path:
    if tool == "trl":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("tool", PEERS)
def test_what_a_peer_writes_of_its_rollouts_is_read_and_what_infrastructure_ended_left_out(tool, tmp_path):
    found = read_rollouts(written(tmp_path / "rollouts", tool, PEERS[tool]))
    metrics = group_health(found.rollouts, success_at=1.0, source=tool)
    assert found.bad == []
    assert (metrics["num_trajectories"], metrics["num_groups"], metrics["success_rate"]) == (4, 2, 0.75)
    assert metrics["frac_reward_zero_std_all_good"] == 0.5
    assert metrics["num_lost"] == len(PEERS[tool]) - 4


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (PEERS["trl"][0] | {"format": 0.5}, r"rewards exact, format: name one with --reward"),
        (
            {"episode": 1, "utterance": "a", "points": 3},
            r"--group and --reward name the columns: it has episode, utterance",
        ),
        ({"messages": [*CHAT, *SAID], "points": 3}, r"name the column with --reward: it has messages, points"),
    ],
)
def test_what_is_not_told_is_asked_for_by_the_options_name(record, said, tmp_path):
    with pytest.raises(DataError, match=said):
        read_rollouts(written(tmp_path / "rollouts", "x", [record] * 2))


def test_reward_and_group_name_columns_of_any_file_and_a_number_counts_records(tmp_path):
    nemo = [{"content": ["q"], "rewards": reward, "idx": idx} for idx, reward in enumerate([1.0, 0.0, 1.0, 1.0])]
    plays = read_rollouts(written(tmp_path / "a", "x", nemo), group="2", reward="rewards").rollouts
    assert group_health(plays, success_at=1.0, source="x")["frac_reward_zero_std"] == 0.5
    mine = [{"episode": {"of": place // 2}, "score": {"points": place}} for place in range(4)]
    plays = read_rollouts(written(tmp_path / "b", "x", mine), group="episode.of", reward="score.points").rollouts
    assert [play.reward for play in plays] == [0.0, 1.0, 2.0, 3.0]
    chats = [{"messages": [*CHAT, *SAID], "points": place} for place in range(3)]
    plays = read_rollouts(written(tmp_path / "c", "x", chats), reward="points").rollouts
    assert ([play.reward for play in plays], len({play.task for play in plays})) == ([0.0, 1.0, 2.0], 1)


def test_the_command_says_what_it_left_out(tmp_path):
    records = [*PEERS["verl"], PEERS["verl"][0] | {"stop_reason": "abort"}]
    result = posttrain("health", written(tmp_path / "rollouts", "verl", records), "--json")
    assert result.stderr == "left out: 1 that infrastructure ended, 0 without a reward, of 5 rollouts\n"
    assert json.loads(result.stdout)["success_rate"] == 0.75


@pytest.mark.parametrize(
    ("end", "is_aborted"),
    [("infrastructure_error", True), ("user_error", True), ("agent_error", False), ("timeout", False)],
)
def test_how_a_simulation_of_tau2_ended_says_whether_it_is_a_play(end, is_aborted, tmp_path):
    run = {"id": "1", "task_id": "1", "trial": 0, "messages": [*CHAT, *SAID], "reward_info": {"reward": 0.0}}
    (tmp_path / "results.json").write_text(
        json.dumps({"info": {}, "simulations": [run | {"termination_reason": end}] * 2})
    )
    assert [play.is_aborted for play in read_rollouts(tmp_path / "results.json").rollouts] == [is_aborted] * 2
