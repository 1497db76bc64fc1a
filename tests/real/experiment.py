"""The default run's experiment as the suites of real components play it: its SFT model, tasks,
world, reward and learning online, through any engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.vllm_process import REPOSITORY
from posttrain.config.params import load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.loading import load_codec, load_model
from posttrain.models.params import OptimizerParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.rollout.policy import Policy
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.online.learning import PolicyEpisodes
from posttrain.train.online.loop import train_online
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.resumable_trainer import open_run
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import make_domain, score_names
from tests.real.plays import played


class Experiment:
    """`sft` is the model's folder."""

    def __init__(self, sft: Path) -> None:
        self.params = load_params(REPOSITORY / "params.yaml")
        self._sft, self._codec, self._domain = sft, load_codec(sft), make_domain(self.params.world)

    def model(self) -> Any:
        return load_model(self._sft, dtype="float32")

    def tasks(self, split: str) -> list[Task]:
        return read_tasks(REPOSITORY / "data/raw/tasks.parquet", split)

    def sampler(self, model: Any, *, temperature: float = 1.0) -> EpisodeSampler:
        """Its engine is the one that the environment names now."""
        reward = load_reward(self.params.reward, score_names(self._domain))
        return EpisodeSampler(
            model, self._codec, domain=self._domain, reward=reward, limits=self.params.agent, temperature=temperature
        )

    def greedy(self, model: Any, tasks: Sequence[Task]) -> list[Trajectory]:
        return self.sampler(model, temperature=0.0).sample(
            tasks, episode_seeds(Stream.MEASUREMENT, 1, count=len(tasks))
        )

    def played(self, policy: Policy, tasks: Sequence[Task]) -> list[Trajectory]:
        return played(policy, tasks, self._domain, self.params)

    def train(self, model: Any, folder: Path, *, num_steps: int, lr: float) -> list[dict[str, Any]]:
        """Online as the default run learns, but for the arguments; the metrics of each step."""
        train_policy = self.params.train_policy
        sampler = self.sampler(model, temperature=train_policy.algorithm.temperature)
        with open_run(folder) as run:
            train_online(
                model,
                self._codec.tokenizer,
                TrainingInputs(self.tasks("rl"), PolicyEpisodes(sampler)),
                params=train_policy.algorithm.model_copy(update={"max_steps": num_steps}),
                max_context_tokens=self.params.agent.max_context_tokens,
                optimizer_params=OptimizerParams(lr=lr, optimizer=train_policy.optimizer),
                checkpoint_every_steps=1000,
                seed=self.params.seed,
                run=run,
            )
        return read_metrics(folder / "metrics.jsonl")


def success(played: Sequence[Trajectory]) -> float:
    return sum(one.is_success for one in played) / len(played)


@torch.no_grad()
def worst_gap(model: Any, played: Sequence[Trajectory]) -> float:
    """Largest distance of the recorded log-probabilities from a full forward of the model."""
    gaps = []
    for one in played:
        ids = torch.tensor([one.token_ids])
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[:, 0]
        written = torch.tensor(one.mask[1:]).bool()
        gaps.append(float((logprobs - torch.tensor(one.logprobs[1:]))[written].abs().max()))
    return max(gaps)
