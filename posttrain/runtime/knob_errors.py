"""Turns pydantic's errors about `params.yaml` into sentences: key, value, what is accepted, what
was probably meant.

A choice (`algorithm: {type: online, …}`) is a discriminated union, whose tag pydantic puts among
the keys (`algorithm.online.group_size`); here it is left out. Where the type was changed and the
keys of the old one are still there, the problem is one, and its remedy is a block to paste.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from posttrain.runtime.knobs import nearest
from posttrain.runtime.limits import cut
from posttrain.runtime.plain_yaml import load_yaml

Keys = tuple[str | int, ...]
Choice = Mapping[str, type[BaseModel]]  # the sections to choose from, by their `type`

_BOUNDS = {
    annotated_types.Ge: "at least",
    annotated_types.Gt: "above",
    annotated_types.Le: "at most",
    annotated_types.Lt: "below",
}
MAX_KEY_CHARS = 200  # shown of a key, and of a text that is a value
_PUT = "Put this block in its place (your values where it says so, an example's else; beside them what is accepted):"


@dataclass(frozen=True, slots=True)
class Place:
    """`path` has the keys as they stand in the file. `section` holds the last of them (None:
    nothing known does), and is one of `choice` where that is not empty; `field` is the knob there,
    None where the section has none of that name."""

    path: Keys
    section: type[BaseModel] | None
    choice: Choice
    field: FieldInfo | None

    @property
    def key(self) -> str:
        return cut(".".join(map(str, self.path)), MAX_KEY_CHARS) or "(whole file)"


def explain(error: ValidationError, model: type[BaseModel], content: Any) -> list[str]:
    """A line for each problem, or several lines where they end with a block to paste. `model`
    refused `content`, the file as it was read."""
    problems = [(problem, _place(model, problem["loc"])) for problem in error.errors()]
    lines: list[str] = []
    told: set[Keys] = set()
    for problem, place in problems:
        section = place.path[:-1]
        if place.choice and problem["type"] in ("missing", "extra_forbidden"):
            if section in told:
                continue
            same = [(other["type"], one) for other, one in problems if one.choice and one.path[:-1] == section]
            places = [one.path for _, one in problems]
            if told_as_one := _another_type(place, same, _at(content, section), places):
                told.add(section)
                lines.append(told_as_one)
                continue
        lines.append(_line(problem, place))
    return lines


def _line(problem: Any, place: Place) -> str:
    key, given, field = place.key, problem["input"], place.field
    match problem["type"]:
        case "extra_forbidden":
            meant = nearest(str(place.path[-1]), place.section.model_fields) if place.section else ""
            return (
                f"{key}: unknown key; no stage reads it, so it would change nothing.{meant} Check the spelling "
                "or remove "
                "it"
            )
        case "missing":
            return f"{key}: missing; every knob is written out, there are no defaults"
        case "union_tag_invalid" | "union_tag_not_found" | "model_attributes_type":
            return _no_type(problem, place)
        case "float_type" if isinstance(given, str):
            return f"{key} = {_shown(given)}: a string, not a number; YAML reads 1e-5 as text, write 1.0e-5"
        case "int_type" if isinstance(given, str):
            said = "a string, not an integer; write it in plain decimal digits and without quotes"
            return f"{key} = {_shown(given)}: {said}"
    reason = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "literal_error" and field is not None:
        reason += f".{nearest(str(given), map(str, get_args(field.annotation)))}"
    if problem["type"] == "less_than_equal" and field is not None and field.description:
        reason += f": {field.description}"  # why there is such a bound
    return f"{key}: {reason}" if isinstance(given, dict) else f"{key} = {_shown(given)}: {reason}"


def _no_type(problem: Any, place: Place) -> str:
    """Line for a choice without a known type, or with its type where the section should stand."""
    key, given, types = place.key, problem["input"], _choice(place.field)
    if problem["type"] == "union_tag_invalid":
        tag = problem["ctx"]["tag"]
        return f"{key}.type = {tag!r}: there is no such type; there are {', '.join(types)}.{nearest(tag, types)}"
    if problem["type"] == "union_tag_not_found":
        return f"{key}.type: missing; it says which of {', '.join(types)} is meant"
    if isinstance(given, str) and given in types:
        block = _block(place.path, types[given], {}, frozenset())
        return f"{key} = {_shown(given)}: a type stands among its own knobs, and here alone. {_PUT}\n{block}"
    return f"{key} = {_shown(given)}: this is a section with a type, one of {', '.join(types)}"


def _another_type(place: Place, same: Sequence[tuple[str, Place]], given: Any, refused: Sequence[Keys]) -> str | None:
    """The one line for all keys that are missing in a section or left over from another type; None
    where it is of one type and a key is misspelt or forgotten.

    `same` are the problems of that section, `refused` the places of all problems.
    """
    section, path = place.section, place.path[:-1]
    if section is None:
        return None
    extra = [str(one.path[-1]) for kind, one in same if kind == "extra_forbidden"]
    missing = [str(one.path[-1]) for kind, one in same if kind == "missing"]
    other_of = {name: tag for tag, other in place.choice.items() if other is not section for name in other.model_fields}
    left_over = [name for name in extra if name in other_of]
    is_whole_other = any(
        set(given) == set(other.model_fields) for other in place.choice.values() if other is not section
    )
    if not left_over and not is_whole_other and set(given) & (set(section.model_fields) - {"type"}):
        return None
    unknown = [name for name in extra if name not in other_of]
    found = {
        f"of {', '.join(sorted({other_of[name] for name in left_over}))}": left_over,
        "missing": missing,
        "of no type": unknown,
    }
    reasons = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in found.items() if names
    ]
    bad = frozenset(str(one[len(path)]) for one in refused if one[: len(path)] == path and len(one) > len(path))
    key = ".".join(map(str, path))
    return f"{key}: its type is {given['type']}, and {'; '.join(reasons)}. {_PUT}\n{_block(path, section, given, bad)}"


def _block(path: Keys, section: type[BaseModel], given: Mapping[str, Any], bad: frozenset[str]) -> str:
    """The section as it may stand in the file, indented as deep. A knob that is `given`, and not
    `bad`, keeps its value; the others have that of the section's `example`."""
    example: Mapping[str, Any] = load_yaml(getattr(section, "example", "{}"), section.__name__)
    indent = "  " * (len(path) - 1)
    lines = [f"{indent}{path[-1]}:"]
    for name, field in section.model_fields.items():
        is_own = name in given and name not in bad
        if name == "type":
            lines.append(f"{indent}  type: {given.get('type') or get_args(field.annotation)[0]}")
        elif is_own or name in example:
            notes = "; ".join(filter(None, [_accepted(field), "yours" if is_own else ""]))
            value = _flow(given[name] if is_own else example[name])
            lines.append(f"{indent}  {name}: {value}{f'  # {notes}' if notes else ''}")
    return "\n".join(lines)


def _accepted(field: FieldInfo) -> str:
    """`at least 1 and at most 1000`, `muon | adamw`, or nothing where any text or number is."""
    if get_origin(field.annotation) is Literal:
        return " | ".join(map(str, get_args(field.annotation)))
    if field.annotation is bool:
        return "true | false"
    bounds = [
        (_BOUNDS.get(type(bound)), getattr(bound, type(bound).__name__.lower(), None)) for bound in field.metadata
    ]
    return " and ".join(f"{words} {value}" for words, value in bounds if words)


def _shown(value: Any) -> str:
    """Its repr, shortened: a few letters of YAML can stand for a list of billions (`*name`)."""
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 3, 20, 20
    short.maxstring, short.maxlong, short.maxother = MAX_KEY_CHARS, 80, MAX_KEY_CHARS
    return short.repr(value)


def _flow(value: Any) -> str:
    """One line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n...\n").strip()


def _place(model: type[BaseModel], location: Keys) -> Place:
    """Follows pydantic's location, in which a choice's type stands behind the choice's key."""
    place = Place((), None, {}, None)
    here: Any = model
    among: Choice = {}  # what `here` was chosen from
    offered: Choice = {}  # what the next part of the location chooses from
    for part in location:
        if part in offered:
            here, among, offered = offered[str(part)], offered, {}
            continue
        if isinstance(part, int):
            place = Place((*place.path, part), None, {}, None)
            here = next(iter(get_args(here)), None)
        else:
            section = here if isinstance(here, type) and issubclass(here, BaseModel) else None
            field = section.model_fields.get(part) if section else None
            place = Place((*place.path, part), section, among, field)
            here, offered = field.annotation if field else None, _choice(field)
        among = {}
    return place


def _choice(field: FieldInfo | None) -> Choice:
    """What a knob chooses from, empty where it is no choice."""
    if field is None or field.discriminator is None:
        return {}
    return {_tag(member): _unwrapped(member) for member in get_args(field.annotation)}


def _tag(member: Any) -> str:
    """The `type` of one section of a choice: what it is tagged with, or its only literal."""
    tagged = [one.tag for one in getattr(member, "__metadata__", ()) if isinstance(one, Tag)]
    return tagged[0] if tagged else str(get_args(member.model_fields["type"].annotation)[0])


def _unwrapped(member: Any) -> Any:
    return member.__origin__ if get_origin(member) is Annotated else member


def _at(content: Any, path: Keys) -> Any:
    for part in path:
        content = content[part]
    return content
