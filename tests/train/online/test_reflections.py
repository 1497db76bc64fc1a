"""Groups of reflections, each rewarded as the retry behind it."""

import numpy as np
import pytest
import yaml

from posttrain.rollout.reflection import RetryTask
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.metrics import mean_advantages
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import Sample
from posttrain.types import Message, Outcome, StopReason, Task, Trajectory, Turn

TASKS = [Task(name, "rl", (Message("user", name),), ()) for name in ("easy", "hard") for _ in range(3)]


class Sampler:
    """Plays `easy` right and `hard` wrong; a retry is right where its seed is even. The prompt is
    one token, the answer two."""

    def __init__(self):
        self.played = []

    def sample(self, tasks, seeds, **_):
        self.played.append(list(zip(tasks, seeds, strict=True)))
        return [self.episode(task, seed) for task, seed in zip(tasks, seeds, strict=True)]

    def episode(self, task, seed):
        is_retry = isinstance(task, RetryTask)
        is_won = seed % 2 == 0 if is_retry else task.task_id == "easy"
        opening = (*task.messages, *(task.behind if is_retry else ()))
        messages, turn = (*opening, Message("assistant", str(seed))), Turn(1, 2, 0, len(opening))
        tokens = {"token_ids": (1, 8, 9), "mask": (0, 1, 1), "logprobs": (0.0, -0.5, -0.5), "turns": (turn,)}
        outcome = Outcome(is_won, is_won, turn_scores=(1.0,))
        return Trajectory(
            task.task_id, messages, StopReason.DONE, seed, reward=float(is_won), outcome=outcome, **tokens
        )


def test_only_the_reflections_on_a_failed_try_are_learnt_from_by_the_reward_of_their_retries():
    sampler = Sampler()
    episodes = PolicyEpisodes(sampler, reflect="Why?").run(TASKS, range(6))
    tries, reflections, retries = sampler.played
    assert sorted((task.task_id, seed) for task, seed in tries) == [("easy", 0), ("hard", 3)]
    # all of a group reflect on one try, each with noise of its own, and so does each retry
    assert {task.behind for task, _ in reflections} == {(Message("assistant", "3"), Message("user", "Why?"))}
    assert len({seed for _, seed in (*tries, *reflections, *retries)}) == 8
    easy, hard = episodes[:3], episodes[3:]
    assert [one.rule_reward for one in hard] == [float(seed % 2 == 0) for _, seed in retries]
    assert len({one.is_success for one in hard}) == 2
    said = [str(seed) for _, seed in reflections]
    assert [one.trajectory.messages[-1].content for one in hard] == said
    assert {tuple(one.trajectory.mask) for one in easy} == {(0, 0, 0)}
    assert {tuple(one.trajectory.mask) for one in hard} == {(0, 1, 1)}
    groups = [EpisodeGroup(TASKS[0], easy), EpisodeGroup(TASKS[3], hard)]
    assert [one.has_spread for one in groups] == [False, True]
    samples = [[Sample(one, np.full(sum(one.trajectory.mask), 0.5)) for one in own] for own in (easy, hard)]
    assert mean_advantages(groups, samples) == [0, 0, 0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("change", [{"join": {"type": "edits", "gamma": None}}, {"max_generated_tokens": 1000}])
def test_groups_of_reflections_are_whole_and_without_a_limit_of_tokens(change):
    reflecting = {"retry": {"type": "reflection", "prompt": "Why?"}, "type": "online"}
    values = yaml.safe_load(OnlineParams.example) | reflecting
    assert OnlineParams.model_validate(values).retry.prompt == "Why?"
    with pytest.raises(ValueError, match="retry is reflection"):
        OnlineParams.model_validate(values | change)
