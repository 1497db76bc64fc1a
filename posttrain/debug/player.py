"""Players: who goes on with a recorded episode, in the world that it was played in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.models.token_logprobs import agent_scores
from posttrain.rollout.engines.choice import make_engine
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episode_sampler import check_prompts
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.rollout.params import AgentParams
from posttrain.rollout.play_on import Branch, Fork, ToolMode, play_on
from posttrain.rollout.policy import Policy, TokenPolicy, expert_policy
from posttrain.runtime.endpoint_limits import account_of
from posttrain.types import StopReason, Task, Trajectory
from posttrain.worlds.catalog import require_expert
from posttrain.worlds.protocol import DescribedWorld, Domain


@dataclass(frozen=True, slots=True)
class Player:
    """`name` is the folder of a model, or `expert`; `policy_at` gives the policy at a temperature.
    `codec` is None for one that needs no tokens. `entropies` gives the model's entropy at each of
    an episode's tokens, in nats (0 at the first). `progress` is told of the plays that have ended,
    and of how many there are. `score` gives an episode its reward, where there is one."""

    name: str
    domain: Domain
    limits: AgentParams
    policy_at: Callable[[float], Policy]
    codec: ChatCodec | None = None
    entropies: Callable[[Sequence[int]], list[float]] | None = None
    progress: Callable[[int, int], None] | None = None
    score: Callable[[Trajectory, Task], Trajectory] = lambda episode, _: episode

    def branches(
        self,
        forks: Sequence[Fork],
        *,
        temperature: float = 1.0,
        tools: ToolMode = "live",
        allow_differences: bool = False,
        max_turns: int | None = None,
    ) -> list[Branch]:
        """Play the forks on, each to its end or at most to turn `max_turns`."""
        limits = self.limits if max_turns is None else self.limits.model_copy(update={"max_turns": max_turns})
        return play_on(
            forks,
            self.policy_at(temperature),
            domain=self.domain,
            limits=limits.model_copy(update={"max_aborted_frac": 1.0}),
            codec=self.codec,
            tools=tools,
            differing="allow" if allow_differences else "refuse",
            progress=self.progress,
        )

    def world_state(self, fork: Fork) -> str:
        """What the world shows of its state before the turn; empty where it shows none."""
        look = _Look()
        limits = self.limits.model_copy(update={"max_aborted_frac": 1.0})
        play_on([replace(fork, message=None, num=1, seed=None)], look, domain=self.domain, limits=limits)
        return look.state


class _Look:
    """Asks the world for its state in place of a reply, and ends the episode."""

    state = ""

    async def reply(self, episode: Episode) -> Reply:
        if isinstance(episode.world, DescribedWorld):
            self.state = episode.world.describe()
        return Reply(None, StopReason.TOKEN_LIMIT)

    def release(self, episode: Episode) -> None: ...


def model_player(model: Path, domain: Domain, limits: AgentParams) -> Player:
    """A model by its folder. Raises ConfigurationError where it cannot be loaded."""
    codec, network = load_codec(model), load_model(model).eval()
    engine = make_engine(
        network,
        max_context_tokens=limits.max_context_tokens,
        check_prompts=lambda: check_prompts(codec, domain),
        stop_ids=codec.stop_ids,
    )

    def entropies(token_ids: Sequence[int]) -> list[float]:
        ids = torch.tensor([list(token_ids)], device=network.device)
        with torch.no_grad():
            found = agent_scores(network, ids, ids, with_entropies=True).entropies
        assert found is not None
        return [0.0, *found[0].tolist()]

    return Player(str(model), domain, limits, lambda at: TokenPolicy(engine, codec, temperature=at), codec, entropies)


def endpoint_player(model: str, domain: Domain, limits: AgentParams) -> Player:
    """A model of the OpenAI-compatible endpoint that the environment names."""
    account = account_of("POSTTRAIN_OPENAI")

    def policy_at(temperature: float) -> Policy:
        return OpenAiPolicy(model, temperature=temperature, max_new_tokens=limits.max_new_tokens, account=account)

    return Player(model, domain, limits, policy_at)


def expert_player(domain: Domain, limits: AgentParams) -> Player:
    """The world's flawless expert. Raises ConfigurationError where it has none."""
    expert = require_expert(domain, needed_by="an expert that plays on")
    return Player("expert", domain, limits, lambda _: expert_policy(expert, is_flawless=True, reasoning_frac=0.0))
