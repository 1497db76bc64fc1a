"""A small world that keeps the whole contract, and for each rule one that breaks it once."""

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

ADVERSARY = "adversary: {} earns less".format


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

        made = [tool_from(look, is_instant=True, is_read_only=self.is_look_read_only)]
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
    """The domain. What a planted world does otherwise is in one method of a subclass."""

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

    def realise_anew(self, task, *, seed):
        return replace(self.make(task.split, f"{task.task_id}-{seed}"), labels=task.labels)

    def wanted(self, task):
        return f"open by {json.loads(task.goal)['number']}"


PLANTED = {}  # the domain's name → the domain, and the rules that find it


def planted(*rules):
    def add(domain):
        PLANTED[domain.__name__] = (domain, set(rules))
        return domain

    return add


def planted_world(*rules):
    """The domain whose worlds are of the decorated class."""

    def add(world):
        name = f"{world.__name__}Boxes"
        globals()[name] = planted(*rules)(type(name, (Boxes,), {"world": world, "__module__": __name__}))
        return world

    return add


# Tasks


@planted("tasks: every split gives its tasks")
class NoDevTasks(Boxes):
    def tasks(self, split, count):
        return {"sft": super().tasks(split, count), "rl": super().tasks(split, count)}[split]


@planted("tasks: every split gives its tasks")
class OneTaskTooFew(Boxes):
    def tasks(self, split, count):
        return super().tasks(split, count)[: 5 if split == "rl" else count]


@planted("tasks: every split gives its tasks")
class WrongSplit(Boxes):
    def tasks(self, split, count):
        return [replace(task, split="dev") if split == "rl" else task for task in super().tasks(split, count)]


@planted("tasks: no id stands twice")
class IdsWithoutSplit(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), task_id=f"box-{index}")


@planted("tasks: labels are texts")
class NumbersAsLabels(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), labels={"kind": "box", "size": 3})


@planted("tasks: a longer list begins with the shorter")
class OrderByCount(Boxes):
    def tasks(self, split, count):
        tasks = super().tasks(split, count)
        return [*tasks[1:], *tasks[:1]]


@planted("tasks: the same in a second domain")
class DrawnFromTheModule(Boxes):
    num_made = 0

    def __init__(self, params):
        type(self).num_made += 1
        self.number = type(self).num_made
        super().__init__(params)

    def make(self, split, index):
        return replace(super().make(split, index), template=f"box {self.number}")


@planted("tasks: the same in another process")
class DrawnByHash(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), labels={"kind": str(hash(f"{split} {index}") % 1000)})


@planted("tasks: held-out ones share no entity with sft")
class OneBoxForAll(Boxes):
    def make(self, split, index):
        return replace(super().make(split, index), entities=("the box",) if index == 2 else ())


@planted_world("tasks: a user's word or an opening comes first")
class Mute(Box):
    def opening(self):
        return []


# Tools


@planted("tools: what a task offers is there", "world: nothing but an agent's mistake fails")
class OffersAKey(Boxes):
    def make(self, split, index):
        task = super().make(split, index)
        return replace(task, tools=(*task.tools, "key")) if (split, index) == ("rl", 1) else task


class OddSchema(Box):
    def tools(self):
        return {**super().tools(), "odd": self.odd}


@planted_world("tools: schemas are OpenAI's")
class NoObject(OddSchema):
    odd = Tool("odd", "Is odd.", {"type": "objekt"}, print)


@planted_world("tools: schemas are OpenAI's")
class NoDescription(OddSchema):
    odd = Tool("odd", " ", {"type": "object"}, print)


@planted_world("tools: schemas are OpenAI's")
class OtherName(OddSchema):
    odd = Tool("even", "Is odd.", {"type": "object"}, print)


# The world


@planted_world("world: nothing but an agent's mistake fails")
class CrashingTool(Box):
    def tools(self):
        def shout(words: str) -> str:
            """Shout at the box."""
            raise KeyError(words)

        return {**super().tools(), "shout": tool_from(shout)}


@planted_world("world: nothing but an agent's mistake fails")
class UnreadableResult(Box):
    def tools(self):
        def shout(words: str) -> object:
            """Shout at the box."""
            return {words}

        shout.__annotations__["return"] = str
        return {**super().tools(), "shout": tool_from(shout)}


@planted_world("world: nothing but an agent's mistake fails")
class DeafToNothing(Box):
    def user_reply(self, message):
        return {"": 0}[message.content] if not message.content else super().user_reply(message)


@planted_world("world: nothing but an agent's mistake fails")
class CannotBeOpened(Box):
    def __init__(self, task):
        super().__init__(task)
        if task.task_id.endswith("rl-1"):
            raise OSError("no box left")


@planted_world("world: nothing but an agent's mistake fails")
class SaysMaybe(Box):
    def is_over(self):
        return "maybe" if self.num_shouts else False


# The expert


@planted("gold: a flawless play is a strict success")
class ShoutingGold(Boxes):
    def script(self, task, is_flawless):
        if task.task_id.endswith("test-1"):
            yield call("shout", {"words": "open"})
        yield from super().script(task, is_flawless)


@planted("gold: a flawless play is a strict success")
class ExpertWhoStops(Boxes):
    def script(self, task, is_flawless):
        if is_flawless:
            yield from super().script(task, is_flawless)
        yield say("May I?")


@planted_world("gold: it earns 1")
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


@planted_world("empty: saying nothing is no success")
class SilenceIsGolden(Lenient):
    def is_enough(self, said, calls, is_right):
        return not any(said) and not calls


@planted_world(ADVERSARY("who calls every other tool too"))
class AnyToolDoes(Lenient):
    def is_enough(self, said, calls, is_right):
        return self.is_open and is_right and all(made.is_executed for made in calls)


@planted_world(ADVERSARY("who says what gold says and calls nothing"))
class WordsDo(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and len(said) == 2 and not calls


@planted_world(ADVERSARY("who says gold's last words alone"))
class LastWordsDo(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and len(said) == 1 and not calls


@planted_world(ADVERSARY("who makes every call of gold twice"))
class LooksTwice(Box):
    is_look_read_only = False


@planted_world(ADVERSARY("who malforms every call of gold"))
class TryingDoes(Lenient):
    def is_enough(self, said, calls, is_right):
        return is_right and {made.name for made in calls} == {"look", "turn"}


@planted_world("adversary: no failure earns what a success does")
class PaidForNothing(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        is_silent = not any(message.content or message.tool_calls for _, message in agent_messages(trajectory))
        calls = calls_made(trajectory)
        reward = 1.0 if outcome.strict_success or is_silent else 0.5 if outcome.success else 0.0
        return replace(outcome, reward=reward - 0.01 * (len(calls) > 2))


# Outcomes


@planted_world("outcome: grade gives one, scores in [0, 1]")
class GradesByBool(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return outcome if outcome.success or self.is_open else False


@planted_world("outcome: grade gives one, scores in [0, 1]")
class ScoreOfTwo(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return replace(outcome, scores={"opened": 2.0}) if self.num_shouts else outcome


@planted_world("outcome: a failure is named")
class JustFails(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), failure="")


@planted_world("outcome: the named scores are given")
class ForgetsItsScore(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), scores={})


@planted_world("outcome: the named scores are given")
class MoreScores(Box):
    def grade(self, trajectory):
        return replace(super().grade(trajectory), scores={"opened": 1.0, "style": 1.0})


@planted_world("outcome: turn_scores fit the turns")
class OneTurnTooMany(Box):
    def grade(self, trajectory):
        outcome = super().grade(trajectory)
        return replace(outcome, turn_scores=(*outcome.turn_scores, 1.0))


AGAIN = [f"outcome: the same {how}" for how in ("when played again", "beside another episode", "8 times at once")]


class Crowded(Box):
    """What `look` tells also depends on how many worlds there are, or were."""

    num_made = 0
    open_now: ClassVar[Counter] = Counter()

    def __init__(self, task):
        super().__init__(task)
        type(self).num_made += 1
        self.made_as = type(self).num_made
        self.open_now[task.task_id] += 1

    async def close(self):
        self.open_now[self.task.task_id] -= 1


@planted_world(*AGAIN)
class Counts(Crowded):
    def looked(self):
        return {**super().looked(), "of": self.made_as}


@planted_world(*AGAIN[1:])
class SeesOthers(Crowded):
    open_now: ClassVar[Counter] = Counter()

    def looked(self):
        return {**super().looked(), "others": self.open_now[self.task.task_id]}


@planted_world(AGAIN[2])
class HasSevenPlaces(Crowded):
    open_now: ClassVar[Counter] = Counter()

    def looked(self):
        return {**super().looked(), "is_full": self.open_now[self.task.task_id] > 7}


# Optional parts

ANEW = "realise_anew: equal labels, other words"


@planted(ANEW)
class AnotherLabel(Boxes):
    def realise_anew(self, task, *, seed):
        return replace(super().realise_anew(task, seed=seed), labels={"kind": "crate"})


@planted(ANEW)
class TheSameAnew(Boxes):
    def realise_anew(self, task, *, seed):
        return task


@planted(ANEW)
class AnewByChance(Boxes):
    num_asked = 0

    def realise_anew(self, task, *, seed):
        self.num_asked += 1
        return super().realise_anew(task, seed=self.num_asked)


@planted(ANEW)
class AnewUnsolvable(Boxes):
    def realise_anew(self, task, *, seed):
        return replace(super().realise_anew(task, seed=seed), tools=("shout",), goal='{"number": null}')


@planted("wanted: says a goal in a line")
class WantsNothing(Boxes):
    def wanted(self, task):
        return ""


# Closing

CLOSE = "close: ends quietly, also where nothing was begun"
NOTHING_STAYS = "close: nothing stays open"


@planted_world(CLOSE)
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


@planted_world(CLOSE)
class ClosesAtOnce(Box):
    def close(self):
        return None


@planted_world(NOTHING_STAYS)
class LeavesSockets(Box):
    left: ClassVar[list] = []

    def __init__(self, task):
        super().__init__(task)
        self.left.append(socket.socket())


@planted_world(NOTHING_STAYS)
class LeavesFiles(Box):
    left: ClassVar[list] = []

    def looked(self):
        self.left += [os.open(os.devnull, os.O_RDONLY)]
        return super().looked()


@planted_world(NOTHING_STAYS)
class LeavesThreads(Box):
    end = threading.Event()

    def looked(self):
        threading.Thread(target=self.end.wait, daemon=True).start()
        return super().looked()


@planted_world(NOTHING_STAYS)
class LeavesProcesses(Box):
    left: ClassVar[list] = []

    def looked(self):
        if self.task.task_id.endswith("sft-0"):
            self.left.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL))
        return super().looked()


def end_what_was_left():
    """What the last worlds leave open on purpose."""
    while LeavesSockets.left:
        LeavesSockets.left.pop().close()
    while LeavesFiles.left:
        os.close(LeavesFiles.left.pop())
    LeavesThreads.end.set()
    while LeavesProcesses.left:
        process = LeavesProcesses.left.pop()
        process.kill()
        process.wait()
