"""Agent loop of verl (0.9) that plays an exported world: our own conversation, tools and grade,
with verl's servers as the engine. Trained on are the tokens that were sampled; nothing is tokenised
twice. It is imported by verl, in an environment that has both packages."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import getrandbits
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from posttrain.export.world_folder import ExportedWorld, load_exported
from posttrain.models.codec import ChatCodec
from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest, Generation
from posttrain.rollout.episodes import run_beside
from posttrain.rollout.policy import TokenPolicy
from posttrain.runtime.exits import Interrupted
from posttrain.types import Task, Trajectory

NUM_TRIES = 3  # of an episode whose server, tool or world broke


@cache
def _world(folder: str) -> ExportedWorld:
    return load_exported(Path(folder))


@cache
def _tasks(folder: str, split: Any) -> list[Task]:
    return _world(folder).tasks(split)


class WorldAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is not in our environment
    """Plays the world exported to `folder`. A row's `extra_info` has the split and index of its
    task."""

    def __init__(self, *args: Any, folder: str, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "hf_model_type": None})  # verl's own tokeniser is not used
        self._folder = folder

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the row's task. Raises Interrupted where it was lost at each of `NUM_TRIES`: verl
        has no place for an episode without a reward."""
        world, place = _world(self._folder), row["extra_info"]
        task = _tasks(self._folder, place["split"])[int(place["index"])]
        for _ in range(NUM_TRIES):
            played = world.reward.score(await self._play(world, task, sampling_params), task)
            if played.reward is not None:
                return _as_output(played, played.reward)
        raise Interrupted(f"task {task.task_id} was lost {NUM_TRIES} times; the last time: {played.failure}")

    async def _play(self, world: ExportedWorld, task: Task, sampling_params: Mapping[str, Any]) -> Trajectory:
        engine = VerlEngine(self.server_manager, sampling_params)
        policy = TokenPolicy(engine, ChatCodec(self.tokenizer), temperature=float(sampling_params["temperature"]))
        limits = world.limits.model_copy(update={"max_aborted_frac": 1.0})
        [played] = await run_beside(policy, [task], domain=world.domain, limits=limits, seeds=[getrandbits(31)])
        return played


class VerlEngine:
    """verl's servers as an engine of ours; they draw by their own seeds."""

    def __init__(self, servers: Any, sampling_params: Mapping[str, Any]) -> None:
        self._servers, self._params, self._request_id = servers, sampling_params, uuid4().hex
        self.policy_version = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        limits = {"max_tokens": request.max_new_tokens, "stop_token_ids": sorted(request.stop_ids)}
        written = await self._servers.generate(
            request_id=self._request_id,  # one for all turns: the server keeps what it has read
            prompt_ids=list(request.token_ids),
            sampling_params={**self._params, **limits, "temperature": request.temperature},
        )
        if written.stop_reason == "aborted" or not written.token_ids:
            raise EngineFailed(f"verl's server wrote nothing (stop_reason {written.stop_reason})")
        self.policy_version = int(written.extra_fields.get("global_steps") or self.policy_version)
        ids = list(written.token_ids)
        logprobs = list(written.log_probs or [0.0] * len(ids))
        finish = "stop" if ids[-1] in request.stop_ids else "length"
        return Generation(ids, logprobs, finish, self.policy_version)  # type: ignore[arg-type]

    def release(self, episode_id: str) -> None:
        """Nothing is held here."""

    def refresh_weights(self) -> None:
        """verl does."""

    def sleep(self) -> None:
        """verl does."""


def _as_output(played: Trajectory, reward: float) -> AgentLoopOutput:
    begin = list(played.mask).index(1)
    return AgentLoopOutput(
        prompt_ids=list(played.token_ids[:begin]),
        response_ids=list(played.token_ids[begin:]),
        response_mask=list(played.mask[begin:]),
        response_logprobs=list(played.logprobs[begin:]),
        reward_score=reward,
        num_turns=len(played.messages),
        metrics=AgentLoopMetrics(
            generate_sequences=sum(turn.latency_s for turn in played.turns),
            tool_calls=sum(run.latency_s for turn in played.turns for run in turn.tool_runs),
        ),
        extra_fields={
            "turn_scores": [],
            "tool_rewards": [],
            "reward_extra_info": {"success": float(played.is_success)},
        },
    )
