"""Several processes make the step that one would make: its rows or episodes, its loss, its metrics.
More ways to run and to die: tests/real."""

from types import SimpleNamespace

import pytest
from launched import episodes, run
from tiny import tiny_model
from tiny_runs import run_online

from posttrain.models import distributed
from posttrain.models.distributed import parts_of, share_rows
from posttrain.models.micro_batches import AtOnce
from posttrain.models.sharding import refuse_optimizer
from posttrain.rollout import generator
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.generator import RolloutBatch, RolloutSchedule
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.params import DevParams
from posttrain.train.online.trainer_state import DevEvaluation, TrainingInputs
from posttrain.train.resumable_trainer import TrainingRun
from posttrain.types import ScoredEpisode, StopReason, Trajectory
from tests.limits import limits_of
from tests.rewarding import EachAlone
from tests.rollout.lock_world import LockDomain, WordCodec, lock_task
from tests.rollout.scripted_engine import ScriptedEngine


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("at_once", "expected"), [(1, (16, 1)), (3, (8, 2)), (4, (4, 4)), (15, (2, 8)), (16, (1, 16)), (99, (1, 16))]
)
def test_no_part_has_more_rows_than_may_go_through_at_once_and_all_have_as_many(at_once, expected):
    assert parts_of(16, "batch_size", AtOnce(at_once)) == expected
    assert parts_of(16, "batch_size", AtOnce(2 * at_once).in_pairs) == expected
    assert parts_of(16, "batch_size", AtOnce(1).in_pairs) == (16, 1), "a pair is two rows, whatever is asked for"


def test_a_step_is_shared_out_in_the_order_of_its_rows(second_of_two):
    assert share_rows(range(8)) == range(4, 8)
    assert share_rows(range(7)) == range(3, 7), "the first has 0 to 2"
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

    def refuse_many_aborted(self, episodes):
        assert len(episodes) == 1


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


class Unscored(EachAlone):
    def score(self, trajectory, task):
        return trajectory


def source_of(num_lost, *, max_aborted_frac):
    """Plays lock tasks by a script that breaks a tool in the first episodes."""
    codec = WordCodec()
    limits = limits_of(4, 8, 40, max_aborted_frac=max_aborted_frac)
    sampler = EpisodeSampler(None, codec, domain=LockDomain(), reward=Unscored(), limits=limits, temperature=1.0)
    lost, done = [*codec.ids("call jam {}"), 0], [*codec.ids("done"), 0]
    # one that was lost is played once more
    sampler._engine = ScriptedEngine({seed: [lost] * 2 if seed < 16 + num_lost else [done] for seed in range(16, 32)})
    return PolicyEpisodes(sampler)


LOST, KEPT = (ScoredEpisode(Trajectory("t", (), reason)) for reason in (StopReason.ENGINE_LOST, StopReason.DONE))


@pytest.mark.parametrize("is_dev", [False, True])
@pytest.mark.parametrize(
    ("here", "there", "is_refused"),
    [(0, 0, False), (1, 0, False), (0, 1, False), (2, 0, True), (1, 1, True), (0, 2, True)],
)
def test_lost_episodes_are_judged_over_all_processes(second_of_two, monkeypatch, here, there, is_refused, is_dev):
    """A twentieth may be lost: one of a step's 32, though it is a sixteenth of its process's, and
    not two, though none is this process's."""
    for module in (generator, distributed):
        monkeypatch.setattr(module, "gather", lambda own: [[LOST] * there + [KEPT] * (16 - there), own])
    tasks, source = [lock_task(f"t{place}") for place in range(32)], source_of(here, max_aborted_frac=0.05)

    def play():
        if not is_dev:
            with RolloutSchedule(source) as rollouts:
                return rollouts.take(RolloutBatch(tasks, range(32)))[0]
        params = DevParams(every_steps=1, num_tasks=32, keep="last")
        inputs = TrainingInputs(
            [], source, dev_tasks=tasks, play_greedily=lambda own: source.play_greedily(own, range(16, 32))
        )
        return DevEvaluation(params, inputs).run(0)

    if not is_refused:
        found = play()
        assert is_dev or sum(one.is_aborted for one in found) == here + there
        return
    with pytest.raises(Interrupted, match=r"2 of 32 episodes were aborted .*max_aborted_frac is 0.05"):
        play()


def test_one_process_stops_at_the_first_lost_episode_that_is_too_many():
    source = source_of(16, max_aborted_frac=0.05)
    with pytest.raises(Interrupted, match="1 of 16 episodes were aborted"), RolloutSchedule(source) as rollouts:
        rollouts.take(RolloutBatch([lock_task()] * 16, range(16, 32)))


def test_muon_is_refused_where_matrices_are_cut_into_flat_pieces(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    refuse_optimizer("adamw")
    with pytest.raises(ConfigurationError, match="take adamw"):
        refuse_optimizer("muon")


def test_a_step_that_does_not_divide_is_refused(second_of_two):
    with pytest.raises(ConfigurationError, match="batch_size is 7, which 2 processes cannot share equally"):
        parts_of(7, "batch_size")


def test_a_step_of_episodes_that_does_not_divide_is_refused_before_any_is_played(second_of_two, tmp_path):
    run = TrainingRun(tmp_path, None, None, lambda *_: None)
    with pytest.raises(ConfigurationError, match="group_size is 15, which 2 processes cannot share equally"):
        run_online(run, tiny_model(), tasks_per_step=5, group_size=3)


BRANCHES = {"type": "branch_values", "branches": 3, "at": {"type": "turns"}, "scale": {"type": "none"}}


@pytest.mark.needs_processes
@pytest.mark.parametrize(
    "more",
    [
        {},
        # of 9 members one process has 5 and the other 4: one of its five parts is an idle row
        {"join": {"type": "expert", "count": 1, "gamma": 0.1}, "kl": {"type": "loss", "weight": 0.1}},
        {"minibatches": 3, "entropy_bonus": 0.05},
        {"credit": BRANCHES},
        {"entropy_bonus": 0.05, "kl": {"type": "loss", "weight": 0.1}},
    ],
    ids=["", "a row at once", "minibatches", "branches", "tokens"],
)
def test_the_first_step_of_learning_online_has_the_episodes_and_metrics_of_one_process(tmp_path, more):
    # 3 tasks, groups of 2: the second process begins in the middle of a group
    what = {"algorithm": "online", "changes": {"tasks_per_step": 3, "group_size": 2, **more}}
    expected = run(tmp_path / "one", **what)
    # in two passes of one length, the logits of a pass in pieces
    limits = {"tokens_at_once": 14, "max_logits": 50} if set(more) == {"entropy_bonus", "kl"} else {}
    found = run(tmp_path / "two", "ddp", **what, rows_at_once=1 if "join" in more else None, **limits)

    own, others = episodes(tmp_path / "one", 1), episodes(tmp_path / "two", 1)
    assert len(own) == 6
    for one, other in zip(own, others, strict=True):
        assert other == one | {
            "logprobs": pytest.approx(one["logprobs"], abs=1e-4),
            "advantage": pytest.approx(one["advantage"], abs=1e-4),
        }
    assert found["metrics"][0] == pytest.approx(expected["metrics"][0], abs=1e-4)
    assert [set(line) for line in found["metrics"]] == [set(line) for line in expected["metrics"]]
