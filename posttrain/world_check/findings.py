"""What is said about one rule: it holds, it is broken, or it could not be tried, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from posttrain.runtime.limits import clip, reason

MAX_WHY_CHARS = 1500  # what it quotes is cut shorter, so that the remedy at its end stays
State = Literal["ok", "FAILED", "not tried"]


class Broken(Exception):
    """The rule does not hold. The text is a sentence that names the task and what to do."""


class NotTried(Exception):
    """Nothing in this world could show whether the rule holds; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` as the page has it; `why` is empty where the rule holds."""

    rule: str
    state: State
    why: str = ""


def judged(rule: str, check: Callable[[], None]) -> Finding:
    """What `check` comes to. It may run somebody's code, which may end in any way: an exception is
    a broken rule."""
    try:
        check()
    except NotTried as not_tried:
        return Finding(rule, "not tried", str(not_tried))
    except Broken as broken:
        return Finding(rule, "FAILED", clip(str(broken), MAX_WHY_CHARS))
    except Exception as error:
        return Finding(rule, "FAILED", f"the world raised {type(error).__name__}: {reason(error)}")
    return Finding(rule, "ok")
