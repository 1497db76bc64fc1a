"""What the keeper of the toy's two shops knows about the tools; `plays.py` does the rest."""

import json
from collections.abc import Sequence
from decimal import Decimal

from posttrain.types import Answer, Task

_LOOK_ALIKE = {"sales": "returns", "returns": "sales"}


class ToyHandbook:
    """As `plays.Handbook` has it."""

    def is_search(self, tool: str) -> bool:
        return tool.startswith("find_")

    def is_of_hk(self, tool: str) -> bool:
        return "_hk_" in tool

    def twin(self, tool: str) -> str:
        return tool.replace("_hk_", "_") if self.is_of_hk(tool) else tool.replace("_", "_hk_", 1)

    def look_alike(self, tool: str) -> str | None:
        verb, _, about = tool.rpartition("_")
        return f"{verb}_{_LOOK_ALIKE[about]}" if about in _LOOK_ALIKE else None

    def is_market_said(self, task: Task) -> bool:
        return task.difficulty < 3 or task.kind in ("multi_step_planning", "timing_decision")

    def code_found(self, content: str) -> str:
        return str(json.loads(content)["code"])

    def answer(self, task: Task, contents: Sequence[str]) -> Answer:
        """The dearer one's code, a price, or the number of the one thing that the result counts
        (with both on the shelf's, what was asked)."""
        results = [json.loads(content, parse_float=Decimal) for content in contents]
        asked = task.template.partition("/")[0]
        if asked == "dearer":
            return Answer("code", max(results, key=lambda result: Decimal(result["price"]))["code"])
        if asked == "price":
            return Answer("number", Decimal(results[0]["price"]), results[0]["currency"])
        told = {field: value for field, value in results[0].items() if field in ("count", "sold", "returned")}
        return Answer("number", Decimal(told.get(asked, next(iter(told.values())))), "pcs")

    def evidence(self, task: Task, contents: Sequence[str]) -> str:
        """None: the toy's results are short."""
        del task, contents
        return ""
