"""Episodes of a planner who says what the expert does and of workers of random weights, to train
both from: the reward is drawn from what the workers wrote, so that groups differ."""

import functools
from dataclasses import replace

import yaml

from posttrain.config.params import load_params
from posttrain.models.params import OptimizerParams
from posttrain.models.scratch import scratch_model
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import TokenPolicy
from posttrain.rollout.roles import RolePolicy
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.roles import RoleWeights, learnt_part
from posttrain.types import WORKER, ScoredEpisode
from tests.rollout.voiced import BOTH, DOMAIN, LIMITS, TASKS, Voiced, codec_of, demonstrations

SHORT = LIMITS.model_copy(
    update={"max_turns": 3, "max_new_tokens": 8, "worker": BOTH.model_copy(update={"max_turns": 2})}
)
codec = functools.cache(lambda: codec_of(demonstrations()))


def make_model():
    section = load_params().model.model_copy(update={"hidden_size": 32, "num_layers": 1, "mlp_size": 32})
    return scratch_model(section, tokenizer=codec().tokenizer, max_context_tokens=SHORT.max_context_tokens, seed=1)


class TwoPolicies:
    is_elsewhere = False

    def __init__(self, model, weights):
        self._engine, self._weights = TorchEngine(model, num_slots=8, max_context_tokens=900), weights
        self.refresh, self.sleep = self._engine.refresh_weights, self._engine.sleep

    def run(self, tasks, seeds, *, prefix_fracs=()):
        policy = RolePolicy(Voiced(codec()), {WORKER: TokenPolicy(self._engine, codec(), temperature=1.0)})
        played = run_episodes(policy, tasks, domain=DOMAIN, limits=SHORT, seeds=seeds)
        return [self._rewarded(one) for one in played]

    def refuse_many_aborted(self, episodes): ...

    def _rewarded(self, one):
        reward = sum(one.token_ids[one.num_own_tokens :]) % 5 / 4
        return ScoredEpisode(learnt_part(replace(one, reward=reward), self._weights))


def run_two_policies(run, model, *, planner=1.0, worker=0.5):
    weights = RoleWeights(planner=planner, worker=worker)
    values = {"type": "online", "max_steps": 4, "tasks_per_step": 2, "group_size": 2, "kl": {"type": "none"}}
    values["dev"] = {"every_steps": 100, "num_tasks": 1, "keep": "last"}
    train_online(
        model,
        codec().tokenizer,
        TrainingInputs(TASKS, TwoPolicies(model, weights), role_weights=weights),
        params=OnlineParams.model_validate(yaml.safe_load(OnlineParams.example) | values),
        max_context_tokens=900,
        optimizer_params=OptimizerParams.model_validate({"optimizer": "muon", "lr": 1e-2}),
        checkpoint_every_steps=2,
        seed=1,
        run=run,
    )
