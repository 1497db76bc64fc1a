"""The entries as tasks: each scenario is in one split, and the sets take turns within it."""

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal, get_args

from posttrain.types import Message, Split, Task, ToolCall
from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.entries import Call, Entry, entries, entry_with
from posttrain.worlds.bfcl.grade import SCORES
from posttrain.worlds.bfcl.package import CLASSES
from posttrain.worlds.bfcl.params import BfclFlawRates, BfclParams, SetName
from posttrain.worlds.bfcl.world import BfclWorld, of_no_episode, tools_of
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, raw_call, say
from posttrain.worlds.tools import Tool


class BfclDomain:
    """200 scenarios in as many variants as `world.sets` names."""

    name = "bfcl"
    scores = SCORES

    def __init__(self, world: BfclParams) -> None:
        self._params = world
        self.tools: Mapping[str, Tool] = tools_of(CLASSES, lambda _: of_no_episode)

    def tasks(self, split: Split, count: int) -> list[Task]:
        """The first tasks of a split are about different scenarios, in the sets in turn."""
        if split == "test_paraphrase":
            return []
        tasks = list(islice(self._of_split(split), count))
        if len(tasks) < count:
            raise ValueError(
                f"bfcl has {len(tasks)} tasks for {split} and {count} are wanted; lower world.num_{split}_tasks, "
                "raise its share in world.split_shares or name more of world.sets"
            )
        return tasks

    def open(self, task: Task) -> World:
        return BfclWorld(_entry_of(task))

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        entry = _entry_of(task)
        rng = random.Random(f"{task.task_id} {seed}")
        flaws = frozenset() if is_flawless else draw_flaws(entry, self._params.flaw_rates, rng)
        return ScriptedExpert(expert_script(entry, flaws, rng, is_reasoning=rng.random() < reasoning_frac))

    def describe_goal(self, task: Task) -> str:
        """The gold calls, turn by turn: `1: cd(folder='a'), ls(); 2: no call`."""
        gold = _entry_of(task).gold_texts
        return "; ".join(f"{turn}: {', '.join(texts) or 'no call'}" for turn, texts in enumerate(gold, start=1))

    def _of_split(self, split: Split) -> Iterator[Task]:
        sets: list[SetName] = self._params.sets
        by_set = {name: entries(name) for name in sets}
        places = self._places(split)
        for offset in range(len(sets)):
            for index, place in enumerate(places):
                yield self._task(by_set[sets[(index + offset) % len(sets)]][place], split)

    def _places(self, split: Split) -> list[int]:
        """The split's entries by their place in a set; all of a scenario's are in one split."""
        places: dict[str, list[int]] = {}
        for place, entry in enumerate(entries("base")):
            places.setdefault(entry.scenario, []).append(place)
        scenarios = sorted(places)
        random.Random(f"bfcl {self._params.seed}").shuffle(scenarios)
        shares = self._params.split_shares
        sums = (shares.sft, shares.sft + shares.rl, shares.sft + shares.rl + shares.dev)
        ends = [round(share * len(scenarios)) for share in sums]
        starts = dict(zip(("sft", "rl", "dev", "test"), zip([0, *ends], [*ends, None], strict=True), strict=True))
        start, end = starts[split]
        return [place for scenario in scenarios[start:end] for place in places[scenario]]

    def _task(self, entry: Entry, split: Split) -> Task:
        system = (Message("system", self._params.system),) if self._params.system else ()
        return Task(
            task_id=entry.entry_id,
            split=split,
            messages=(*system, Message("user", entry.turns[0])),
            tools=entry.offered,
            labels={"set": entry.set_name, "classes": "+".join(entry.classes), "num_turns": str(len(entry.turns))},
            goal=json.dumps({"entry": entry.entry_id}),
            entities=(entry.scenario,),
        )


def _entry_of(task: Task) -> Entry:
    return entry_with(json.loads(task.goal)["entry"])


Flaw = Literal["skipped_call", "early_call", "repeated_call", "malformed_json"]


def draw_flaws(entry: Entry, rates: BfclFlawRates, rng: random.Random) -> frozenset[Flaw]:
    drawn = {flaw for flaw in get_args(Flaw) if rng.random() < getattr(rates, flaw)}
    return frozenset(drawn if _early_turns(entry) else drawn - {"early_call"})


def expert_script(entry: Entry, flaws: Collection[Flaw], rng: random.Random, *, is_reasoning: bool) -> Script:
    turns = [list(calls) for calls in entry.gold]
    with_calls = [turn for turn, calls in enumerate(turns) if calls]
    cut_off = rng.choice(with_calls) if "malformed_json" in flaws else None
    if "early_call" in flaws:
        turn = rng.choice(_early_turns(entry))
        turns[turn] = list(turns[turn + 1])
    if "repeated_call" in flaws:
        calls = turns[rng.choice(with_calls)]
        calls.append(rng.choice(calls))
    if "skipped_call" in flaws:
        turns[rng.choice(with_calls)].pop()
    for turn, calls in enumerate(turns):
        reasoning = f"Next: {', '.join(call.name for call in calls) or 'nothing to call'}." if is_reasoning else None
        if turn == cut_off and calls:
            yield raw_call(calls[0].name, _json(calls[0])[:-1], reasoning=reasoning)
        for step in in_steps(calls):
            made = (ToolCall(f"call_{place}", call.name, _json(call)) for place, call in enumerate(step, start=1))
            yield Message("assistant", reasoning_content=reasoning, tool_calls=tuple(made))
            reasoning = None
        yield say("Done." if calls else "I cannot do that: a function or a detail is missing.", reasoning=reasoning)


def in_steps(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of a turn, one a step; several where one turn may not have as many steps."""
    size = -(-len(calls) // package.max_steps()) or 1
    return [list(calls[start : start + size]) for start in range(0, len(calls), size)]


def _early_turns(entry: Entry) -> list[int]:
    gold = entry.gold_texts
    return [turn for turn in range(len(gold) - 1) if not gold[turn] and gold[turn + 1]]


def _json(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
