"""Word problems of arithmetic in the manner of GSM8K (arXiv 2110.14168), drawn and not collected: a
story about a person, one question, and a tool that calculates.

A success is the right number; a strict one took it from the calculator, in one call. To add a
story: one entry of `_STORIES`.
"""

import ast
import hashlib
import json
import operator
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from string import Template

from posttrain.types import JsonValue, Message, Outcome, Split, StopReason, Task, Trajectory
from posttrain.worlds.calculator.params import CalculatorParams
from posttrain.worlds.lookups.gold import Answer, format_answer, parse_final, same
from posttrain.worlds.made_calls import agent_messages, calls_made
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, call, raw_call, say
from posttrain.worlds.shares import share_of
from posttrain.worlds.tools import Tool, ToolError, tool_from

SYSTEM = "Solve the problem with `calculate`. End with `ANSWER: <number>`."
_PEOPLE = (
    "Anna安娜 Ben小本 Chen小陈 Dana小丹 Emil小米 Fay小飞 Gao小高 Hana小花 Ivan小伊 Jia小佳 Karl小卡 Lin小林 Mia小美 "
    "Nils小尼 Omar小欧 Ping小平 Quin小昆 Rosa小罗 Sun小孙 Tom小汤 Uma小乌 Vera小薇 Wang小王 Zoe小左"
)
_MAX_CHARS = 200  # of an expression: bounds the digits of its value, and how deep its brackets go
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@dataclass(frozen=True, slots=True)
class Story:
    """`$a` … `$d` are drawn, `$t` is `total` of these. `slip` is the usual wrong expression. Of the
    texts in each language the first is of every split, the other of test_paraphrase alone."""

    difficulty: int
    expression: str
    slip: str
    english: tuple[str, str]
    chinese: tuple[str, str]
    total: str = "0"


_STORIES: Mapping[str, Story] = {
    "gain": Story(
        1,
        "$a+$b",
        "$a-$b",
        ("$p has $a stamps and gets $b more. How many now?", "Of stamps $p owned $a, $b are new: what sum is it?"),
        ("$p有$a张邮票,又得到$b张。现在有几张?", "$p原有邮票$a张,新添$b张,共有多少?"),
    ),
    "share": Story(
        1,
        "$t/$c",
        "$t*$c",
        ("$p shares $t sweets among $c friends. How many for each?", "$c friends split $t sweets of $p: what has one?"),
        ("$p把$t颗糖分给$c个朋友。每人几颗?", "$c个朋友平分$p的$t颗糖,一人得多少?"),
        total="$a*$c",
    ),
    "change": Story(
        2,
        "$t-$a*$c",
        "$t-$a",
        (
            "$p buys $c pens at $a each with a note of $t. How much is left?",
            "For $c pens of $a $p gave $t: what is back?",
        ),
        ("$p买$c支笔,每支$a元,付了$t元。找回几元?", "一支笔$a元,$p拿$c支并给$t元,应找多少?"),
        total="$a*$c+$b",
    ),
    "discount": Story(
        2,
        "$a*(100-$b)/100",
        "$a*$b/100",
        ("A coat costs $a, and $p gets $b percent off. What does $p pay?", "$p takes $b percent off $a: what remains?"),
        ("大衣$a元,$p得到百分之$b的减价。要付几元?", "原价$a元减去百分之$b,$p花多少?"),
    ),
    "rest": Story(
        3,
        "($t-$b*$d)/$c",
        "$t-$b*$d",
        (
            "$p had $t coins, gave $d children $b each, and made $c equal piles. How many in a pile?",
            "From $t coins of $p, $d children take $b each; $c piles share the rest: what does one hold?",
        ),
        ("$p有$t枚硬币,给$d个孩子每人$b枚,剩下平分成$c堆。每堆几枚?", "$t枚中$d人各拿$b枚,$p把其余分$c堆,一堆多少?"),
        total="$a*$c+$b*$d",
    ),
}


def calculate(expression: str) -> JsonValue:
    """Calculate the exact value of an expression of numbers, + - * / and brackets.

    Args:
        expression: such as (3+4)*12.5
    """
    return {"value": value_text(value_of(expression))}


def value_of(expression: str) -> Fraction:
    """The exact value: `0.1+0.2` is 3/10. Raises ToolError for anything else than arithmetic."""
    if len(expression) > _MAX_CHARS or not re.fullmatch(r"[0-9+\-*/(). ]+", expression):
        raise ToolError(f"the expression may have digits . + - * / ( ) and up to {_MAX_CHARS} characters, nothing else")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, expression.strip())
    except (SyntaxError, MemoryError, RecursionError):
        raise ToolError(f"{expression!r} is no expression; write one such as (3+4)*12.5") from None
    except ZeroDivisionError:
        raise ToolError(f"{expression!r} divides by zero") from None


def value_text(value: Fraction) -> str:
    """`7`, `0.3`, or `1/3` where no decimal of nine places and 24 digits is exact."""
    if value.denominator == 1 or (value * 10**9).denominator != 1 or abs(value) > 10**15:
        return str(value)
    return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant():
            return Fraction(ast.get_source_segment(source, node) or "")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, source)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value: Fraction = _OPERATORS[type(op)](_value(left, source), _value(right, source))
            return value
    raise ToolError("the expression has another operation than + - * /")


class CalculatorDomain:
    """24 people, a quarter for each of sft, rl, dev and test."""

    name = "calculator"
    scores: Sequence[str] = ("calculated",)

    def __init__(self, params: CalculatorParams) -> None:
        self._params = params
        self._stories = [name for name, story in _STORIES.items() if story.difficulty <= params.max_difficulty]
        self.tools: Mapping[str, Tool] = {"calculate": tool_from(calculate, is_instant=True, side_effect="none")}

    def tasks(self, split: Split, count: int) -> list[Task]:
        return [self._drawn(split, place) for place in range(count)]

    def open(self, task: Task) -> World:
        return _Episode(task, self.tools)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        draw, rates = random.Random(f"calculator {task.task_id} {seed}"), self._params.flaw_rates
        flaws = {name for name, rate in rates if draw.random() < rate} if not is_flawless else set()
        thought = json.loads(task.goal)["expression"] if draw.random() < reasoning_frac else None
        return ScriptedExpert(_script(task, flaws, thought))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        draw = random.Random(f"calculator {task.task_id} {seed}")
        return _made(task.split, task.labels["kind"], task.labels["language"], draw)

    def describe_goal(self, task: Task) -> str:
        goal = json.loads(task.goal)
        return f"{goal['answer']}, by {goal['expression']}"

    def _drawn(self, split: Split, place: int) -> Task:
        draw = random.Random(f"calculator {self._params.seed} {split} {place}")
        turn, story_place = divmod(place, len(self._stories))
        return _made(split, self._stories[story_place], ("zh", "en")[turn % 2], draw)


class _Episode:
    """One episode, in which nobody answers."""

    def __init__(self, task: Task, tools: Mapping[str, Tool]) -> None:
        self._answer, self._tools = json.loads(task.goal)["answer"], tools

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> None:
        del message

    def grade(self, trajectory: Trajectory) -> Outcome:
        calls, said = calls_made(trajectory), agent_messages(trajectory)
        final = parse_final(said[-1][1].content) if said and trajectory.stop_reason is StopReason.DONE else None
        is_right = isinstance(final, Answer) and same(final, Answer("number", Decimal(self._answer)))
        gave = [json.loads(made.result or "")["value"] == self._answer for made in calls if made.is_executed]
        return Outcome(
            success=is_right,
            strict_success=is_right and gave == [True] and len(calls) == 1,
            scores={"calculated": float(any(gave))},
            failure="" if is_right else "no_answer" if final is None else "wrong_answer",
            feedback="" if is_right else f"The answer was {self._answer}.",
        )


def _made(split: Split, name: str, language: str, draw: random.Random) -> Task:
    story, is_paraphrase = _STORIES[name], split == "test_paraphrase"
    person = draw.choice(share_of(split, _PEOPLE.split()))
    words = {"a": str(draw.randrange(10, 100)), "b": str(draw.randrange(2, 60))}
    words["c"], words["d"] = map(str, draw.sample(range(2, 10), k=2))
    words["t"] = value_text(value_of(Template(story.total).substitute(words)))
    words["p"] = re.sub(r"[A-Za-z]" if language == "zh" else r"[^A-Za-z]", "", person)
    expression, slip = (Template(one).substitute(words) for one in (story.expression, story.slip))
    texts = story.chinese if language == "zh" else story.english
    text = Template(texts[is_paraphrase]).substitute(words)
    goal = json.dumps({"answer": value_text(value_of(expression)), "expression": expression, "slip": slip})
    return Task(
        task_id=hashlib.sha256(f"{split} {text}".encode()).hexdigest()[:16],
        split=split,
        messages=(Message("system", SYSTEM), Message("user", text)),
        tools=("calculate",),
        labels={"kind": name, "language": language, "difficulty": str(story.difficulty)},
        goal=goal,
        template=f"{name}/{'paraphrase' if is_paraphrase else 'plain'}",
        entities=(person,),
    )


def _script(task: Task, flaws: set[str], thought: str | None) -> Script:
    goal = json.loads(task.goal)
    if "mental_arithmetic" in flaws:  # with a carry forgotten
        yield say(format_answer(Answer("number", Decimal(goal["answer"]) - 10)), reasoning=thought)
        return
    asked = call("calculate", {"expression": goal["slip" if "wrong_expression" in flaws else "expression"]})
    if "malformed_json" in flaws:
        yield raw_call("calculate", asked.tool_calls[0].arguments[:-2], reasoning=thought)
        thought = None
    messages = yield call("calculate", json.loads(asked.tool_calls[0].arguments), reasoning=thought)
    if "redundant_call" in flaws:
        messages = yield asked
    yield say(format_answer(Answer("number", Decimal(json.loads(messages[-1].content)["value"]))))
