"""What must hold of a world's tasks and tools before anything is played."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from posttrain.data.validation.bounded_schema import is_schema
from posttrain.data.validation.leakage import HELD_OUT_SPLITS
from posttrain.runtime.limits import reason
from posttrain.types import SPLITS, Split, Task
from posttrain.world_check.findings import Broken, NotTried
from posttrain.worlds.knobs import WorldParams
from posttrain.worlds.protocol import Domain
from posttrain.worlds.tools import Tool

TasksBySplit = Mapping[Split, Sequence[Task]]
CHILD_TIMEOUT_S = 600
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a function, as OpenAI's API accepts it


def counts_of(world: WorldParams, num_tasks: int) -> dict[Split, int]:
    """How many tasks of each split are looked at: `num_tasks`, or all that the section wants."""
    return {split: min(num_tasks, getattr(world, f"num_{split.removesuffix('_paraphrase')}_tasks")) for split in SPLITS}


def listed(domain: Domain, counts: Mapping[Split, int]) -> dict[Split, list[Task]]:
    """Raises Broken where a split cannot be had."""
    found: dict[Split, list[Task]] = {}
    for split, count in counts.items():
        try:
            found[split] = list(domain.tasks(split, count))
        except Exception as error:  # somebody's own code
            raise Broken(
                f"tasks({split!r}, {count}) raised {type(error).__name__}: {reason(error)}; "
                f"give so many, or lower world.num_{split}_tasks"
            ) from error
    return found


def as_asked(tasks: TasksBySplit, counts: Mapping[Split, int]) -> None:
    """So many as were asked for, or none of the other phrasing, each in its split."""
    for split, own in tasks.items():
        if len(own) != counts[split] and not (split == "test_paraphrase" and not own):
            raise Broken(f"tasks({split!r}, {counts[split]}) gave {len(own)}; give so many or raise ValueError")
        for task in own:
            if task.split != split:
                raise Broken(f"{task.task_id} of {split} says that its split is {task.split!r}; set Task.split")


def ids_are_unique(tasks: TasksBySplit) -> None:
    counted = Counter(task.task_id for task in chain(*tasks.values()))
    if twice := [task_id for task_id, number in counted.items() if number > 1]:
        where = [split for split, own in tasks.items() for task in own if task.task_id == twice[0]]
        raise Broken(f"{twice[0]!r} is the id of {len(where)} tasks ({', '.join(where)}); put the split into the id")


def labels_are_texts(tasks: TasksBySplit) -> None:
    for task in chain(*tasks.values()):
        for name, value in task.labels.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise Broken(f"{task.task_id} has the label {name!r}: {value!r}; names and values are texts: use str()")


def longer_begins_with_shorter(domain: Domain, tasks: TasksBySplit) -> None:
    for split, own in tasks.items():
        shorter = domain.tasks(split, len(own) // 2) if len(own) > 1 else []
        if (at := _first_difference(shorter, own[: len(shorter)])) is not None or len(shorter) != len(own) // 2:
            which = own[at or 0].task_id
            raise Broken(
                f"tasks({split!r}, {len(own) // 2}) is not how tasks({split!r}, {len(own)}) begins, first at {which}; "
                "let the count decide nothing but where the list ends"
            )


def same_again(tasks: TasksBySplit, again: TasksBySplit) -> None:
    """`again` was listed by another domain of the same section."""
    for split, own in tasks.items():
        if (at := _first_difference(own, again[split])) is not None:
            raise Broken(
                f"{_id_at(own, at)} is another task in a second domain of the same section; "
                "draw everything from world.seed and the task's place, never from a generator of the module"
            )


def same_elsewhere(world: WorldParams, counts: Mapping[Split, int], tasks: TasksBySplit) -> None:
    """Lists them in a process with other hashes, where sets have another order."""
    mine = os.environ.get("PYTHONHASHSEED")
    environment = os.environ | {
        "PYTHONHASHSEED": "2718" if mine != "2718" else "3141",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    asked = json.dumps({"world": world.model_dump(mode="json"), "counts": counts})
    ended = subprocess.run(
        [sys.executable, "-m", "posttrain.world_check.list_tasks"],
        input=asked, env=environment, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if ended.returncode:
        said = (ended.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise Broken(f"in a process of its own the world cannot list its tasks: {reason(said)}")
    theirs = json.loads(ended.stdout.splitlines()[-1])
    for split, own in tasks.items():
        if (at := _first_difference([canonical(task) for task in own], theirs[split])) is not None:
            raise Broken(
                f"{_id_at(own, at)} is another task in a process with another PYTHONHASHSEED; "
                "sort what comes out of a set, and seed with a text, not with hash()"
            )


def canonical(task: Task) -> str:
    """Equal for equal tasks, in any process."""
    messages = [message.to_openai() for message in task.messages]
    fields = [task.task_id, task.split, messages, list(task.tools), dict(task.labels), task.goal, task.template]
    return json.dumps([*fields, list(task.entities), task.agent_name], sort_keys=True, default=repr)


def entities_are_kept_apart(tasks: TasksBySplit) -> None:
    of_sft = {entity: task.task_id for task in tasks.get("sft", ()) for entity in task.entities}
    held_out = [task for split, own in tasks.items() if split in HELD_OUT_SPLITS for task in own]
    if not of_sft or not any(task.entities for task in held_out):
        raise NotTried("its tasks name no entities on both sides")
    for task in held_out:
        if shared := [entity for entity in task.entities if entity in of_sft]:
            raise Broken(
                f"{task.task_id} is about {shared[0]!r}, and so is {of_sft[shared[0]]} of sft; "
                "give each split entities of its own, or what was learnt by heart counts as skill"
            )


def schemas_are_openais(tools: Mapping[str, Tool]) -> None:
    """A name that the API accepts, a description, and parameters that are a JSON schema of an
    object. No `$ref` is fetched."""
    if not tools:
        raise NotTried("the world has no tools")
    for key, tool in tools.items():
        if key != tool.name:
            raise Broken(f"the tool {tool.name!r} stands under the name {key!r}; use one name")
        if not _NAME.fullmatch(tool.name):
            raise Broken(f"the tool {tool.name!r} has a name that no OpenAI API takes; use 1 to 64 of A-Z a-z 0-9 _ -")
        if not isinstance(tool.description, str) or not tool.description.strip():
            raise Broken(f"the tool {tool.name!r} has no description; the agent cannot know what it does")
        parameters = dict(tool.parameters)
        text = json.dumps(parameters)
        if not is_schema(text) or parameters.get("type") != "object":
            raise Broken(
                f"the parameters of the tool {tool.name!r} are no JSON schema of an object: {reason(text[:200])}; "
                "derive them with tool_from"
            )


def _first_difference(some: Sequence[object], others: Sequence[object]) -> int | None:
    for at, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return at
    return None if len(some) == len(others) else min(len(some), len(others))


def _id_at(tasks: Sequence[Task], at: int) -> str:
    return tasks[at].task_id if at < len(tasks) else f"the task after {tasks[-1].task_id if tasks else 'none'}"
