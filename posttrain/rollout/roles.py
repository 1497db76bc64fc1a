"""Policies of the two roles of an episode (`agent.worker`): the model that is trained or evaluated,
or other weights, which are frozen and whose tokens are no rows of it."""

from collections.abc import Mapping
from pathlib import Path

from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.engines.choice import NUM_SLOTS
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.params import AgentParams, EndpointModel, FolderWeights
from posttrain.rollout.policy import Policy, TokenPolicy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import PLANNER, WORKER


class RolePolicy:
    """Has the policy of an episode's role write its messages, and `own` those of all others."""

    def __init__(self, own: Policy, others: Mapping[str, Policy]) -> None:
        self._own, self._others = own, others

    async def reply(self, episode: Episode) -> Reply:
        return await self._of(episode).reply(episode)

    def release(self, episode: Episode) -> None:
        self._of(episode).release(episode)

    def _of(self, episode: Episode) -> Policy:
        return self._others.get(PLANNER if episode.parent is None else WORKER, self._own)


class OtherPlayers:
    """Policies of the roles that other weights play, which are loaded once and in this process."""

    def __init__(self, limits: AgentParams) -> None:
        self._limits = limits
        self._players = limits.worker.others if limits.worker is not None else {}
        self._loaded: dict[str, TokenPolicy] = {}

    def with_own(self, own: Policy, *, temperature: float) -> Policy:
        """A policy of all roles. Raises ConfigurationError where there is no such folder or key."""
        others = {role: self._policy(role, player, temperature) for role, player in self._players.items()}
        return RolePolicy(own, others) if others else own

    def _policy(self, role: str, player: FolderWeights | EndpointModel, temperature: float) -> Policy:
        match player:
            case EndpointModel(model=model):
                return OpenAiPolicy(model, temperature=temperature, max_new_tokens=self._limits.max_new_tokens)
            case FolderWeights(path=path):
                if role not in self._loaded:
                    self._loaded[role] = _of_folder(role, Path(path), self._limits.max_context_tokens)
                return self._loaded[role].at(temperature)


def _of_folder(role: str, folder: Path, max_context_tokens: int) -> TokenPolicy:
    if not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"agent.worker.{role}.path is {folder}, where there is no model: copy the policy of another run there, and "
            "`dvc add` it"
        )
    engine = TorchEngine(load_model(folder), num_slots=NUM_SLOTS, max_context_tokens=max_context_tokens)
    return TokenPolicy(engine, load_codec(folder), temperature=0.0)
