"""What must hold of played episodes and of what the world says of them: the expert's, the silent
one's and the adversaries'."""

from collections.abc import Sequence

from posttrain.types import Trajectory
from posttrain.world_check.episodes import Played
from posttrain.world_check.findings import Broken, NotTried
from posttrain.world_check.recorder import Recorder
from posttrain.worlds.grading import GENERAL_SCORES
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Domain, ScoringDomain

_NO_EXPERT = "the world has no expert"
_UNPLAYED = "no episode could be played"
_OF_WORLD = ("open", "tools", "opening", "user_reply", "is_over")
_ENOUGH = 1e-9  # rewards nearer than that are equal
_REPEATING = "who makes every call of gold twice"
_MEND_GONE = "start what the world needs, or mend it: such episodes are lost"
_MEND_RAISED = "what the agent does wrong is a ToolError, and nothing else may be raised"
_ADD = "count a call outside of what the goal accepts in strict_success"
_REMEDIES = {
    "who calls every other tool too": _ADD,
    "who says what gold says and calls nothing": "let grade ask for the calls, not for the words alone",
    "who says gold's last words alone": "let grade ask for the calls, not for the words alone",
    _REPEATING: "make tools that only read is_read_only, or count the second call",
    "who malforms every call of gold": "let grade ask what calls came to, not that they were made",
}


# Rules about all plays


def nothing_fails(watch: Recorder, plays: Sequence[Played]) -> None:
    """No method and no tool raises anything but ToolError."""
    if problem := watch.first(*_OF_WORLD):
        raise Broken(
            f"{problem.method} of {problem.task_id} {problem.text}; {_MEND_GONE if problem.is_gone else _MEND_RAISED}"
        )
    noted = {problem.task_id for problem in watch.problems}
    for one in plays:
        for trajectory in one.all():
            if trajectory.is_aborted and one.task.task_id not in noted:
                raise Broken(
                    f"an episode of {one.task.task_id} was lost ({trajectory.failure}); "
                    "what the agent does wrong is a ToolError, and a result is what JSON can hold"
                )


def tools_are_there(watch: Recorder) -> None:
    """What a task offers, its world has."""
    if problem := watch.first("tools"):
        raise Broken(f"the world of {problem.task_id} {problem.text}; let tools() have what Task.tools names")


def somebody_speaks_first(plays: Sequence[Played]) -> None:
    """A user's message stands before the agent's first."""
    tried = [one for one in plays if not one.empty.is_aborted]
    if not tried:
        raise NotTried(_UNPLAYED)
    for one in tried:
        roles = [message.role for message in one.empty.messages]
        if "user" not in roles[: roles.index("assistant")]:
            raise Broken(
                f"{one.task.task_id} begins without a word from the user; "
                "put a user's message into Task.messages, or give the world an opening()"
            )


# Rules about the expert


def gold_is_strict(watch: Recorder, plays: Sequence[Played]) -> None:
    with_gold = [(one.task, one.gold) for one in plays if one.gold is not None]
    if not with_gold:
        raise NotTried(_NO_EXPERT)
    if problem := watch.first("expert"):
        raise Broken(f"the expert of {problem.task_id} {problem.text}; let it play each task to its end")
    if missed := [(task, gold) for task, gold in with_gold if not gold.is_strict_success]:
        task, gold = missed[0]
        what = "a success, and not a strict one" if gold.is_success else f"a failure ({_failure(gold)})"
        raise Broken(
            f"the flawless play of {task.task_id} is {what}, {_so_many(missed, with_gold)}; it ends with "
            f"{gold.messages[-1].content[:80]!r}: mend expert or grade"
        )


def gold_earns_one(plays: Sequence[Played]) -> None:
    golds = [(one.task, one.gold) for one in plays if one.gold is not None and one.gold.is_strict_success]
    if not golds:
        raise NotTried(_NO_EXPERT if not any(one.gold for one in plays) else "no flawless play was a strict success")
    if own := [task for task, gold in golds if gold.outcome is not None and gold.outcome.reward is not None]:
        raise NotTried(f"the world gives rewards of its own, to {own[0].task_id} for one")
    for task, gold in golds:
        if gold.reward is None or abs(gold.reward - 1) > _ENOUGH:
            low = [f"{name} {value:g}" for name, value in gold.scores.items() if 0 < value < 1]
            raise Broken(
                f"the flawless play of {task.task_id} earns {gold.reward:g} and not 1"
                f"{' (' + ', '.join(low) + ')' if low else ''}; "
                "let each score that is weighted be 1, and each that is punished 0, for a flawless play"
            )


def empty_is_no_success(plays: Sequence[Played]) -> None:
    tried = [one for one in plays if not one.empty.is_aborted]
    if not tried:
        raise NotTried(_UNPLAYED)
    if free := [one for one in tried if one.empty.is_success]:
        raise Broken(
            f"an agent that says nothing succeeds at {free[0].task.task_id}, {_so_many(free, tried)}; "
            "let grade ask for what was to be done, or leave out tasks where that is nothing"
        )


def earns_less(name: str, plays: Sequence[Played]) -> None:
    """The adversary of that name, than the worst strict success of the same task."""
    tried = [(one, one.others[name]) for one in plays if name in one.others and not one.others[name].is_aborted]
    tried = [(one, other) for one, other in tried if one.gold is not None and one.gold.is_strict_success]
    if not tried:
        why = "no flawless play makes a call, or none is left to add"
        raise NotTried(why if any(one.gold is not None for one in plays) else _NO_EXPERT)
    if found := [(one, other, worst) for one, other in tried if (worst := _beaten(name, one, other)) is not None]:
        one, other, worst = found[0]
        kind = "strict success" if other.is_strict_success else "success" if other.is_success else "failure"
        raise Broken(
            f"{name} earns {_reward(other):g} as a {kind} at {one.task.task_id}, where a strict success earns "
            f"{worst:g}, {_so_many(found, tried)}: {_REMEDIES[name]}"
        )


def _beaten(name: str, one: Played, other: Trajectory) -> float | None:
    """What the worst strict success earns, where the adversary comes up to it."""
    # A demonstration with mistakes may repeat a call, too, and be a strict success.
    strict = [one.gold] if other.is_strict_success else [play for play in one.all() if play.is_strict_success]
    worst = min(_reward(play) for play in strict if play is not None)
    is_free = other.is_strict_success and name != _REPEATING  # a repeated call may be what the goal accepts
    return worst if is_free or _reward(other) > worst - _ENOUGH else None


def no_failure_earns_as_much(plays: Sequence[Played]) -> None:
    """As a success of the same task."""
    is_tried = False
    for one in plays:
        graded = [play for play in one.all() if not play.is_aborted]
        won = [_reward(play) for play in graded if play.is_success]
        failed = [_reward(play) for play in graded if not play.is_success]
        is_tried = is_tried or bool(won and failed)
        if won and failed and max(failed) > min(won) - _ENOUGH:
            raise Broken(
                f"a failure at {one.task.task_id} earns {max(failed):g}, and a success {min(won):g}; "
                "let Outcome.reward put every success above every failure, or leave it to the scores"
            )
    if not is_tried:
        raise NotTried("no task was both solved and missed")


# Rules about what the world says of an episode


def grade_gives_outcomes(watch: Recorder) -> None:
    """With scores in [0, 1], and without contradictions: `Outcome` refuses them."""
    if problem := watch.first("grade"):
        raise Broken(f"grade of {problem.task_id} {problem.text}; return posttrain.types.Outcome for any episode")
    if not watch.graded:
        raise NotTried("no episode was graded")


def failures_are_named(watch: Recorder, plays: Sequence[Played]) -> None:
    """In the world's own words, but where a call that does not parse or a limit says enough."""
    failed = [one for one in watch.graded if not one.outcome.success]
    if not failed:
        raise NotTried("no episode failed")
    unnamed = {one.trajectory.task_id for one in failed if not one.outcome.failure}
    for one in plays:
        for trajectory in one.all():
            if one.task.task_id in unnamed and trajectory.outcome and trajectory.outcome.failure == "goal_not_reached":
                raise Broken(
                    f"a failure at {one.task.task_id} has no class; name what went wrong in Outcome.failure, "
                    "or every failure is goal_not_reached in each report"
                )


def scores_are_given(domain: Domain, watch: Recorder) -> None:
    """Each score that the domain names, by some outcome; and none that it does not name."""
    if not watch.graded:
        raise NotTried("no episode was graded")
    named = tuple(domain.scores) if isinstance(domain, ScoringDomain) else ()
    given = {name: one.trajectory.task_id for one in watch.graded for name in one.outcome.scores}
    if absent := [name for name in named if name not in given]:
        raise Broken(f"no outcome has the score {absent[0]!r} that the domain names; give it, or take it from scores")
    if unnamed := [name for name in given if name not in (*named, *GENERAL_SCORES)]:
        raise Broken(
            f"an outcome of {given[unnamed[0]]} has the score {unnamed[0]!r}, which the domain does not name and "
            "params.yaml so cannot weigh; put it into the domain's scores"
        )


def turns_have_a_score_each(watch: Recorder) -> None:
    tried = [one for one in watch.graded if one.outcome.turn_scores]
    if not tried:
        raise NotTried("no outcome has turn_scores")
    for one in tried:
        num_turns, num_scores = len(agent_messages(one.trajectory)), len(one.outcome.turn_scores)
        if num_turns != num_scores:
            raise Broken(
                f"an outcome of {one.trajectory.task_id} has {num_scores} turn_scores for {num_turns} messages of the "
                "agent; give one for each, or none"
            )


def _so_many(found: Sequence[object], tried: Sequence[object]) -> str:
    return f"one of {len(found)} in {len(tried)}"


def _failure(trajectory: Trajectory) -> str:
    return trajectory.outcome.failure if trajectory.outcome is not None else trajectory.failure


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward if trajectory.reward is not None else 0.0
