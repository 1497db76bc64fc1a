"""Environments of gymnasium's toy_text, played by text."""

import json
from collections import deque

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import StopReason
from posttrain.worlds.gymnasium.domain import GymnasiumDomain, action_in, observation_text
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.scripts import ScriptedExpert, say
from posttrain.worlds.text_env import Unreadable
from tests.limits import limits_of

pytestmark = pytest.mark.needs_worlds
WALK = ["left", "down", "right", "up"]


def params_of(**others):
    section = {
        "type": "gymnasium",
        "seed": 7,
        "num_sft_tasks": 10,
        "num_rl_tasks": 10,
        "num_dev_tasks": 10,
        "num_test_tasks": 50,
        "env": "FrozenLake-v1",
        "kwargs": {"is_slippery": False, "render_mode": "ansi"},
        "actions": WALK,
        "observation": "ansi",
        "success_info": "",
        "first_index": {"sft": 0, "rl": 100, "dev": 200, "test": 300},
        "instructions": "Walk to G.",
        "action_format": "text",
        "episode_reward": "sum",
        "success_reward": 1.0,
        "max_observation_chars": 2000,
    }
    return GymnasiumParams.model_validate({**section, **others})


def play(params, make_script, count=1):
    domain = GymnasiumDomain(params)
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(make_script(task)))
    tasks = domain.tasks("test", count)
    return run_episodes(policy, tasks, domain=domain, limits=limits_of(60, 8, 40), seeds=list(range(count)))


def words(*said):
    def script(_):
        for word in said:
            yield say(word)

    return script


def test_a_walk_across_the_frozen_lake_succeeds_and_one_into_a_hole_fails():
    (safe,) = play(params_of(), words("down", "Down", "right", "right", "down", "right"))
    assert (safe.is_strict_success, safe.outcome.reward, safe.stop_reason) == (True, 1.0, StopReason.WORLD_OVER)
    assert "SFFF" in safe.messages[1].content.replace("\x1b[41m", "").replace("\x1b[0m", "")
    (drowned,) = play(params_of(), words("down", "right"))
    assert (drowned.is_success, drowned.outcome.failure) == (False, "low_reward")


def test_another_word_is_answered_and_takes_no_step():
    (one,) = play(params_of(), words("jump", "down", "down", "right", "right", "down", "right"))
    assert one.messages[3].content == "No action was taken: write one of left, down, right, up."
    assert (one.is_success, one.is_strict_success) == (True, False)
    assert one.outcome.turn_scores == (0.0,) * 6 + (1.0,)


def test_fifty_taxis_at_once_each_drive_their_own_way():
    """By the transition table that the environment has; the number observed is its state."""
    import gymnasium

    table = gymnasium.make("Taxi-v4").unwrapped.P

    def route(state):
        """The actions to the reward of 20, breadth first."""
        ways = deque([(state, ())])
        seen = {state}
        while True:
            at, way = ways.popleft()
            for action, ((_, to, reward, _),) in table[at].items():
                if reward == 20:
                    return (*way, action)
                if to not in seen:
                    seen.add(to)
                    ways.append((to, (*way, action)))

    lengths = {}

    def script(task):
        messages = yield say("none of them")
        actions = route(json.loads(messages[1].content))
        lengths[task.task_id] = len(actions)
        for action in actions:
            yield say(str(action))

    section = {"env": "Taxi-v4", "kwargs": {}, "actions": [], "observation": "text", "success_reward": 20.0}
    played = play(params_of(**section), script, 50)
    assert all(one.is_success for one in played)
    assert [one.outcome.reward for one in played] == [20 - (lengths[one.task_id] - 1) for one in played]
    assert len({one.messages[1].content for one in played}) > 20


def test_blackjack_is_dealt_by_the_tasks_seed():
    section = {"env": "Blackjack-v1", "kwargs": {}, "actions": ["stick", "hit"], "observation": "text"}
    played = play(params_of(**section), words("stick"), 50)
    again = play(params_of(**section), words("stick"), 50)
    assert [one.messages for one in played] == [one.messages for one in again]
    assert {one.outcome.reward for one in played} >= {-1.0, 1.0}
    assert [one.is_success for one in played] == [one.outcome.reward >= 1 for one in played]
    assert len(json.loads(played[0].messages[1].content)) == 3


def test_the_environments_own_word_on_success_counts():
    (one,) = play(
        params_of(success_info="prob", success_reward=5.0), words("down", "down", "right", "right", "down", "right")
    )
    assert one.is_success


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"env": "NoSuchLake-v1"}, "cannot be made"),
        ({"env": "no_such_module:Lake-v1"}, "cannot be made"),
        ({"actions": ["left", "right"]}, "2 words"),
        ({"kwargs": {}}, "render_mode"),
        ({"env": "CartPole-v1", "actions": ["left"], "kwargs": {}}, "1 words"),
        ({"env": "Pendulum-v1", "kwargs": {}}, "no message"),
    ],
)
def test_what_cannot_be_played_is_refused(others, why):
    with pytest.raises(ConfigurationError, match=why):
        GymnasiumDomain(params_of(**others))


def test_text_spaces_take_what_they_contain():
    from gymnasium.spaces import Discrete, Text

    assert action_in(Text(5, charset="ab"), "abba", []) == "abba"
    with pytest.raises(Unreadable):
        action_in(Text(5, charset="ab"), "cab", [])
    assert action_in(Discrete(3, start=5), "6", []) == 6
    assert action_in(Discrete(3, start=5), "C", ["a", "b", "c"]) == 7


def test_observations_are_text():
    import numpy as np

    assert observation_text("a room") == "a room"
    assert observation_text((np.int64(14), 10, False)) == "[14, 10, false]"
    assert observation_text({"map": np.eye(2, dtype=int)}) == '{"map": [[1, 0], [0, 1]]}'


@pytest.mark.parametrize("reward", ["float('nan')", "float('inf')", "None", "'1'", "10**400"])
def test_a_reward_that_is_no_number_loses_the_episode_and_not_the_batch(reward):
    import gymnasium

    class Odd(gymnasium.Env):
        action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            self.is_played = True
            return 0, eval(reward) if action else 1.0, True, False, {}

        def close(self):
            if hasattr(self, "is_played"):
                raise OSError("nothing to close")

    gymnasium.register("Odd-v0", Odd, disable_env_checker=True)
    section = {"env": "Odd-v0", "kwargs": {}, "actions": ["well", "odd"], "observation": "text"}
    domain = GymnasiumDomain(params_of(**section))
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(words(["well", "odd"][seed])(task)))
    limits = limits_of(60, 8, 40, max_aborted_frac=0.5)
    well, odd = run_episodes(policy, domain.tasks("test", 2), domain=domain, limits=limits, seeds=[0, 1])
    assert (well.is_success, odd.stop_reason, odd.outcome) == (True, StopReason.TOOL_FAILED, None)
    assert "the environment's reward of a step is" in odd.failure
