"""Rules about played episodes and the outcomes that the world gave them."""

from collections.abc import Sequence

from posttrain.types import Trajectory
from posttrain.world_check.episodes import TaskEpisodes
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.policies import REMEDIES, REPEATING
from posttrain.world_check.recorder import Recorder
from posttrain.worlds.grading import GENERAL_SCORES
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Domain, ScoringDomain

_NO_EXPERT = "the world has no expert"
_NOT_PLAYED = "no episode could be played"
_NOT_GRADED = "no episode was graded"
_EQUAL = 1e-9  # rewards that differ by less are equal

# Rule: tools


def offered_tools_exist(recorder: Recorder) -> None:
    if problem := recorder.first("tools"):
        raise Broken(f"the world of {problem.task_id} {problem.text}; let tools() have what Task.tools names")


# Rule: nothing but ToolError is raised


def only_tool_errors_are_raised(recorder: Recorder, episodes: Sequence[TaskEpisodes]) -> None:
    if problem := recorder.first("open", "tools", "opening", "user_reply", "is_over"):
        remedy = "what the agent does wrong is a ToolError, and nothing else may be raised"
        if problem.is_gone:
            remedy = "start what the world needs, or mend it: such episodes are aborted"
        raise Broken(f"{problem.method} of {problem.task_id} {problem.text}; {remedy}")
    recorded = {problem.task_id for problem in recorder.problems}
    for one in episodes:
        for trajectory in one.all():
            if trajectory.is_aborted and one.task.task_id not in recorded:
                raise Broken(
                    f"an episode of {one.task.task_id} was aborted ({trajectory.failure}); "
                    "what the agent does wrong is a ToolError, and a result is what JSON can hold"
                )


def user_speaks_before_agent(episodes: Sequence[TaskEpisodes]) -> None:
    for one in _played_empty(episodes):
        roles = [message.role for message in one.empty.messages]
        if "user" not in roles[: roles.index("assistant")]:
            raise Broken(
                f"{one.task.task_id} begins without a user's message; "
                "put one into Task.messages, or give the world an opening()"
            )


# Rule: the expert


def expert_succeeds_strictly(recorder: Recorder, episodes: Sequence[TaskEpisodes]) -> None:
    with_gold = [(one.task, one.gold) for one in episodes if one.gold is not None]
    if not with_gold:
        raise NotTried(_NO_EXPERT)
    if problem := recorder.first("expert"):
        raise Broken(f"the expert of {problem.task_id} {problem.text}; let it play each task to its end")
    if missed := [(task, gold) for task, gold in with_gold if not gold.is_strict_success]:
        task, gold = missed[0]
        failure = gold.outcome.failure if gold.outcome is not None else gold.failure
        what = "a success, and not a strict one" if gold.is_success else f"a failure ({failure})"
        raise Broken(
            f"the flawless episode of {task.task_id} is {what}, {_so_many(missed, with_gold)}; it ends with "
            f"{gold.messages[-1].content[:80]!r}: mend expert or grade"
        )


def expert_earns_one(episodes: Sequence[TaskEpisodes]) -> None:
    golds = [(one.task, one.gold) for one in episodes if one.gold is not None and one.gold.is_strict_success]
    if not golds:
        raise NotTried(
            _NO_EXPERT if not any(one.gold for one in episodes) else "no flawless episode strictly succeeded"
        )
    if own := [task for task, gold in golds if gold.outcome is not None and gold.outcome.reward is not None]:
        raise NotTried(f"the world gives rewards of its own, to {own[0].task_id} for one")
    for task, gold in golds:
        if gold.reward is None or abs(gold.reward - 1) > _EQUAL:
            low = [f"{name} {value:g}" for name, value in gold.scores.items() if 0 < value < 1]
            raise Broken(
                f"the flawless episode of {task.task_id} earns {gold.reward:g} and not 1"
                f"{' (' + ', '.join(low) + ')' if low else ''}; "
                "let each score that is weighted be 1, and each that is punished 0, for a flawless episode"
            )


# Rule: failures earn less than successes


def empty_is_no_success(episodes: Sequence[TaskEpisodes]) -> None:
    tried = _played_empty(episodes)
    if free := [one for one in tried if one.empty.is_success]:
        raise Broken(
            f"an agent that says nothing succeeds at {free[0].task.task_id}, {_so_many(free, tried)}; "
            "let grade ask for what was to be done, or leave out tasks where that is nothing"
        )


def no_failure_earns_as_a_success(episodes: Sequence[TaskEpisodes]) -> None:
    is_tried = False
    for one in episodes:
        graded = [trajectory for trajectory in one.all() if not trajectory.is_aborted]
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


# Rule: adversaries earn less than the expert


def adversary_earns_less(name: str, episodes: Sequence[TaskEpisodes]) -> None:
    """Less than the worst strict success of the same task."""
    tried = [(one, one.others[name]) for one in episodes if name in one.others and not one.others[name].is_aborted]
    tried = [(one, other) for one, other in tried if one.gold is not None and one.gold.is_strict_success]
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
    every = [one.gold] if other.is_strict_success else [each for each in one.all() if each.is_strict_success]
    worst = min(_reward(each) for each in every if each is not None)
    is_free = other.is_strict_success and name != REPEATING  # a repeated call may be what the goal accepts
    return worst if is_free or _reward(other) > worst - _EQUAL else None


# Rule: grade returns valid outcomes


def grade_returns_outcomes(recorder: Recorder) -> None:
    """`Outcome` itself refuses scores outside of [0, 1] and contradictions."""
    if problem := recorder.first("grade"):
        raise Broken(f"grade of {problem.task_id} {problem.text}; return posttrain.types.Outcome for any episode")
    if not recorder.graded:
        raise NotTried(_NOT_GRADED)


def failures_are_named(recorder: Recorder, episodes: Sequence[TaskEpisodes]) -> None:
    """By the world, except where a malformed call or a limit says enough."""
    unnamed = {graded.task_id for graded, outcome in recorder.graded if not (outcome.success or outcome.failure)}
    for one in episodes:
        for trajectory in one.all():
            if one.task.task_id in unnamed and trajectory.outcome and trajectory.outcome.failure == "goal_not_reached":
                raise Broken(
                    f"a failure at {one.task.task_id} has no class; name what went wrong in Outcome.failure, "
                    "or every failure is goal_not_reached in each report"
                )


def named_scores_are_given(domain: Domain, recorder: Recorder) -> None:
    """Every score that the domain names is in some outcome, and no other."""
    if not recorder.graded:
        raise NotTried(_NOT_GRADED)
    named = tuple(domain.scores) if isinstance(domain, ScoringDomain) else ()
    given = {name: trajectory.task_id for trajectory, outcome in recorder.graded for name in outcome.scores}
    if absent := [name for name in named if name not in given]:
        raise Broken(f"no outcome has the score {absent[0]!r} that the domain names; give it, or take it from scores")
    if unnamed := [name for name in given if name not in (*named, *GENERAL_SCORES)]:
        raise Broken(
            f"an outcome of {given[unnamed[0]]} has the score {unnamed[0]!r}, which the domain does not name and "
            "params.yaml so cannot weigh; put it into the domain's scores"
        )


def turn_scores_fit_the_turns(recorder: Recorder) -> None:
    for trajectory, outcome in recorder.graded:
        num_turns, num_scores = len(agent_messages(trajectory)), len(outcome.turn_scores)
        if num_scores and num_turns != num_scores:
            raise Broken(
                f"an outcome of {trajectory.task_id} has {num_scores} turn_scores for {num_turns} messages of the "
                "agent; give one for each, or none"
            )


def _played_empty(episodes: Sequence[TaskEpisodes]) -> list[TaskEpisodes]:
    tried = [one for one in episodes if not one.empty.is_aborted]
    if not tried:
        raise NotTried(_NOT_PLAYED)
    return tried


def _so_many(found: Sequence[object], tried: Sequence[object]) -> str:
    return f"one of {len(found)} in {len(tried)}"


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward if trajectory.reward is not None else 0.0
