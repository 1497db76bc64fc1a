"""Several processes make the step that one would make: its rows or episodes, its loss, its metrics.
More ways to run and to die: tests/real."""

from types import SimpleNamespace

import pytest
from launched import episodes, run
from tiny import tiny_model
from tiny_runs import run_online

from posttrain.models.distributed import pair_parts, parts_of, share_rows
from posttrain.models.sharding import learner_of
from posttrain.rollout.generator import RolloutBatch, RolloutSchedule
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.resumable_trainer import TrainingRun
from posttrain.types import ScoredEpisode


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("at_once", "expected"), [(1, (16, 1)), (3, (8, 2)), (4, (4, 4)), (15, (2, 8)), (16, (1, 16)), (99, (1, 16))]
)
def test_no_part_has_more_rows_than_may_go_through_at_once_and_all_have_as_many(at_once, expected):
    assert parts_of(16, "batch_size", at_once) == expected
    assert pair_parts(16, "batch_size", 2 * at_once) == expected
    assert pair_parts(16, "batch_size", 1) == (16, 1), "a pair is two rows, whatever is asked for"


def test_a_step_is_shared_out_in_the_order_of_its_rows(second_of_two):
    assert share_rows(range(8)) == range(4, 8)
    assert parts_of(16, "batch_size") == (4, 2)
    assert parts_of(12, "batch_size") == (1, 6)


def test_where_servers_play_the_first_process_alone_asks_them(second_of_two, monkeypatch):
    plays = RolloutBatch(["a", "a", "b", "b"], [1, 2, 3, 4])
    here, elsewhere = SimpleNamespace(is_elsewhere=False), SimpleNamespace(is_elsewhere=True)
    assert RolloutSchedule(here)._own(plays) == RolloutBatch(["b", "b"], [3, 4])
    assert RolloutSchedule(elsewhere)._own(plays) == RolloutBatch((), ())
    monkeypatch.setenv("RANK", "0")
    assert RolloutSchedule(elsewhere)._own(plays) == plays


class Diary:
    is_elsewhere = False

    def __init__(self):
        self.lines = []

    def refresh(self):
        self.lines.append("refresh")

    def sleep(self):
        self.lines.append("sleep")

    def run(self, tasks, seeds):
        self.lines.append(f"play {tasks[0]}")
        return [ScoredEpisode(None)]


def test_what_plays_sleeps_while_a_step_is_learnt_unless_it_plays_ahead():
    first, second = (RolloutBatch([name], [1]) for name in ("a", "b"))
    with RolloutSchedule(Diary()) as rollouts:
        rollouts.take(first, following=second)
        rollouts.take(second)
        rollouts.take(first)
    assert rollouts._source.lines == [
        *("refresh", "play a", "play b"),
        *("refresh", "sleep"),
        *("refresh", "play a", "sleep"),
    ]


def test_muon_is_refused_where_matrices_are_cut_into_flat_pieces(monkeypatch):
    model = tiny_model()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert learner_of(model, "adamw") is model
    with pytest.raises(ConfigurationError, match="take adamw"):
        learner_of(model, "muon")


def test_a_step_that_does_not_divide_is_refused(second_of_two):
    with pytest.raises(ConfigurationError, match="batch_size is 7, which 2 processes cannot share equally"):
        parts_of(7, "batch_size")


def test_a_step_of_episodes_that_does_not_divide_is_refused_before_any_is_played(second_of_two, tmp_path):
    run = TrainingRun(tmp_path, None, None, lambda *_: None)
    with pytest.raises(ConfigurationError, match="group_size is 15, which 2 processes cannot share equally"):
        run_online(run, tiny_model(), tasks_per_step=5, group_size=3)


@pytest.mark.needs_processes
@pytest.mark.parametrize(
    "more",
    [
        {},
        # of 9 members one process has 5 and the other 4: one of its five parts is an idle row
        {"join": {"type": "expert", "count": 1, "gamma": 0.1}, "kl": {"type": "loss", "weight": 0.1}},
        {"minibatches": 3, "entropy_bonus": 0.05},
    ],
    ids=["", "a row at once", "minibatches"],
)
def test_the_first_step_of_learning_online_has_the_episodes_and_metrics_of_one_process(tmp_path, more):
    # 3 tasks, groups of 2: the second process begins in the middle of a group
    what = {"algorithm": "online", "changes": {"tasks_per_step": 3, "group_size": 2, **more}}
    expected = run(tmp_path / "one", **what)
    found = run(tmp_path / "two", "ddp", **what, rows_at_once=1 if "join" in more else None)

    own, others = episodes(tmp_path / "one", 1), episodes(tmp_path / "two", 1)
    assert len(own) == 6
    for one, other in zip(own, others, strict=True):
        assert other == one | {
            "logprobs": pytest.approx(one["logprobs"], abs=1e-4),
            "advantage": pytest.approx(one["advantage"], abs=1e-4),
        }
    assert found["metrics"][0] == pytest.approx(expected["metrics"][0], abs=1e-4)
    assert [set(line) for line in found["metrics"]] == [set(line) for line in expected["metrics"]]
