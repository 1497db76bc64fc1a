"""Retries of failed episodes behind a reflection that the policy writes (Reflect, Retry, Reward,
arXiv 2505.24726).

The reflection and the retry are episodes of their own: behind the failed try a user asks what went
wrong, and the agent's next message is the reflection; then the user repeats the question, and the
agent plays in a fresh world, which grades what follows alone. All that stands before is read as a
world's opening, by any agent and any policy. Afterwards the failed try and the reflection are taken
out of the retry (context distillation, arXiv 2209.15189).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import isawaitable

from posttrain.rollout.conversation import bounded
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import Policy
from posttrain.types import Message, Outcome, ScoredEpisode, StopReason, Task, Trajectory
from posttrain.worlds.protocol import ClosableWorld, Domain, EndingWorld, OpeningWorld, World


@dataclass(frozen=True, slots=True)
class RetryTask(Task):
    """A task that failed. `behind`: what follows the task's own messages before the agent writes.
    `is_reflection`: the episode is one message, and its grade says nothing."""

    behind: tuple[Message, ...] = ()
    is_reflection: bool = False


def reflect_and_retry(
    play: Callable[[Sequence[RetryTask]], Sequence[ScoredEpisode]],
    failed: Sequence[tuple[Task, Trajectory]],
    prompt: str,
) -> tuple[list[ScoredEpisode], list[ScoredEpisode]]:
    """For each failed episode a reflection, which the user's `prompt` asks for, and a retry as
    `distilled` gives it. `play` gives an episode of each task in worlds of a `RetryDomain`."""
    if not failed:
        return [], []
    asked = [Message("user", prompt)]
    reflections = play([_behind(task, one, asked, is_reflection=True) for task, one in failed])
    again = [
        # the user repeats the question; the system message stands once
        _behind(task, one.trajectory, [message for message in task.messages if message.role != "system"])
        for (task, _), one in zip(failed, reflections, strict=True)
    ]
    retries = [
        replace(one, trajectory=distilled(one.trajectory, task, before))
        for one, (task, before) in zip(play(again), failed, strict=True)
    ]
    return [*reflections], retries


def is_failed(one: ScoredEpisode) -> bool:
    return not one.is_success and not one.is_aborted


def distilled(retry: Trajectory, task: Task, failed: Trajectory) -> Trajectory:
    """The retry as if the task had been played so at once: its own turns behind the prompt of the
    failed episode. Log-probabilities stay those of the longer context. The retry as it was played
    where an agent's program had opened the two conversations in another way."""
    begin, end = (one.turns[0].message_index if one.turns else None for one in (failed, retry))
    if begin is None or end is None:
        return retry
    own = _without(retry, len(task.messages), end - begin)
    if own.messages[:begin] != failed.messages[:begin]:
        return retry
    num_old, num_new = retry.turns[0].num_read, failed.turns[0].num_read
    return replace(
        own,
        turns=(replace(own.turns[0], num_read=num_new), *own.turns[1:]),
        token_ids=(*failed.token_ids[:num_new], *retry.token_ids[num_old:]),
        mask=(*[0] * num_new, *retry.mask[num_old:]),
        logprobs=(*[0.0] * num_new, *retry.logprobs[num_old:]),
    )


async def one_message(episode: Episode, policy: Policy) -> StopReason:
    """The agent loop of a reflection; its calls are not run."""
    reply = await policy.reply(episode)
    episode.add_reply(reply)
    return reply.stop or StopReason.DONE


class RetryDomain:
    """A domain that also opens the worlds of reflections and retries."""

    def __init__(self, domain: Domain) -> None:
        self.name, self.tools, self.tasks, self._domain = domain.name, domain.tools, domain.tasks, domain

    def open(self, task: Task) -> World:
        world = self._domain.open(task)
        return _RetryWorld(task, world) if isinstance(task, RetryTask) else world


class _RetryWorld:
    """The task's own world behind a failed try, of which it reads nothing."""

    def __init__(self, task: RetryTask, world: World) -> None:
        self._task, self._world = task, world
        self.tools, self.user_reply = world.tools, world.user_reply

    async def opening(self) -> Sequence[Message]:
        own = () if self._task.is_reflection or not isinstance(self._world, OpeningWorld) else self._world.opening()
        return (*self._task.behind, *(await own if isawaitable(own) else own))

    def is_over(self) -> bool:
        return isinstance(self._world, EndingWorld) and self._world.is_over()

    async def grade(self, trajectory: Trajectory) -> Outcome:
        outcome = self._world.grade(_without(trajectory, len(self._task.messages), len(self._task.behind)))
        return await outcome if isawaitable(outcome) else outcome

    async def close(self) -> None:
        if isinstance(self._world, ClosableWorld):
            await self._world.close()


def _behind(task: Task, played: Trajectory, said: Sequence[Message], *, is_reflection: bool = False) -> RetryTask:
    """The task behind all of `played` and what is `said` then."""
    own = {field.name: getattr(task, field.name) for field in fields(Task)}
    behind = map(bounded, (*played.messages[len(task.messages) :], *said))
    if is_reflection:
        own["agent_name"] = f"{__name__}:{one_message.__name__}"
    return RetryTask(**own, behind=tuple(behind), is_reflection=is_reflection)


def _without(trajectory: Trajectory, start: int, num: int) -> Trajectory:
    """The trajectory without `num` messages from `start` on, which stand before its first turn."""
    messages = (*trajectory.messages[:start], *trajectory.messages[start + num :])
    places = [None if turn.message_index is None else turn.message_index - num for turn in trajectory.turns]
    turns = [replace(turn, message_index=place) for turn, place in zip(trajectory.turns, places, strict=True)]
    return replace(trajectory, messages=messages, turns=tuple(turns))
