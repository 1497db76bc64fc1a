"""Policies of the two roles of an episode (`agent.worker`): the model that is trained or evaluated,
or other weights, which are frozen and whose tokens are no rows of it."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.engines.choice import NUM_SLOTS
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.params import AgentParams, EndpointModel, FolderWeights
from posttrain.rollout.policy import Policy, TokenPolicy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Trajectory


class RolePolicy:
    """Has the policy of an episode's role write its messages, and `own` those of all others."""

    def __init__(self, own: Policy, others: Mapping[str, Policy]) -> None:
        self._own, self._others = own, others

    async def reply(self, episode: Episode) -> Reply:
        return await self._of(episode).reply(episode)

    def release(self, episode: Episode) -> None:
        self._of(episode).release(episode)

    def _of(self, episode: Episode) -> Policy:
        return self._others.get(episode.role, self._own)


class OtherPlayers:
    """Policies of the roles that other weights play, which are loaded once and in this process."""

    def __init__(self, limits: AgentParams) -> None:
        self._limits = limits
        self._players = limits.worker.others if limits.worker is not None else {}
        self._loaded: dict[str, TokenPolicy] = {}

    @property
    def roles(self) -> Collection[str]:
        return self._players.keys()

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


def without_tokens_of(trajectory: Trajectory, roles: Collection[str]) -> Trajectory:
    """The record without the tokens that these roles read and wrote; their turns keep the counts.
    The first window, which is the planner's, stays, and may be empty."""
    windows = list(zip(trajectory.roles, trajectory.windows, strict=True))
    if not any(role in roles for role, _ in windows):
        return trajectory
    (first, _), *_ = windows
    kept = [(role, part) for role, part in windows if role not in roles]
    parts = [part for _, part in kept]
    lengths = [part.stop - part.start for part in parts]
    if first in roles:
        kept, lengths = [(first, slice(0)), *kept], [0, *lengths]
    starts = [sum(lengths[:place]) for place in range(1, len(lengths))]
    token_ids, mask, logprobs = (
        tuple(chain.from_iterable(column[part] for part in parts))
        for column in (trajectory.token_ids, trajectory.mask, trajectory.logprobs)
    )
    found = replace(trajectory, token_ids=token_ids, mask=mask, logprobs=logprobs, window_starts=tuple(starts))
    return replace(found, window_roles=tuple(role for role, _ in kept) if starts else ())
