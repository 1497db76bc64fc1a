"""Imports tools for a catalogue from a folder of BFCL files, from an OpenAPI 3 file, and schemas of
any other JSON file."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.data.importing.records import read_records
from posttrain.data.importing.tools import read_tools
from posttrain.retrieval.catalogue import Catalogue, CatalogueTool, Question
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import reason
from posttrain.runtime.plain_yaml import read_plain

_BFCL = "BFCL_v4_{}.json"
_METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
_MAX_DEPTH = 6  # of a reference within references: a schema may hold itself


def read_bfcl(folder: Path) -> Catalogue:
    """The functions and questions of BFCL v4's single-turn files (Apache-2.0), each file a source.

    The functions that a question needs are those of `possible_answer/`; without an entry there, the
    one function offered, in files named `simple`. Other questions say nothing of the right function
    (irrelevance, or no answers at hand) and give their functions alone. Of functions with one name
    the first description stands. Raises DataError."""
    files = sorted(folder.glob(_BFCL.format("*")))
    if not files:
        raise DataError(f"{folder} has no file {_BFCL.format('NAME')}: give the folder of BFCL's questions")
    catalogue = Catalogue()
    for file in files:
        name = file.stem.removeprefix("BFCL_v4_")
        answers = {line["id"]: line["ground_truth"] for line in _lines(folder / "possible_answer" / file.name)}
        tools: list[CatalogueTool] = []
        questions: list[Question] = []
        for line in _lines(file):
            of_line = read_schemas(line["function"], f"bfcl/{name}")
            tools += of_line
            gold = [key for call in answers.get(line["id"], ()) for key in call]
            if not gold and name.startswith("simple"):
                gold = [of_line[0].name]
            if gold:
                text = "\n".join(part["content"] for part in line["question"][0] if part["role"] == "user")
                questions.append(Question(text, tuple(dict.fromkeys(gold)), f"bfcl/{name}"))
        catalogue = catalogue.with_more(tools, questions)
    return catalogue


def read_openapi(file: Path) -> list[CatalogueTool]:
    """A function for each operation of an OpenAPI 3 file, JSON or YAML: `operationId` (or the
    method and the path), its summary and description, and its parameters and the properties of a
    JSON body. Local references are followed. Raises DataError."""
    try:
        document = read_plain(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON or YAML: {reason(error)}") from error
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3"):
        found = document.get("openapi", document.get("swagger")) if isinstance(document, Mapping) else None
        raise DataError(f"{file} is no OpenAPI 3 (its version is {found!r}): convert it first")
    operations = [
        _operation(document, method, path, item)
        for path, item in (document.get("paths") or {}).items()
        for method in _METHODS
        if isinstance(item, Mapping) and isinstance(item.get(method), Mapping)
    ]
    return read_schemas(operations, f"openapi/{file.stem}")


def read_schema_file(file: Path) -> list[CatalogueTool]:
    """Schemas of a JSON array or of JSON lines, in any spelling that an import of trajectories
    reads. Raises DataError."""
    return read_schemas(list(_lines(file)), f"file/{file.stem}")


def read_schemas(schemas: Sequence[Mapping[str, Any]], source: str) -> list[CatalogueTool]:
    """Schemas in any spelling that an import reads. Raises DataError for what is no tool."""
    try:
        return [CatalogueTool(schema, source) for schema in read_tools(list(schemas)) or ()]
    except (ValueError, KeyError) as error:
        raise DataError(f"{source} has what is no function schema ({reason(error)}): mend or remove it") from error


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in read_records(file) if file.is_file() else ():
        if not isinstance(line, dict):
            raise DataError(f"{file} has a record {number} that cannot be read ({line.reason}): mend or remove it")
        yield line


def _operation(document: Mapping[str, Any], method: str, path: str, item: Mapping[str, Any]) -> dict[str, Any]:
    operation = item[method]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for given in (*item.get("parameters", ()), *operation.get("parameters", ())):
        parameter = _resolved(document, given)
        about = {"description": parameter["description"]} if parameter.get("description") else {}
        properties[parameter["name"]] = {**parameter.get("schema", {}), **about}
        required += [parameter["name"]] * bool(parameter.get("required"))
    body = _resolved(document, operation.get("requestBody") or {})
    schema = body.get("content", {}).get("application/json", {}).get("schema", {})
    properties |= schema.get("properties", {})
    required += schema.get("required", ()) if body.get("required", True) else ()
    text = ". ".join(str(operation[key]).strip(". \n") for key in ("summary", "description") if operation.get(key))
    name = operation.get("operationId") or f"{method}_{path}"
    return {
        "name": re.sub(r"[^A-Za-z0-9.-]+", "_", str(name)).strip("_")[:128],
        "description": text,
        "parameters": {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))},
    }


def _resolved(document: Mapping[str, Any], node: Any, depth: int = 0) -> Any:
    """The node with its local references replaced; one deeper than `_MAX_DEPTH` is left empty."""
    if isinstance(node, list):
        return [_resolved(document, one, depth) for one in node]
    if not isinstance(node, Mapping):
        return node
    if not isinstance(reference := node.get("$ref"), str):
        return {key: _resolved(document, value, depth) for key, value in node.items()}
    if depth == _MAX_DEPTH:
        return {}
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    if found is None:
        raise DataError(f"the reference {reference!r} leads nowhere in its OpenAPI file: bundle the file first")
    return _resolved(document, found, depth + 1)
