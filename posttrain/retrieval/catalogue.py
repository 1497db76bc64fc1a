"""Catalogue of tools: JSON lines of OpenAI function schemas with their source, and beside it
questions with the tools that they need.

A tool is known by its name. What a retriever reads of it is its name in words, its description and
its parameters: without the parameters a BM25 finds a tenth less (`docs/tool-retrieval.md`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.data.files import read_jsonl, write_jsonl
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import reason
from posttrain.worlds.tools import Tool

TOOLS = Path("data/tools")
_TOOLS_FILE, _QUESTIONS_FILE = "catalogue.jsonl", "questions.jsonl"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_NO_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # scripts that write words without spaces


@dataclass(frozen=True, slots=True)
class CatalogueTool:
    """An OpenAI function schema and where it came from, such as `bfcl/live_simple`."""

    schema: Mapping[str, Any]
    source: str

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    @property
    def text(self) -> str:
        """The text by which it is found: `get area. Area of a triangle. base: its base, in m`."""
        return f"{' '.join(words(self.name))}. {self.description} {self.parameters_text}".strip()

    @property
    def description(self) -> str:
        return str(self.schema["function"].get("description") or "")

    @property
    def parameters_text(self) -> str:
        properties = self.schema["function"].get("parameters", {}).get("properties", {})
        return "; ".join(
            f"{' '.join(words(name))}: {about.get('description', '') if isinstance(about, Mapping) else ''}"
            for name, about in properties.items()
        )


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a user, and the names of the tools that it needs, at least one."""

    text: str
    tools: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Tools of distinct names, in their order, and questions about some of them."""

    tools: tuple[CatalogueTool, ...] = ()
    questions: tuple[Question, ...] = ()

    def with_more(self, tools: Iterable[CatalogueTool], questions: Iterable[Question] = ()) -> "Catalogue":
        """Both together: of two tools with one name the earlier stands. A question that is here
        already, or needs a tool of neither, is left out."""
        named: dict[str, CatalogueTool] = {}
        for tool in (*self.tools, *tools):
            named.setdefault(tool.name, tool)
        here = set(self.questions)
        new = (one for one in questions if one not in here and set(one.tools) <= named.keys())
        return Catalogue(tuple(named.values()), (*self.questions, *new))


def of_world(tools: Mapping[str, Tool], source: str) -> list[CatalogueTool]:
    """The tools of a world, or of an MCP server, for a catalogue."""
    return [CatalogueTool(tool.schema(), source) for tool in tools.values()]


def read_catalogue(folder: Path = TOOLS) -> Catalogue:
    """The catalogue of a folder; an empty one where nothing was imported yet. Raises DataError."""
    files = [folder / name for name in (_TOOLS_FILE, _QUESTIONS_FILE)]
    try:
        lines, asked = (read_jsonl(file) if file.exists() else [] for file in files)
        tools = [_tool(line) for line in lines]
        questions = [Question(str(line["text"]), tuple(map(str, line["tools"])), line["source"]) for line in asked]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        text = f"{type(error).__name__}: {reason(error)}"
        raise DataError(
            f"{folder} has a file or a line that is none of a catalogue ({text}): delete its files and run "
            "`posttrain tools import` again"
        ) from error
    twice = [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]
    if twice:
        raise DataError(f"{folder / _TOOLS_FILE} has the tool {twice[0]!r} twice, and a call names one: delete a line")
    return Catalogue().with_more(tools, questions)


def write_catalogue(catalogue: Catalogue, folder: Path = TOOLS) -> None:
    """Write both files; equal catalogues give equal bytes."""
    write_jsonl(folder / _TOOLS_FILE, ({**tool.schema, "source": tool.source} for tool in catalogue.tools))
    rows = ({"text": one.text, "tools": list(one.tools), "source": one.source} for one in catalogue.questions)
    write_jsonl(folder / _QUESTIONS_FILE, rows)


def words(text: str) -> list[str]:
    """Words in lower case, names in snake or camel case taken apart; of a script without spaces
    each character and each two in a row: `getTax_2` gives get, tax, 2, and `税率` 税, 率, 税率."""
    found = []
    for word in _WORD.findall(text):
        if _NO_SPACES.search(word):
            found += [*word, *(word[place : place + 2] for place in range(len(word) - 1))]
        else:
            found.append(word.lower())
    return found


def _tool(line: Mapping[str, Any]) -> CatalogueTool:
    function = line["function"]
    parameters = function.get("parameters", {})
    if not isinstance(function["name"], str) or not isinstance(parameters.get("properties", {}), Mapping):
        raise ValueError(f"a tool's name or parameters are {function!r}")
    return CatalogueTool({key: value for key, value in line.items() if key != "source"}, str(line["source"]))
