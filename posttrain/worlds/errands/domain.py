"""A long conversation in a shop: the client says a member number early, asks for many prices, and
orders at the end. The order needs the number, which an agent whose context is shorter than the
conversation has only if it noted it (`agent.memory`)."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from posttrain.types import JsonValue, Message, Outcome, Split, StopReason, Task, Trajectory
from posttrain.worlds.errands.params import ErrandsParams
from posttrain.worlds.made_calls import agent_messages, calls_made
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, call, say
from posttrain.worlds.shares import share_of
from posttrain.worlds.tools import Tool, ToolError, tool_from

SYSTEM = (
    "You serve a member of a shop. State a price as ANSWER: <price>. Note what you will need later with remember: you "
    "may not see the whole conversation. Order for the member's number."
)
# so many that an agent learns to copy a name and not to know it
_COLOURS = (
    "amber ash beige black blue brass brown coral cream cyan ebony gold gray green ivory jade khaki lilac lime "
    "mauve mint navy olive peach pink plum red rust sand silver teal white"
)
_GOODS = (
    "apron bag basket bed bell bench book bottle bowl box brush bucket chair clock coat comb cup desk drum fan "
    "fork glass hat jar kettle lamp lock mat mirror mug pan pen plate purse rug shelf spoon stool tray vase"
)
_TEXTS = {  # in every split, and in test_paraphrase alone
    "price": ("Price of {item}?", "What does {item} cost?"),
    "fact": ("I am member {member}.", "My member number: {member}."),
    "order": ("Order {item}.", "I take {item}, please."),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The items asked for in turn, the member's number, and the item to order, one of them."""

    items: tuple[str, ...]
    member: str
    ordered: str

    @classmethod
    def of(cls, task: Task) -> "Goal":
        read = json.loads(task.goal)
        return cls(tuple(read["items"]), read["member"], read["ordered"])

    def said_by_client(self, wording: int) -> list[str]:
        """The client's messages in order; the fact is the second."""
        prices = [_TEXTS["price"][wording].format(item=item) for item in self.items]
        fact, order = (_TEXTS[kind][wording] for kind in ("fact", "order"))
        return [prices[0], fact.format(member=self.member), *prices[1:], order.format(item=self.ordered)]


class ErrandsDomain:
    """Items are split by name and members by number: no split knows those of another."""

    name = "errands"
    scores: Sequence[str] = ("right_prices", "noted")

    def __init__(self, params: ErrandsParams) -> None:
        self._params = params
        draw = random.Random(f"errands {params.seed}")
        names = [f"{colour} {goods}" for colour, goods in product(_COLOURS.split(), _GOODS.split())]
        draw.shuffle(names)
        self.names = tuple(names)
        self.tools: Mapping[str, Tool] = _tools({}, [])

    def tasks(self, split: Split, count: int) -> list[Task]:
        return [self._made(split, random.Random(f"errands {self._params.seed} {split} {n}")) for n in range(count)]

    def open(self, task: Task) -> World:
        """Each task has prices of its own."""
        draw = random.Random(f"errands {task.task_id} prices")
        return _Shop(task, {name: draw.randrange(10, 100) for name in self.names})

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        draw, rates, goal = random.Random(f"errands {task.task_id} {seed}"), self._params.flaw_rates, Goal.of(task)
        thought = "A price was asked for." if draw.random() < reasoning_frac else None
        has_note = draw.random() >= rates.no_note or is_flawless
        is_right = draw.random() >= rates.wrong_item or is_flawless
        ordered = goal.ordered if is_right else draw.choice(goal.items[:-1])
        return ScriptedExpert(_script(goal, ordered, thought, has_note=has_note))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        return self._made(task.split, random.Random(f"errands {task.task_id} {seed}"))

    def describe_goal(self, task: Task) -> str:
        goal = Goal.of(task)
        return f"order(item={goal.ordered}, member={goal.member}) after {len(goal.items)} prices"

    def _made(self, split: Split, draw: random.Random) -> Task:
        items = tuple(draw.sample(share_of(split, self.names), k=self._params.num_questions))
        member = str(draw.choice(share_of(split, range(1000, 10_000))))
        goal = json.dumps(asdict(Goal(items, member, items[-1])))
        wording = int(split == "test_paraphrase")
        said = Goal(items, member, items[-1]).said_by_client(wording)
        content = json.dumps([split, said, goal])
        return Task(
            task_id=hashlib.sha256(content.encode()).hexdigest()[:16],
            split=split,
            messages=(Message("system", SYSTEM), Message("user", said[0])),
            tools=tuple(self.tools),
            labels={"kind": "errand", "num_questions": str(len(items))},
            goal=goal,
            template="paraphrase" if wording else "plain",
            entities=tuple(sorted({*items, member})),
        )


class _Shop:
    """One episode: a client who says the next message whatever the last answer was."""

    def __init__(self, task: Task, prices: Mapping[str, int]) -> None:
        self._goal, self._prices, self._orders = Goal.of(task), prices, list[tuple[str, str]]()
        self._tools = _tools(prices, self._orders)
        self._coming = self._goal.said_by_client(int(task.template == "paraphrase"))[1:]

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        del message
        return self._coming.pop(0) if self._coming else None

    def describe(self) -> str:
        return f"{len(self._coming)} messages of the client to come; ordered: {self._orders or 'nothing'}"

    def grade(self, trajectory: Trajectory) -> Outcome:
        """Success: the order is right. Strict: each price is, too, and no call was superfluous."""
        goal, calls = self._goal, calls_made(trajectory)
        stated = [text for _, one in agent_messages(trajectory) if (text := one.content).startswith("ANSWER:")]
        wanted = [f"ANSWER: {self._prices[item]}" for item in goal.items]
        right = sum(one == other for one, other in zip(stated, wanted, strict=False)) / len(wanted)
        notes = [str(one.arguments) for one in calls if one.name == "remember"]
        is_right = self._orders == [(goal.ordered, goal.member)] and trajectory.stop_reason is StopReason.STOP_TOOL
        is_lean = [one.name for one in calls].count("get_price") == len(wanted) and len(notes) <= 1
        ordered, member = self._orders[-1] if self._orders else ("", "")
        failure = "no_order" if not ordered else "wrong_member" if member != goal.member else "wrong_item"
        return Outcome(
            success=is_right,
            strict_success=is_right and is_lean and right == 1 and all(one.is_executed for one in calls),
            scores={"right_prices": right, "noted": float(any(goal.member in note for note in notes))},
            failure="" if is_right else failure,
            feedback="" if is_right else f"Wanted: {goal.ordered} for member {goal.member}.",
        )


def _tools(prices: Mapping[str, int], orders: list[tuple[str, str]]) -> dict[str, Tool]:
    def get_price(item: str) -> JsonValue:
        """Get the price of an item.

        Args:
            item: its name
        """
        if item not in prices:
            raise ToolError(f"no item is called {item!r}")
        return {"price": prices[item]}

    def remember(note: str) -> JsonValue:
        """Note something for later.

        Args:
            note: a few words
        """
        del note
        return "noted"

    def order(item: str, member: str) -> JsonValue:
        """Order an item for a member.

        Args:
            item: its name
            member: the member's number
        """
        if item not in prices:
            raise ToolError(f"no item is called {item!r}")
        orders.append((item, member))
        return "ordered"

    made = [
        tool_from(get_price, is_instant=True, side_effect="none"),
        tool_from(remember, is_instant=True),
        tool_from(order, is_instant=True, ends_episode=True),
    ]
    return {tool.name: tool for tool in made}


def _script(goal: Goal, ordered: str, thought: str | None, *, has_note: bool) -> Script:
    for number, item in enumerate(goal.items):
        messages = yield call("get_price", {"item": item}, reasoning=thought if number == 0 else None)
        yield say(f"ANSWER: {json.loads(messages[-1].content)['price']}")
        if number == 0:
            if has_note:
                yield call("remember", {"note": f"member {goal.member}"})
            yield say("OK")
    yield call("order", {"item": ordered, "member": goal.member})
