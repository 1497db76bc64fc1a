"""The finding about one rule: it holds, it is broken, or nothing in this world could show it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.runtime.limits import clip, reason

MAX_WHY_CHARS = 1500  # quotes are cut shorter than this, so that the remedy at the end stays
Check = Callable[[], None]


class Broken(Exception):
    """The rule does not hold. The text names the task and says what to do."""


class NotTried(Exception):
    """Nothing in this world could show whether the rule holds; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`why` says what is broken, or which parts of the rule could not be tried."""

    rule: str
    state: Literal["ok", "FAILED", "not tried"]
    why: str = ""


def judged(rule: str, checks: Sequence[Check]) -> Finding:
    """Runs the checks of a rule up to the first that fails. A check may run a stranger's code,
    which may raise anything: an exception is a broken rule."""
    not_tried: list[str] = []
    for check in checks:
        try:
            check()
        except NotTried as why:
            not_tried.append(str(why))
        except Broken as broken:
            return Finding(rule, "FAILED", clip(str(broken), MAX_WHY_CHARS))
        except Exception as error:
            return Finding(rule, "FAILED", raised(error))
    return Finding(rule, "not tried" if len(not_tried) == len(checks) else "ok", "; ".join(dict.fromkeys(not_tried)))


def raised(error: Exception) -> str:
    """The exception, with the place in the world's code."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"the world raised {type(error).__name__}: {reason(error)} (in {at.name}, {at.filename}:{at.lineno})"
