"""Rules about played episodes and the outcomes that the world gave them."""

from collections.abc import Sequence

from posttrain.types import Outcome, StopReason, Task, Trajectory
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import REMEDIES, REPEATING, TaskEpisodes
from posttrain.worlds.grading import CONSENT, GENERAL_SCORES
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import CostlyDomain, Domain, ScoringDomain

_NO_EXPERT = "the world has no expert"
_EQUAL = 1e-9  # rewards that differ by less are equal


def only_tool_errors_are_raised(episodes: Sequence[TaskEpisodes]) -> None:
    for one in episodes:
        for trajectory in one.by.values():
            if trajectory.is_aborted and trajectory.stop_reason is not StopReason.AGENT_FAILED:
                raise Broken(
                    f"an episode of {one.task.task_id} was aborted ({trajectory.failure}): start or mend what the "
                    "world needs; what the agent does wrong is a ToolError, and a result is what JSON can hold"
                )


def user_speaks_before_agent(episodes: Sequence[TaskEpisodes]) -> None:
    for one in _played_empty(episodes):
        roles = [message.role for message in one.by["empty"].messages]
        if "user" not in roles[: roles.index("assistant")]:
            raise Broken(
                f"{one.task.task_id} begins without a user's message; "
                "put one into Task.messages, or give the world an opening()"
            )


def expert_succeeds_strictly(episodes: Sequence[TaskEpisodes]) -> None:
    golds = [(one.task, one.gold) for one in episodes if one.gold is not None]
    if not golds:
        raise NotTried(_NO_EXPERT)
    for one in episodes:
        for trajectory in one.by.values():
            if trajectory.stop_reason is StopReason.AGENT_FAILED:
                raise Broken(f"{trajectory.failure}, at {one.task.task_id}; let it play each task to its end")
    if missed := [(task, gold) for task, gold in golds if not gold.is_strict_success]:
        task, gold = missed[0]
        failure = gold.outcome.failure if gold.outcome is not None else gold.failure
        verdict = "a success, and not a strict one" if gold.is_success else f"a failure ({failure})"
        raise Broken(
            f"the flawless episode of {task.task_id} is {verdict}, {_so_many(missed, golds)}; it ends with "
            f"{gold.messages[-1].content[:80]!r}: mend expert or grade"
        )


def expert_earns_one(episodes: Sequence[TaskEpisodes]) -> None:
    golds = [(one.task, one.gold) for one in episodes if one.gold is not None and one.gold.is_strict_success]
    if not golds:
        raise NotTried("no flawless episode strictly succeeded")
    if own := [task for task, gold in golds if gold.outcome is not None and gold.outcome.reward is not None]:
        raise NotTried(f"the world gives rewards of its own, to {own[0].task_id} for one")
    for task, gold in golds:
        if abs(_reward(gold) - 1) > _EQUAL:
            scores = ", ".join(f"{name} {value:g}" for name, value in gold.scores.items())
            raise Broken(
                f"the flawless episode of {task.task_id} earns {gold.reward:g} and not 1 ({scores}); "
                "let each score that is weighted be 1, and each that is punished 0, for a flawless episode"
            )


def empty_is_no_success(episodes: Sequence[TaskEpisodes]) -> None:
    tried = _played_empty(episodes)
    if free := [one for one in tried if one.by["empty"].is_success]:
        raise Broken(
            f"an agent that says nothing succeeds at {free[0].task.task_id}, {_so_many(free, tried)}; "
            "let grade ask for what was to be done, or leave out tasks where that is nothing"
        )


def no_failure_earns_as_a_success(episodes: Sequence[TaskEpisodes]) -> None:
    is_tried = False
    for one in episodes:
        graded = [trajectory for trajectory in one.by.values() if not trajectory.is_aborted]
        won = [_reward(trajectory) for trajectory in graded if trajectory.is_success]
        failed = [_reward(trajectory) for trajectory in graded if not trajectory.is_success]
        is_tried = is_tried or bool(won and failed)
        if won and failed and max(failed) > min(won) - _EQUAL:
            raise Broken(
                f"a failure at {one.task.task_id} earns {max(failed):g}, and a success {min(won):g}; "
                "let Outcome.reward put every success above every failure, or leave it to the scores"
            )
    if not is_tried:
        raise NotTried("no task was both solved and missed")


def adversary_earns_less(name: str, episodes: Sequence[TaskEpisodes]) -> None:
    """Less than the worst strict success of the same task."""
    tried = [
        (one, one.by[name])
        for one in episodes
        if name in one.by and not one.by[name].is_aborted and one.gold is not None and one.gold.is_strict_success
    ]
    if not tried:
        is_played = any(one.gold is not None for one in episodes)
        raise NotTried(f"no episode of an adversary that {name} differs from the expert's" if is_played else _NO_EXPERT)
    if found := [(one, other, worst) for one, other in tried if (worst := _beaten(name, one, other)) is not None]:
        one, other, worst = found[0]
        kind = "strict success" if other.is_strict_success else "success" if other.is_success else "failure"
        raise Broken(
            f"the adversary that {name} earns {_reward(other):g} as a {kind} at {one.task.task_id}, where a strict "
            f"success earns {worst:g}, {_so_many(found, tried)}: {REMEDIES[name]}"
        )


def _beaten(name: str, one: TaskEpisodes, other: Trajectory) -> float | None:
    """The reward of the worst strict success, where the adversary's episode is worth as much."""
    # A demonstration with mistakes may repeat a call, too, and be a strict success.
    every = [one.gold] if other.is_strict_success else [each for each in one.by.values() if each.is_strict_success]
    worst = min(_reward(each) for each in every if each is not None)
    is_free = other.is_strict_success and name != REPEATING  # a repeated call may be what the goal accepts
    return worst if is_free or _reward(other) > worst - _EQUAL else None


def failures_are_named(episodes: Sequence[TaskEpisodes]) -> None:
    """By the world, except where a malformed call or a limit says enough."""
    for task, _, outcome in _graded(episodes):
        if outcome.failure == "goal_not_reached":
            raise Broken(
                f"a failure at {task.task_id} has no class; name what went wrong in Outcome.failure, "
                "or every failure is goal_not_reached in each report"
            )


def named_scores_are_given(domain: Domain, episodes: Sequence[TaskEpisodes]) -> None:
    """Every score that the domain names is in some outcome, and no other."""
    named = (*(domain.scores if isinstance(domain, ScoringDomain) else ()), *GENERAL_SCORES)
    costs = domain.costs if isinstance(domain, CostlyDomain) else ()
    if odd := [name for name in costs if name not in (*named, CONSENT)]:
        raise Broken(f"the domain's costs name {odd[0]!r}, which is none of its scores; put it into scores, too")
    given = {name: task.task_id for task, _, outcome in _graded(episodes) for name in outcome.scores}
    if absent := [name for name in named if name not in given]:
        raise Broken(f"no outcome has the score {absent[0]!r} that the domain names; give it, or take it from scores")
    if unnamed := [name for name in given if name not in (*named, CONSENT)]:
        raise Broken(
            f"an outcome of {given[unnamed[0]]} has the score {unnamed[0]!r}, which the domain does not name and "
            "params.yaml so cannot weigh; put it into the domain's scores"
        )


def turn_scores_fit_the_turns(episodes: Sequence[TaskEpisodes]) -> None:
    for task, trajectory, outcome in _graded(episodes):
        num_turns, num_scores = len(agent_messages(trajectory)), len(outcome.turn_scores)
        if num_scores and num_turns != num_scores:
            raise Broken(
                f"an outcome of {task.task_id} has {num_scores} turn_scores for {num_turns} messages of the "
                "agent; give one for each, or none"
            )


def _graded(episodes: Sequence[TaskEpisodes]) -> list[tuple[Task, Trajectory, Outcome]]:
    every = [(one.task, trajectory, trajectory.outcome) for one in episodes for trajectory in one.by.values()]
    found = [(task, trajectory, outcome) for task, trajectory, outcome in every if outcome is not None]
    if not found:
        raise NotTried("no episode was graded")
    return found


def _played_empty(episodes: Sequence[TaskEpisodes]) -> list[TaskEpisodes]:
    tried = [one for one in episodes if not one.by["empty"].is_aborted]
    if not tried:
        raise NotTried("no episode could be played")
    return tried


def _so_many(found: Sequence[object], tried: Sequence[object]) -> str:
    return f"one of {len(found)} in {len(tried)}"


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward if trajectory.reward is not None else 0.0
