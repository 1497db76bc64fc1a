"""Rules about a world's tasks and tools, which need no episode."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from posttrain.data.validation.calls import is_schema
from posttrain.data.validation.leakage import HELD_OUT_SPLITS
from posttrain.runtime.limits import reason
from posttrain.types import SPLITS, Split, Task
from posttrain.world_check.findings import Broken, NotTried
from posttrain.worlds.catalog import make_domain, world_params
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import Domain, GoalDomain
from posttrain.worlds.tools import Tool

TasksBySplit = Mapping[Split, Sequence[Task]]
CHILD_TIMEOUT_S = 600
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # function names that OpenAI's API accepts


def counts_of(world: WorldParams, num_tasks: int, splits: Sequence[Split] = SPLITS) -> dict[Split, int]:
    """The number of tasks to check of each split: `num_tasks`, or as many as the section has."""
    return {split: min(num_tasks, getattr(world, f"num_{split.partition('_')[0]}_tasks")) for split in splits}


def list_tasks(domain: Domain, counts: Mapping[Split, int]) -> dict[Split, list[Task]]:
    """Raises Broken where a split raises."""
    found: dict[Split, list[Task]] = {}
    for split, count in counts.items():
        try:
            found[split] = list(domain.tasks(split, count))
        except Exception as error:  # the world's own code
            raise Broken(
                f"tasks({split!r}, {count}) raised {type(error).__name__}: {reason(error)}; "
                f"return {count} tasks, or lower world.num_{split}_tasks"
            ) from error
    return found


def splits_are_complete(tasks: TasksBySplit, counts: Mapping[Split, int]) -> None:
    """Each split has the count asked for (test_paraphrase may have none), its tasks name it, have
    texts for labels, and an id that no other has."""
    counted = Counter(task.task_id for task in chain(*tasks.values()))
    for split, own in tasks.items():
        if len(own) != counts[split] and not (split == "test_paraphrase" and not own):
            raise Broken(
                f"tasks({split!r}, {counts[split]}) gave {len(own)} tasks; return {counts[split]} or raise ValueError"
            )
        for task in own:
            if task.split != split:
                raise Broken(f"{task.task_id} of {split} says that its split is {task.split!r}; set Task.split")
            if wrong := [pair for pair in task.labels.items() if not all(isinstance(part, str) for part in pair)]:
                raise Broken(f"{task.task_id} has the label {wrong[0]!r}; names and values are texts: use str()")
            if (number := counted[task.task_id]) > 1:
                raise Broken(f"{task.task_id!r} is the id of {number} tasks, one of {split}; put the split into the id")


def goals_are_described(domain: Domain, tasks: TasksBySplit) -> None:
    if not isinstance(domain, GoalDomain):
        raise NotTried("the world has no describe_goal")
    for task in chain(*tasks.values()):
        goal: Any = domain.describe_goal(task)
        if not isinstance(goal, str) or not goal.strip() or "\n" in goal:
            raise Broken(f"describe_goal of {task.task_id} gives {goal!r}; return one line of text for a reader")


def longer_list_begins_with_shorter(domain: Domain, tasks: TasksBySplit) -> None:
    for split, own in tasks.items():
        half = len(own) // 2
        shorter = domain.tasks(split, half) if half else []
        _require_same(
            own[:half],
            [_as_text(task) for task in shorter],
            f"where {half} are asked for and not {len(own)}; let the count decide nothing but where the list ends",
        )


def same_in_second_domain(tasks: TasksBySplit, again: TasksBySplit) -> None:
    """`again` was listed by another domain of the same section."""
    for split, own in tasks.items():
        _require_same(
            own,
            [_as_text(task) for task in again[split]],
            "in a second domain of the same section; "
            "draw everything from world.seed and the task's index, never from a generator of the module",
        )


def same_in_other_process(world: WorldParams | None, counts: Mapping[Split, int], tasks: TasksBySplit) -> None:
    """Lists the tasks in a process with another PYTHONHASHSEED, where sets have another order."""
    if world is None:
        raise NotTried("no section says how another process makes the world")
    seed = "2718" if os.environ.get("PYTHONHASHSEED") != "2718" else "3141"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-m", "posttrain.world_check.tasks"],
        input=json.dumps({"world": world.model_dump(mode="json"), "counts": counts}),
        env=environment, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise Broken(f"another process cannot list the world's tasks: {reason(ended.stderr[-300:])}")
    theirs = json.loads(ended.stdout.splitlines()[-1])
    for split, own in tasks.items():
        _require_same(
            own,
            theirs[split],
            "in a process with another PYTHONHASHSEED; "
            "sort what comes out of a set, and seed with a text, not with hash()",
        )


def entities_are_kept_apart(tasks: TasksBySplit) -> None:
    of_sft = {entity: task.task_id for task in tasks.get("sft", ()) for entity in task.entities}
    held_out = [task for split, own in tasks.items() if split in HELD_OUT_SPLITS for task in own]
    if not of_sft or not any(task.entities for task in held_out):
        raise NotTried("its tasks name no entities on both sides")
    for task in held_out:
        if shared := [entity for entity in task.entities if entity in of_sft]:
            raise Broken(
                f"{task.task_id} is about {shared[0]!r}, and so is {of_sft[shared[0]]} of sft; "
                "give each split entities of its own, or memorized answers count as skill"
            )


def offered_tools_exist(domain: Domain, tasks: TasksBySplit) -> None:
    for task in chain(*tasks.values()):
        if missing := [name for name in task.tools if name not in domain.tools]:
            raise Broken(f"{task.task_id} offers {missing[0]!r}, which the domain's tools have not; add it there")


def schemas_are_openais(tools: Mapping[str, Tool]) -> None:
    """A name that the API accepts, a description, and a JSON schema of an object."""
    if not tools:
        raise NotTried("the world has no tools")
    for key, tool in tools.items():
        if key != tool.name or not _NAME.fullmatch(tool.name):
            raise Broken(f"the tool {tool.name!r}, listed as {key!r}, needs one name of 1 to 64 of A-Z a-z 0-9 _ -")
        if not tool.description.strip():
            raise Broken(f"the tool {tool.name!r} has no description; the agent cannot know what it does")
        text = json.dumps(dict(tool.parameters))
        if not is_schema(text) or tool.parameters.get("type") != "object":
            raise Broken(
                f"the parameters of the tool {tool.name!r} are no JSON schema of an object: {reason(text[:200])}; "
                "derive them with tool_from"
            )


def _require_same(own: Sequence[Task], again: Sequence[str], where: str) -> None:
    for task, text in zip_longest(own, again):
        if task is None or _as_text(task) != text:
            raise Broken(f"{task.task_id if task else 'a task more'} is another task {where}")


def _as_text(task: Task) -> str:
    """JSON that is equal for equal tasks, in any process."""
    messages = [message.to_openai() for message in task.messages]
    fields = [task.task_id, task.split, messages, list(task.tools), dict(task.labels), task.goal, task.template]
    return json.dumps([*fields, list(task.entities), task.agent_name], sort_keys=True, default=repr)


def _main() -> None:
    """The other process: section and counts on stdin, tasks on stdout."""
    asked = json.load(sys.stdin)
    tasks = list_tasks(make_domain(world_params(asked["world"])), asked["counts"])
    print(json.dumps({split: [_as_text(task) for task in own] for split, own in tasks.items()}))


if __name__ == "__main__":
    _main()
