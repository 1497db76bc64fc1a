"""An engine that gives scripted tokens, for tests of everything above an engine."""

from collections.abc import Mapping, Sequence

from posttrain.rollout.engines.protocol import GenerateRequest, Generation


class ScriptedEngine:
    """Gives one list of messages per seed, each cut at the request's `max_new_tokens`, and records
    requests and releases. Raises LookupError for a seed without a script or beyond its end."""

    def __init__(self, messages_by_seed: Mapping[int, Sequence[Sequence[int]]], *, logprob: float = -0.5) -> None:
        self.requests: list[GenerateRequest] = []
        self.released: list[str] = []
        self.policy_version = 0
        self._messages = {seed: list(messages) for seed, messages in messages_by_seed.items()}
        self._logprob = logprob

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        token_ids = list(self._messages[request.seed].pop(0))[: request.max_new_tokens]
        is_stopped = token_ids[-1] in request.stop_ids
        return Generation(
            token_ids, [self._logprob] * len(token_ids), "stop" if is_stopped else "length", self.policy_version
        )

    def release(self, episode_id: str) -> None:
        self.released.append(episode_id)

    def refresh_weights(self) -> None:
        self.policy_version += 1

    def sleep(self) -> None: ...
