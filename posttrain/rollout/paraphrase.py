"""The questions of demonstrations in other words, by a model behind an OpenAI-compatible endpoint.

A paraphrase is used only if the goal is unchanged: every word with a digit or a capital letter
(codes, numbers, dates, names) stands in it as it did, and the model, asked anew with the two in
either order, holds both times that they ask for the same. Chinese names have neither; the second
check alone guards them.
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.data.params import ParaphraseParams
from posttrain.rollout.asked_once import AskedOnce, object_in
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.runtime.endpoint_limits import ChatParameters
from posttrain.types import Task

MAX_TOKENS = 512
_REWORD = """You reword what a user asks of an assistant, in the same language, as another person would put it.
Keep every name, code, number and date exactly as it is, and what is asked for. Answer with JSON alone:
{"text": "…"}"""
_COMPARE = """You compare two requests to an assistant. Answer with JSON alone: {"same": true} if whoever fulfils one
has fulfilled the other, in every detail, else {"same": false}"""
_KEPT = re.compile(r"[A-Za-z]*[A-Z0-9][\w./%-]*", re.ASCII)


def paraphrased(tasks: Sequence[Task], params: ParaphraseParams, *, seed: int, folder: Path) -> tuple[list[Task], int]:
    """The tasks, `params.frac` of them with a last message in other words, and the number of
    paraphrases that were refused: their tasks keep their own words."""
    policy = OpenAiPolicy(
        params.model,
        temperature=params.temperature,
        max_new_tokens=MAX_TOKENS,
        parameters=ChatParameters(folder / "refused_parameters.json"),
    )
    asked = AskedOnce(policy, folder, about=json.dumps([params.model, params.temperature]))
    draw = random.Random(f"paraphrase {seed}")
    places = sorted(draw.sample(range(len(tasks)), k=round(params.frac * len(tasks))))
    texts = [tasks[place].messages[-1].content for place in places]
    answers = [object_in(one).get("text") for one in asked.answers(_REWORD, [_quoted(one) for one in texts])]
    reworded = [one.strip() if isinstance(one, str) else "" for one in answers]
    is_kept = [bool(new) and new != old and _kept(old) == _kept(new) for old, new in zip(texts, reworded, strict=True)]
    for forth in (True, False):
        pairs = [_quoted(*((old, new) if forth else (new, old))) for old, new in zip(texts, reworded, strict=True)]
        held = [place for place, one in enumerate(is_kept) if one]
        verdicts = asked.answers(_COMPARE, [pairs[place] for place in held])
        for place, verdict in zip(held, verdicts, strict=True):
            is_kept[place] = object_in(verdict).get("same") is True
    found = list(tasks)
    for place, text, is_one in zip(places, reworded, is_kept, strict=True):
        if is_one:
            found[place] = _asked_as(tasks[place], text)
    return found, is_kept.count(False)


def _quoted(*texts: str) -> str:
    """A line of JSON each, which no text can end."""
    return "\n".join(json.dumps(one, ensure_ascii=False) for one in texts)


def _kept(text: str) -> list[str]:
    """The words that have to stay, whatever their order; the first of a sentence may be of it."""
    words = [one.rstrip(".-/") for one in _KEPT.findall(text)]
    return sorted(one for one in words if not (one[1:].islower() and text.startswith(one)))


def _asked_as(task: Task, text: str) -> Task:
    content = hashlib.sha256(json.dumps([task.task_id, text]).encode()).hexdigest()
    return replace(task, task_id=content[:16], messages=(*task.messages[:-1], replace(task.messages[-1], content=text)))
