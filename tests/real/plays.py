"""Plays by whoever answers, scored as the pipeline scores them."""

from collections.abc import Sequence

from posttrain.config.params import Params
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import Policy
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import score_names
from posttrain.worlds.protocol import Domain


def played(policy: Policy, tasks: Sequence[Task], domain: Domain, params: Params) -> list[Trajectory]:
    rule = load_reward(params.reward, score_names(domain))
    plays = run_episodes(policy, tasks, domain=domain, limits=params.agent, seeds=[1] * len(tasks))
    return [rule.score(one, task) for one, task in zip(plays, tasks, strict=True)]
