"""Turns pydantic's errors about `params.yaml` into problems: key, value, what is accepted, what was
probably meant.

A choice (`algorithm: {type: online, …}`) is a discriminated union, whose tag pydantic puts among
the keys (`algorithm.online.group_size`); here it is left out. Where a knob of a chosen section is
missing, the remedy shows an example of that section.
"""

import reprlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import Problem
from posttrain.runtime.knobs import nearest
from posttrain.runtime.limits import cut

Keys = tuple[str | int, ...]
Choice = Mapping[str, type[BaseModel]]  # the sections to choose from, by their `type`

_MANY = 3  # problems of one kind in a section, from which on its type was changed rather than a knob misspelt
MAX_KEY_CHARS = 200  # shown of a key, and of a text that is a value
_KINDS = {
    "extra_forbidden": "unknown",
    "missing": "missing",
    "literal_error": "no_such_choice",
    "union_tag_invalid": "no_such_type",
    "union_tag_not_found": "no_type",
    "model_attributes_type": "no_section",
    "value_error": "contradiction",
}
_ELSEWHERE = {"unknown": "unknown key", "missing": "missing"}  # reasons, where no stage reads the keys


@dataclass(frozen=True, slots=True)
class Place:
    """`path` has the keys as they stand in the file. `section` holds the last of them (None:
    nothing known does); `field` is the knob there, None where the section has none of that name."""

    path: Keys
    section: type[BaseModel] | None = None
    field: FieldInfo | None = None

    @property
    def key(self) -> str:
        return cut(".".join(map(str, self.path)), MAX_KEY_CHARS) or "(whole file)"


def explain(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The problems for which `model` refused a file."""
    return [_problem(problem, _place(model, problem["loc"])) for problem in error.errors()]


def why_unread(error: OSError | TypeError | ValidationError, model: type[BaseModel]) -> str:
    """Why another file than `params.yaml` cannot be read as `model`: a line for each problem."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, TypeError):
        return str(error)
    own = [replace(one, reason=_ELSEWHERE.get(one.kind, one.reason)) for one in explain(error, model)]
    return "".join(f"\n  - {escape_control_chars(line)}" for line in problem_lines(own))


def problem_lines(problems: Sequence[Problem]) -> list[str]:
    """A line for each problem; of a section whose type was changed, one line for all knobs that it
    does not know, and one for all that it lacks."""
    groups: dict[Hashable, list[Problem]] = {}
    for one in problems:
        groups.setdefault((one.key.rpartition(".")[0], one.kind, one.of_type) if one.of_type else one, []).append(one)
    return [
        line for group in groups.values() for line in ([_of_section(group)] if len(group) >= _MANY else map(str, group))
    ]


def _of_section(group: Sequence[Problem]) -> str:
    section, names = group[0].key.rpartition(".")[0], ", ".join(one.key.rpartition(".")[2] for one in group)
    if group[0].kind == "unknown":
        return f"{section}: a section of type {group[0].of_type} has no {names}. Remove them"
    return f"{section}: missing {names}; every knob is written out, there are no defaults. {group[0].remedy}".strip()


def _problem(problem: Any, place: Place) -> Problem:
    key, given, field, kind = place.key, problem["input"], place.field, _kind(problem["type"])
    of_type = _type_of(place.section)
    match problem["type"]:
        case "extra_forbidden":
            meant = nearest(str(place.path[-1]), place.section.model_fields) if place.section else ""
            reason = "unknown key; no stage reads it, so it would change nothing"
            return Problem(key, kind, reason, f"{meant} Check the spelling or remove it".strip(), of_type=of_type)
        case "missing":
            example = getattr(place.section, "example", "")
            remedy = f"A section of type {given.get('type')} is like {example}" if example else ""
            reason = "missing; every knob is written out, there are no defaults"
            return Problem(key, kind, reason, remedy, of_type=of_type)
        case "union_tag_invalid":
            tag, types = problem["ctx"]["tag"], _choice(field)
            named = ", ".join(types) or problem["ctx"]["expected_tags"]
            reason = f"there is no such type; there are {named}"
            return Problem(f"{key}.type", kind, reason, nearest(tag, types).strip(), repr(tag))
        case "union_tag_not_found":
            return Problem(f"{key}.type", kind, f"missing; it names one of {', '.join(_choice(field))}")
        case "model_attributes_type":
            reason = f"this is a section with a type, one of {', '.join(_choice(field))}"
            return Problem(key, kind, reason, value=_shown(given))
        case "float_type" if isinstance(given, str):
            reason = "a string, not a number; YAML reads 1e-5 as text"
            return Problem(key, kind, reason, "Write 1.0e-5", _shown(given))
    reason, remedy = problem["msg"].removeprefix("Value error, "), ""
    if problem["type"] == "literal_error" and field is not None:
        remedy = nearest(str(given), map(str, get_args(field.annotation))).strip()
    if problem["type"] == "less_than_equal" and field is not None and field.description:
        reason += f": {field.description}"  # the reason for such a bound
    return Problem(key, kind, reason, remedy, None if isinstance(given, dict) else _shown(given))


def _kind(pydantic_type: str) -> str:
    """The short name of a problem, from pydantic's many."""
    if pydantic_type.startswith(("greater_than", "less_than", "too_", "finite_")):
        return "out_of_range"
    return _KINDS.get(pydantic_type, "wrong_type" if pydantic_type.endswith("_type") else pydantic_type)


def _shown(value: Any) -> str:
    """The value's repr, shortened: `*name` in YAML can stand for a list of billions."""
    if isinstance(value, int) and abs(value) > 10**80:  # Python refuses to write 4,301 digits
        return "a number of more than 80 digits"
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 3, 20, 20
    short.maxstring, short.maxlong, short.maxother = MAX_KEY_CHARS, 80, MAX_KEY_CHARS
    return short.repr(value)


def _place(model: type[BaseModel], location: Keys) -> Place:
    """Follows pydantic's location, in which a choice's type stands behind the choice's key."""
    place = Place(())
    here: Any = model
    offered: Choice = {}  # what the next part of the location chooses from
    for part in location:
        if part in offered:
            here, offered = offered[str(part)], {}
        elif isinstance(part, int):
            place, here = Place((*place.path, part)), next(iter(get_args(here)), None)
        else:
            section = here if isinstance(here, type) and issubclass(here, BaseModel) else None
            field = section.model_fields.get(part) if section else None
            place = Place((*place.path, part), section, field)
            here, offered = field.annotation if field else None, _choice(field)
    return place


def _choice(field: FieldInfo | None) -> Choice:
    """Sections that a knob chooses from, by type; empty where it is no choice."""
    if field is None or field.discriminator is None:
        return {}
    return {_tag(member): _unwrapped(member) for member in get_args(field.annotation)}


def _tag(member: Any) -> str:
    """The `type` of one section of a choice: what it is tagged with, or its only literal."""
    tagged = [one.tag for one in getattr(member, "__metadata__", ()) if isinstance(one, Tag)]
    return tagged[0] if tagged else str(get_args(member.model_fields["type"].annotation)[0])


def _type_of(section: type[BaseModel] | None) -> str:
    """The `type` of a section that is one of a choice; empty for any other."""
    field = section.model_fields.get("type") if section else None
    return str(next(iter(get_args(field.annotation)), "")) if field else ""


def _unwrapped(member: Any) -> Any:
    return member.__origin__ if get_origin(member) is Annotated else member
