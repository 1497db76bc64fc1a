"""The agent loop of a world whose episodes are run by a program of its own, such as an environment
of verifiers: the program asks an endpoint on this machine, behind which the policy writes."""

from collections.abc import Sequence
from typing import Protocol, cast

from posttrain.rollout.agents.openai_proxy import Proxy
from posttrain.rollout.agents.program import AgentHost, run_program
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.types import Message, StopReason

_PROXY = Proxy()


class ProgramWorld(Protocol):
    """A world with such a program."""

    async def run(self, base_url: str, api_key: str, max_turns: int) -> None:
        """Returns when the episode is over."""
        ...


async def loop(episode: Episode, policy: Policy) -> StopReason:
    """The stop reason of the program's episode."""

    async def program(host: AgentHost, messages: Sequence[Message]) -> None:
        del messages  # the program has its own
        async with _PROXY.serve(host) as (base_url, api_key):
            await cast(ProgramWorld, episode.world).run(base_url, api_key, episode.limits.max_turns)

    return await run_program(episode, policy, program)
