"""Advantages by branches: worked out on paper, the expected gradient enumerated, and which branches
a step plays."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import play_words, tiny_adapted_model, word_task
from tiny_runs import run_here

from posttrain.models import distributed
from posttrain.rollout import generator
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.generator import RolloutSchedule
from posttrain.runtime.exits import Interrupted
from posttrain.train.advantages.baselines import GroupMean, LeaveOneOut
from posttrain.train.advantages.branch_values import BranchValueCredit, differences
from posttrain.train.advantages.credit import EpisodeCredit, StepContext
from posttrain.train.advantages.groups import EpisodeGroup, Group, Turn
from posttrain.train.online.branches import play_branches
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.types import ScoredEpisode, StopReason, Trajectory
from posttrain.types import Turn as RecordedTurn
from tests.limits import limits_of
from tests.rewarding import EachAlone
from tests.rollout.lock_world import LockDomain, WordCodec, arguments_of, lock_task
from tests.rollout.scripted_engine import ScriptedEngine
from tests.train.online.bandit import LOGITS, expected_of_ways, group_of, sum_over_ways, true_gradient, ways

NAN = math.nan
NONE, STD = {"type": "none"}, {"type": "batch_std", "floor": 1e-9}
UNCERTAIN = {"type": "entropy", "share": 0.5, "tokens": 1}


def credit(**knobs):
    plain = {"type": "branch_values", "branches": 2, "at": {"type": "turns"}, "scale": NONE}
    return BranchValueCredit.model_validate(plain | knobs)


def group(rewards, num_turns_G, *, num_tokens=1):
    rewards_G = np.array(rewards, float)
    return Group("t", rewards_G, rewards_G == 1, [[Turn(num_tokens, "", None)] * num for num in num_turns_G])


def credited(rule, *groups_and_values):
    groups = [one for one, _ in groups_and_values]
    values = [[np.array(own, float) for own in of_group] for _, of_group in groups_and_values]
    found = rule.turn_advantages(groups, StepContext(values=values))
    return [[own.tolist() for own in of_group] for of_group in found]


# -- by hand


def test_a_turn_has_the_value_behind_it_less_the_one_before_it():
    two = group([1, 0], [3, 1])
    assert credited(credit(), (two, [[NAN, 0.25, 0.75], [NAN]])) == [[[0.25, 0.5, 0.25], [-1.0]]]


def test_turns_without_a_value_between_them_share_one_difference():
    assert differences(np.array([NAN, NAN, 0.75]), 0.0, 1.0).tolist() == [0.75, 0.75, 0.25]
    assert differences(np.array([NAN, 0.25, NAN, NAN]), 0.5, 1.0).tolist() == [-0.25, 0.75, 0.75, 0.75]
    assert differences(np.array([]), 0.5, 1.0).tolist() == []


def test_a_group_of_equal_rewards_is_told_what_its_turns_lost_and_won():
    two = group([1, 1], [2, 1])
    assert credited(credit(), (two, [[NAN, 0.25], [NAN]])) == [[[-0.75, 0.75], [0.0]]]


def test_without_a_value_an_episode_has_its_outcome():
    rule = EpisodeCredit.model_validate(
        {
            "type": "episode",
            "baseline": {"type": "leave_one_out"},
            "scale": NONE,
            "drop": "none",
            "equal_groups": {"type": "by_baseline"},
        }
    )
    three = group([1, 0, 0.5], [3, 1, 2])
    outcome = rule.turn_advantages([three], StepContext())
    unknown = [[NAN] * 3, [NAN], [NAN] * 2]
    assert credited(credit(), (three, unknown)) == [[own.tolist() for own in of_group] for of_group in outcome]


def test_over_the_steps_deviation_all_turns_count_alike():
    both = (group([1, 0], [2, 1]), [[NAN, 0.5], [NAN]]), (group([1], [1]), [[NAN]])
    deviation = math.sqrt((0.25 + 0.25 + 1) / 2)
    [found, alone] = credited(credit(scale=STD), *both)
    np.testing.assert_allclose(np.concatenate(found), np.array([0.5, 0.5, -1.0]) / deviation)
    assert alone == [[0.0]]


@pytest.mark.parametrize("scale", [NONE, STD], ids=["none", "batch_std"])
def test_values_that_differ_by_rounding_and_lone_episodes_teach_nothing(scale):
    equal = group([-0.3, -0.2 - 0.1], [3, 2]), [[NAN, -0.3, -0.1 - 0.2], [NAN, -0.3]]
    assert credited(credit(scale=scale), equal) == [[[0.0] * 3, [0.0] * 2]]
    assert credited(credit(scale=scale), (group([1], [3]), [[NAN, 0.5, 0.25]]), (group([], []), [])) == [
        [[0.0] * 3],
        [],
    ]


def test_an_episodes_differences_sum_up_to_its_reward_less_what_was_expected():
    """Whatever turns have a value, and however many there are: no length is paid."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        num_turns_G = rng.integers(1, 9, 4)
        rewards = rng.random(4)
        values = [np.where(rng.random(num) < 0.6, rng.random(num), NAN) for num in num_turns_G]
        [found] = credited(credit(), (group(rewards, num_turns_G), values))
        for reward, own, values_K in zip(rewards, found, values, strict=True):
            starts = [0, *(1 + np.flatnonzero(np.isfinite(values_K[1:])))]
            assert sum(own[start] for start in starts) == pytest.approx(reward - (rewards.sum() - reward) / 3)


# -- where branches begin


def points(rule, *num_turns, entropies=None):
    both = [group([0] * len(own), own) for own in num_turns]
    return rule.points(both, entropies and [[np.array(own) for own in of_group] for of_group in entropies])


def test_branches_begin_at_every_turn_but_the_first_and_not_in_a_lone_episode():
    assert points(credit(), [3, 1], [4], [0, 2]) == [[[1, 2], []], [[]], [[], [1]]]


def test_branches_begin_where_the_first_tokens_are_most_uncertain():
    """A turn is a branch point where fewer than half of the others' turns are more uncertain."""
    entropies = [[[9.0, 0.6, 0.9], [9.0, 0.5]], [[9.0, 0.7], [9.0]]]
    rule = credit(at=UNCERTAIN)
    assert points(rule, [3, 2], [2, 1], entropies=entropies) == [[[2], []], [[1], []]]
    both = [group([0, 0], [2, 2], num_tokens=3)]
    wide = [[np.array([9, 9, 9, 0, 1, 9.0]), np.array([9, 9, 9, 0.4, 0.4, 0])]]
    assert rule.points(both, wide) == [[[], [1]]]
    assert credit(at=UNCERTAIN | {"tokens": 2}).points(both, wide) == [[[1], []]]


def test_whether_a_turn_is_a_point_depends_on_no_other_turn_of_its_episode():
    rng, rule = np.random.default_rng(2), credit(at=UNCERTAIN | {"share": 0.3})
    for _ in range(100):
        entropies = [[rng.random(4).tolist() for _ in range(3)] for _ in range(2)]
        before = points(rule, [4] * 3, [4] * 3, entropies=entropies)
        entropies[0][1] = [*entropies[0][1][:2], *rng.random(2)]
        after = points(rule, [4] * 3, [4] * 3, entropies=entropies)
        assert (1 in before[0][1]) == (1 in after[0][1])


def test_about_the_share_of_turns_are_points():
    rng, rule = np.random.default_rng(3), credit(at=UNCERTAIN | {"share": 0.3})
    entropies = [[rng.random(4).tolist() for _ in range(8)] for _ in range(16)]
    found = points(rule, *[[4] * 8] * 16, entropies=entropies)
    assert sum(len(own) for of_group in found for own in of_group) == pytest.approx(0.3 * 3 * 128, abs=4)


# -- the expected gradient, enumerated


def entropies_of(members):
    """In nats, before each turn of one token."""

    def entropy(start, end):
        probabilities = np.exp(LOGITS[start:end]) / np.exp(LOGITS[start:end]).sum()
        return -float(probabilities @ np.log(probabilities))

    of_state = {"after ()": entropy(0, 3), "after (1,)": entropy(3, 5), "after (2,)": entropy(5, 7)}
    return [[np.array([of_state[turn.state] for turn in way.turns]) for way in members]]


def played_on(way, num, *, lost):
    """Probability and value of each outcome of `num` branches from the second turn, each of which
    is lost with probability `lost`."""
    same = [one for one in ways() if one.turns[1:] and one.turns[1].state == way.turns[1].state]
    total = sum(one.probability for one in same)
    each = [((1 - lost) * one.probability / total, one.reward) for one in same] + [(lost, None)] * (lost > 0)
    for branches in itertools.product(each, repeat=num):
        kept = [reward for _, reward in branches if reward is not None]
        yield math.prod(chance for chance, _ in branches), np.mean(kept) if kept else NAN


def expected(size, rule, *, lost=0.0):
    def advantages(members):
        own = group_of(members)
        [found] = rule.points([own], entropies_of(members))
        outcomes = [
            list(played_on(way, rule.branches, lost=lost)) if at else [(1.0, NAN)]
            for way, at in zip(members, found, strict=True)
        ]
        total = [np.zeros(len(way.turns)) for way in members]
        for chosen in itertools.product(*outcomes):
            values = [[NAN, value][: len(way.turns)] for way, (_, value) in zip(members, chosen, strict=True)]
            [of_group] = credited(rule, (own, values))
            for place, numbers in enumerate(of_group):
                total[place] += math.prod(chance for chance, _ in chosen) * np.array(numbers)
        return total

    return expected_of_ways(size, advantages)


@pytest.mark.parametrize(
    ("size", "knobs", "lost"),
    [
        (2, {"branches": 1}, 0.0),
        (2, {"branches": 2}, 0.0),
        (3, {"branches": 1}, 0.0),
        (2, {"branches": 2}, 0.25),
        (2, {"branches": 1, "at": UNCERTAIN}, 0.0),
        (3, {"branches": 1, "at": UNCERTAIN | {"share": 0.4}}, 0.0),
    ],
    ids=["one", "two", "groups of three", "some lost", "where uncertain", "where uncertain, of three"],
)
def test_the_expected_gradient_is_the_true_one_however_few_the_branches(size, knobs, lost):
    np.testing.assert_allclose(expected(size, credit(**knobs), lost=lost), true_gradient(), atol=1e-9)


def test_under_the_groups_own_mean_first_turns_alone_would_count_for_less(monkeypatch):
    monkeypatch.setattr(LeaveOneOut, "of_group", lambda _, *both: GroupMean(type="group_mean").of_group(*both))
    of_first = sum_over_ways(lambda way, turn: way.reward if turn == 0 else 0.0)
    np.testing.assert_allclose(expected(2, credit(branches=1)), true_gradient() - of_first / 2, atol=1e-9)


# -- the branches of a step


def recorded(seed, num_turns=3, reward=0.0, **changes):
    """Two tokens are read and two written in each turn; the last has no room for a token."""
    turns = (*(RecordedTurn(2, 2, 0, None) for _ in range(num_turns)), RecordedTurn(0, 0, 0, None))
    ids = list(range(4 * num_turns))
    one = Trajectory("t", (), StopReason.TOKEN_LIMIT, seed, 0, ids, [0, 0, 1, 1] * num_turns, [0.0] * len(ids))
    return ScoredEpisode(replace(one, turns=turns, reward=reward, **changes))


class Branches:
    """Plays one turn more than is given; branch i earns i, every `lost`-th is lost where it
    begins."""

    def __init__(self, lost=1000):
        self.forks, self._lost = [], lost

    def __call__(self, forks):
        self.forks += forks
        return [self._branch(number, fork) for number, fork in enumerate(forks)]

    def _branch(self, number, fork):
        if number % self._lost == self._lost - 1:
            return recorded(0, fork.at - 1, 9.0, stop_reason=StopReason.ENGINE_LOST)
        return recorded(0, fork.at, float(number))


def played(groups, play, rule=None, **place):
    return play_branches(groups, rule or credit(), play, entropies=None, **{"seed": 1, "step": 4} | place)


def two_groups(**changes):
    return [
        EpisodeGroup(word_task(4, 9), [recorded(1, 3), recorded(2, 1), recorded(3, 2, **changes)]),
        EpisodeGroup(word_task(5, 9), [recorded(4, 2), recorded(5, 2, stop_reason=StopReason.ENGINE_LOST)]),
    ]


def test_a_step_plays_its_branches_at_once_and_takes_means_of_those_that_were_not_lost():
    play = Branches(lost=4)
    found = played(two_groups(), play)
    assert [(fork.task.task_id, fork.at) for fork in play.forks] == [("4 9", at) for at in (2, 2, 3, 3, 2, 2)]
    # rewards 0, 1 | 2, lost | 4, 5; a group of one is not played on
    np.testing.assert_equal(
        [[own.tolist() for own in of_group] for of_group in found.values],
        [[[NAN, 0.5, 2.0], [NAN], [NAN, 4.5]], [[NAN, NAN]]],
    )
    assert (found.num_played, found.num_lost, found.num_tokens) == (6, 1, 5 * 2)


def test_where_all_branches_of_a_turn_are_lost_it_has_no_value():
    found = played(two_groups(), Branches(lost=1))
    assert np.isnan(np.concatenate([own for of_group in found.values for own in of_group])).all()
    assert (found.num_lost, found.num_tokens) == (6, 0)


def test_an_episode_whose_program_left_conversations_is_not_played_on():
    play = Branches()
    played(two_groups(num_forks=1), play)
    assert {fork.trajectory.token_ids[-1] for fork in play.forks} == {11}
    silent = Branches()
    assert played([EpisodeGroup(word_task(4, 9), [recorded(1, 1), recorded(2, 1)])], silent).num_played == 0
    assert silent.forks == []


def test_seeds_are_of_the_step_and_no_two_are_one():
    def seeds(**place):
        play = Branches()
        played(two_groups(), play, credit(branches=50), **place)
        return [fork.trajectory.seed for fork in play.forks]

    assert seeds() == seeds()
    assert len(set(seeds())) == 150
    assert not set(seeds()) & (set(seeds(step=5)) | set(seeds(seed=2)))
    assert all(0 <= one < 2**32 for one in seeds())


# -- played by an engine in a world


class Opened(EachAlone):
    """A point for an open lock, none for a shut one."""

    def score(self, trajectory, task):
        return trajectory if trajectory.is_aborted else replace(trajectory, reward=float(trajectory.is_success))


def lock_source(script):
    codec = WordCodec()
    tries = {seed: [[*codec.ids(line), 0] for line in lines] for seed, lines in script.items()}
    sampler = EpisodeSampler(
        None, codec, domain=LockDomain(), reward=Opened(), limits=limits_of(4, 8, 60), temperature=1.0
    )
    sampler._engine = ScriptedEngine(tries)
    return PolicyEpisodes(sampler)


def attempt(code):
    return f"call try_code {arguments_of(code)}"


def lock_branches(source, num_groups=1):
    """The values of a step of episodes that try 111, 222 and stop."""
    groups = []
    for number in range(num_groups):
        task = lock_task(f"t{number}")
        groups.append(EpisodeGroup(task, source.run([task] * 2, [1, 2])))
    with RolloutSchedule(source) as rollouts:
        return play_branches(groups, credit(), rollouts.play_on, entropies=None, seed=1, step=0)


def test_branches_are_played_by_the_engine_behind_the_recorded_tokens_and_are_scored(monkeypatch):
    monkeypatch.setattr("posttrain.train.online.branches.episode_seeds", lambda *_, count: [10])
    # from the second turn on one of two opens, from the third on both; the other episode says done
    script = {1: [attempt("111"), attempt("222"), "done"], 2: ["done"]}
    script |= {10: [attempt("123"), "done"], 11: ["done"], 12: [attempt("123"), "done"], 13: [attempt("123"), "done"]}
    source = lock_source(script)
    found = lock_branches(source)
    np.testing.assert_equal([own.tolist() for own in found.values[0]], [[NAN, 0.5, 1.0], [NAN]])
    written = [len(source._sampler.codec.ids(line)) + 1 for seed in range(10, 14) for line in script[seed]]
    assert (found.num_played, found.num_lost, found.num_tokens) == (4, 0, sum(written))


def test_a_branch_whose_world_answers_otherwise_is_lost_alone_and_nothing_is_written(monkeypatch):
    monkeypatch.setattr("posttrain.train.online.branches.episode_seeds", lambda *_, count: [10])
    source = lock_source({1: [attempt("111"), attempt("222"), "done"], 2: ["done"], 10: ["done"], 11: ["done"]})
    domain, open_world = source._sampler.domain, source._sampler.domain.open

    def opened(task):
        """After two episodes and two branches worlds count tries from 5 on."""
        world = open_world(task)
        domain.num_opened = getattr(domain, "num_opened", 0) + 1
        world.num_tries = 5 * (domain.num_opened > 4)
        return world

    monkeypatch.setattr(domain, "open", opened)
    found = lock_branches(source)
    np.testing.assert_equal([own.tolist() for own in found.values[0]], [[NAN, 0.0, NAN], [NAN]])
    assert (found.num_played, found.num_lost, found.num_tokens) == (4, 2, 4)


LOST, DIFFERING, KEPT = (
    recorded(0, stop_reason=reason) for reason in (StopReason.ENGINE_LOST, StopReason.TOOL_FAILED, StopReason.DONE)
)


@pytest.mark.parametrize(("there", "is_refused"), [(LOST, True), (DIFFERING, False), (KEPT, False)])
def test_branches_are_shared_out_and_those_that_engines_lost_are_judged_over_all(monkeypatch, there, is_refused):
    for name, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for module in (generator, distributed):
        monkeypatch.setattr(module, "gather", lambda own: [[there] * 3, own])
    seen = []

    class Source:
        is_elsewhere = False
        refuse_many_aborted = lock_source({}).refuse_many_aborted

        def refresh(self):
            seen.append("refresh")

        def sleep(self):
            seen.append("sleep")

        def play_on(self, forks):
            seen.append(len(forks))
            return [KEPT] * len(forks)

    forks = [SimpleNamespace()] * 7
    with RolloutSchedule(Source()) as rollouts:
        if is_refused:
            with pytest.raises(Interrupted, match="3 of 7 episodes were aborted"):
                rollouts.play_on(forks)
        else:
            assert len(rollouts.play_on(forks)) == 7
    assert seen == ["refresh", 4, "sleep"]


# -- in a training


def test_with_adapters_branches_teach_a_step_of_equal_rewards(tmp_path, monkeypatch):
    """All episodes earn 1/4 and branches what they are worth."""

    def play(model, task, seed, *, given=()):
        found = play_words(model, task, seed, given=given)
        return found if given else replace(found, trajectory=replace(found.trajectory, reward=0.25))

    monkeypatch.setattr("tiny_runs.play_words", play)
    values = {"type": "branch_values", "branches": 2, "at": {"type": "turns"}, "scale": NONE}
    model = tiny_adapted_model()
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    _, [line] = run_here("online", tmp_path, model, max_steps=1, tasks_per_step=4, credit=values)
    assert (line["frac_reward_zero_std"], line["updates"]) == (1.0, 1)
    assert line["frac_tokens_nonzero_advantage"] > 0
    changed = [name for name, weights in model.state_dict().items() if not weights.equal(before[name])]
    assert changed
    assert all("lora" in name for name in changed)
