"""A small world that keeps the whole contract, and worlds with one planted defect each: subclasses
of its domain or of its world."""

import json
import os
import random
import socket
import subprocess
import threading
from collections import Counter
from dataclasses import replace
from typing import ClassVar

from posttrain.types import Message, Outcome, Task
from posttrain.worlds.made_calls import agent_messages, calls_made
from posttrain.worlds.scripts import ScriptedExpert, call, raw_call, say
from posttrain.worlds.tools import Tool, ToolError, tool_from


class Box:
    """Opened with the number that `look` tells; the user says yes before anything is done."""

    is_look_read_only = True

    def __init__(self, task):
        self.task = task
        self.number = json.loads(task.goal)["number"]
        self.is_open = False
        self.num_shouts = 0

    def tools(self):
        def look() -> dict[str, int]:
            """Read the number on the box."""
            return self.looked()

        def turn(number: int) -> str:
            """Turn the lock.

            Args:
                number: that stands on the box
            """
            if number != self.number:
                raise ToolError("it does not turn")
            self.is_open = True
            return "open"

        def shout(words: str) -> str:
            """Shout at the box.

            Args:
                words: what to shout
            """
            self.num_shouts += 1
            return "an echo"

        made = [tool_from(look, is_instant=True, side_effect="none" if self.is_look_read_only else "reversible")]
        return {tool.name: tool for tool in (*made, tool_from(turn, is_instant=True), tool_from(shout))}

    def looked(self):
        return {"number": self.number}

    def opening(self):
        return [Message("user", f"Open the box of {self.task.task_id}. Ask me first.")]

    def user_reply(self, message):
        return "yes" if message.content == "May I?" else None

    def is_over(self):
        return self.num_shouts > 8

    def grade(self, trajectory):
        calls = calls_made(trajectory)
        names = [made.name for made in calls]
        is_done = self.is_open and trajectory.messages[-1].content == f"ANSWER: {self.number}"
        is_strict = is_done and set(names) == {"look", "turn"} and all(made.is_executed for made in calls)
        return Outcome(
            is_done,
            is_strict,
            scores={"opened": float(self.is_open)},
            turn_scores=tuple(1.0 for _ in agent_messages(trajectory)),
            failure="" if is_done else "shut" if not self.is_open else "wrong_number",
        )

    async def close(self):
        pass


class Boxes:
    """The domain of boxes."""

    name = "boxes"
    scores = ("opened",)
    world = Box

    def __init__(self, params):
        self.seed = params.seed
        self.tools = self.world(self.make("dev", 0)).tools()

    def tasks(self, split, count):
        return [self.make(split, index) for index in range(count)]

    def make(self, split, index):
        seed = f"{self.seed}-{split}-{index}"
        return Task(
            task_id=seed,
            split=split,
            messages=(Message("system", "You open boxes."), Message("system", seed)),
            tools=("look", "turn", "shout"),
            labels={"kind": "box"},
            goal=json.dumps({"number": random.Random(seed).randint(10, 99)}),
            entities=(f"box {seed}",),
        )

    def open(self, task):
        return self.world(task)

    def expert(self, task, *, seed, is_flawless, reasoning_frac):
        return ScriptedExpert(self.script(task, is_flawless))

    def script(self, task, is_flawless):
        yield say("May I?")
        messages = yield call("look", {})
        number = json.loads(messages[-1].content)["number"]
        if not is_flawless:
            yield raw_call("turn", '{"number":')
        yield call("turn", {"number": number})
        yield say(f"ANSWER: {number}")

    def regenerate(self, task, *, seed):
        return replace(self.make(task.split, f"{task.task_id}-{seed}"), labels=task.labels)

    def describe_goal(self, task):
        return f"open by {json.loads(task.goal)['number']}"


def domain_with(defect):
    """The domain with a planted defect, which is in itself or in its worlds."""
    return defect if issubclass(defect, Boxes) else type(defect.__name__, (Boxes,), {"world": defect})


# Tasks


class NoDevTasks(Boxes):
    def tasks(self, split, count):
        return {"sft": super().tasks(split, count), "rl": super().tasks(split, count)}[split]


class OneTaskTooFew(Boxes):
    def tasks(self, split, count):
        return super().tasks(split, count)[: 2 if split == "rl" else count]


class WrongSplit(Boxes):
    def tasks(self, split, count):
        return [replace(task, split="dev") if split == "rl" else task for task in super().tasks(split, count)]


class IdsWithoutSplit(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), task_id=f"box-{index}")


class NumbersAsLabels(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), labels={"kind": "box", "size": 3})


class OrderByCount(Boxes):
    def tasks(self, split, count):
        tasks = super().tasks(split, count)
        return [*tasks[1:], *tasks[:1]]


class DrawnFromTheModule(Boxes):
    num_made = 0

    def __init__(self, params):
        type(self).num_made += 1
        self.number = type(self).num_made
        super().__init__(params)

    def make(self, split, index):
        return replace(super().make(split, index), template=f"box {self.number}")


class DrawnByHash(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), labels={"kind": str(hash(f"{split} {index}") % 1000)})


class OneBoxForAll(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), entities=("the box",) if index == 2 else ())


class Mute(Box):
    def opening(self):
        return []


# Tools


class OffersAKey(Boxes):
    def make(self, split, index):
        task = super().make(split, index)
        return replace(task, tools=(*task.tools, "key")) if (split, index) == ("rl", 1) else task


class OddSchema(Box):
    def tools(self):
        return {**super().tools(), "odd": self.odd}


class NoObject(OddSchema):
    odd = Tool("odd", "Is odd.", {"type": "objekt"}, print)


class NoDescription(OddSchema):
    odd = Tool("odd", " ", {"type": "object"}, print)


class OtherName(OddSchema):
    odd = Tool("even", "Is odd.", {"type": "object"}, print)


# The world


class CrashingTool(Box):
    def tools(self):
        def shout(words: str) -> str:
            """Shout at the box."""
            raise KeyError(words)

        return {**super().tools(), "shout": tool_from(shout)}


class UnreadableResult(Box):
    def tools(self):
        def shout(words: str) -> object:
            """Shout at the box."""
            return {words}

        shout.__annotations__["return"] = str
        return {**super().tools(), "shout": tool_from(shout)}


class DeafToNothing(Box):
    def user_reply(self, message):
        return {"": 0}[message.content] if not message.content else super().user_reply(message)


class CannotBeOpened(Box):
    def __init__(self, task):
        super().__init__(task)
        if task.task_id.endswith("rl-1"):
            raise OSError("no box left")


# The expert


class ShoutingGold(Boxes):
    def script(self, task, is_flawless):
        if task.task_id.endswith("test-1"):
            yield call("shout", {"words": "open"})
        yield from super().script(task, is_flawless)


class ExpertWhoStops(Boxes):
    def script(self, task, is_flawless):
        if is_flawless:
            yield from super().script(task, is_flawless)
        yield say("May I?")


class HalfAFormat(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return replace(outcome, scores={**outcome.scores, "format": 0.5})


# Adversaries


class Lenient(Box):
    def grade(self, trajectory):
        """A strict success also where `is_enough` says so of what was said and the calls made."""
        outcome = super().grade(trajectory)
        said = [message.content for _, message in agent_messages(trajectory) if not message.tool_calls]
        is_right = said[-1:] == [f"ANSWER: {self.number}"]
        if self.is_enough(said, calls_made(trajectory), is_right):
            return replace(outcome, success=True, strict_success=True, failure="")
        return outcome


class SilenceIsGolden(Lenient):
    def is_enough(self, said, calls, is_right):
        return not any(said) and not calls


class AnyToolDoes(Lenient):
    def is_enough(self, said, calls, is_right):
        return self.is_open and is_right and all(made.is_executed for made in calls)


class WordsDo(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and len(said) == 2 and not calls


class LastWordsDo(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and len(said) == 1 and not calls


class LooksTwice(Box):
    is_look_read_only = False


class TryingDoes(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and {made.name for made in calls} == {"look", "turn"}


class PaidForNothing(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        is_silent = not any(message.content or message.tool_calls for _, message in agent_messages(trajectory))
        calls = calls_made(trajectory)
        reward = 1.0 if outcome.strict_success or is_silent else 0.5 if outcome.success else 0.0
        return replace(outcome, reward=reward - 0.01 * (len(calls) > 2))


# Outcomes


class GradesByBool(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return outcome if outcome.success or self.is_open else False


class ScoreOfTwo(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return replace(outcome, scores={"opened": 2.0}) if self.num_shouts else outcome


class JustFails(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), failure="")


class ForgetsItsScore(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), scores={})


class CostsOfNoScore(Boxes):
    """Planted: a cost is none of the scores."""

    costs = ("harm",)


class MoreScores(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), scores={"opened": 1.0, "style": 1.0})


class OneTurnTooMany(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return replace(outcome, turn_scores=(*outcome.turn_scores, 1.0))


class Crowded(Box):
    """The result of `look` also depends on how many worlds there are, or were."""

    num_made = 0
    open_now: ClassVar[Counter] = Counter()

    def __init__(self, task):
        super().__init__(task)
        type(self).num_made += 1
        self.made_as = type(self).num_made
        self.open_now[task.task_id] += 1

    async def close(self):
        self.open_now[self.task.task_id] -= 1


class Counts(Crowded):
    def looked(self):
        return {**super().looked(), "of": self.made_as}


class SeesOthers(Crowded):
    open_now: ClassVar[Counter] = Counter()

    def looked(self):
        return {**super().looked(), "others": self.open_now[self.task.task_id]}


class HasSevenPlaces(Crowded):
    open_now: ClassVar[Counter] = Counter()

    def looked(self):
        return {**super().looked(), "is_full": self.open_now[self.task.task_id] > 7}


# Optional parts


class AnotherLabel(Boxes):
    def regenerate(self, task, *, seed):
        return replace(super().regenerate(task, seed=seed), labels={"kind": "crate"})


class TheSameAnew(Boxes):
    def regenerate(self, task, *, seed):
        return task


class AnewByChance(Boxes):
    num_asked = 0

    def regenerate(self, task, *, seed):
        self.num_asked += 1
        return super().regenerate(task, seed=self.num_asked)


class AnewUnsolvable(Boxes):
    def regenerate(self, task, *, seed):
        return replace(super().regenerate(task, seed=seed), tools=("shout",), goal='{"number": null}')


class WantsNothing(Boxes):
    def describe_goal(self, task):
        return ""


# Closing


class ClosesWhatItNeverOpened(Box):
    file = None

    def user_reply(self, message):
        self.file = self.file or object()
        return super().user_reply(message)

    def looked(self):
        self.file = self.file or object()
        return super().looked()

    async def close(self):
        if self.file is None:
            raise AttributeError("nothing to close")


class ClosesAtOnce(Box):
    def close(self):
        return None


class LeavesSockets(Box):
    left: ClassVar[list] = []

    def __init__(self, task):
        super().__init__(task)
        self.left.append(socket.socket())


class LeavesFiles(Box):
    left: ClassVar[list] = []

    def looked(self):
        self.left += [os.open(os.devnull, os.O_RDONLY)]
        return super().looked()


class LeavesThreads(Box):
    end = threading.Event()

    def looked(self):
        threading.Thread(target=self.end.wait, daemon=True).start()
        return super().looked()


class LeavesProcesses(Box):
    left: ClassVar[list] = []

    def looked(self):
        if self.task.task_id.endswith("sft-0"):
            self.left.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL))
        return super().looked()


def end_what_was_left():
    """State that the last worlds leave open on purpose."""
    while LeavesSockets.left:
        LeavesSockets.left.pop().close()
    while LeavesFiles.left:
        os.close(LeavesFiles.left.pop())
    LeavesThreads.end.set()
    while LeavesProcesses.left:
        process = LeavesProcesses.left.pop()
        process.kill()
        process.wait()
