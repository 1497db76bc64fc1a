"""`posttrain evaluate-endpoint`: evaluates a model behind any OpenAI-compatible endpoint in any
world, with the figures of the stage `evaluate`."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.cli.command import Commands, add_command
from posttrain.cli.named_world import PARAMS, domain_of, read_settings, reward_of, section_of
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.limits import reason
from posttrain.runtime.state import STATE_DIR, private_folder
from posttrain.types import SPLITS, Split, Task, Trajectory

if TYPE_CHECKING:
    from posttrain.config.params import Params
    from posttrain.rollout.params import AgentParams
    from posttrain.worlds.params import WorldParams
    from posttrain.worlds.protocol import Domain

ENDPOINTS = STATE_DIR / "endpoints"
# Where params.yaml names another world, whose episodes its limits are about.
DEFAULT_AGENT = {
    "max_turns": 30,
    "max_new_tokens": 1024,
    "max_context_tokens": 32_768,
    "max_seconds": 900.0,
    "tool_timeout_s": 60.0,
    "tool_retries": 1,
    "max_result_chars": 20_000,
    "max_aborted_frac": 0.02,
}


def add_evaluate_endpoint(commands: Commands) -> None:
    """The command `evaluate-endpoint`."""
    command = add_command(commands, "evaluate-endpoint", evaluate_endpoint)
    command.add_argument("model", help="as the endpoint calls it")
    command.add_argument("--world", required=True, help="a world's type, or your own as module:name")
    command.add_argument("--params", type=Path, help="whose world, agent and reward count; params.yaml by default")
    command.add_argument("--split", choices=SPLITS, default="test", help="whose tasks (test)")
    command.add_argument("--num-tasks", type=int, default=100, help="of the split (100, or all there are)")
    command.add_argument("--num-samples", type=int, default=4, help="plays at temperature 1 of each, for pass^k (4)")
    command.add_argument("--max-new-tokens", type=int, default=1024, help="in one message (1024)")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a page")


def evaluate_endpoint(
    model: str,
    world: str,
    params: Path | None,
    split: Split,
    num_tasks: int,
    num_samples: int,
    max_new_tokens: int,
    as_json: bool,
) -> None:
    """Evaluate the model behind OPENAI_BASE_URL in a world. Plays each task once greedily and some
    times at temperature 1; finished episodes are kept, and not paid for twice."""
    from posttrain.evals.summary import evaluated_tasks, summarise
    from posttrain.rollout.openai_policy import OpenAiPolicy
    from posttrain.rollout.resume import resume_episodes
    from posttrain.runtime.endpoint_limits import ChatParameters, account_of

    if num_tasks < 1 or num_samples < 0 or max_new_tokens < 1:
        raise ConfigurationError("--num-tasks and --max-new-tokens are 1 or more, --num-samples 0 or more")
    settings = read_settings(params)
    section = section_of(world, settings)
    domain = domain_of(section)
    rule, whose = reward_of(domain, settings, (params or PARAMS).name)
    limits, account = _limits(settings, section), account_of("POSTTRAIN_OPENAI")
    tasks = _tasks_of(domain, section, split, num_tasks)
    parameters = ChatParameters(_file(model, section, limits, "refused parameters"))

    def play(plays: Sequence[Task], temperature: float, seeds: Sequence[int]) -> list[Trajectory]:
        policy = OpenAiPolicy(
            model, temperature=temperature, max_new_tokens=max_new_tokens, account=account, parameters=parameters
        )
        file = _file(model, section, limits, f"{max_new_tokens} {temperature:g} {split}")
        progress = _progress("greedy" if temperature == 0 else "sampled")
        played = resume_episodes(policy, plays, file, domain=domain, limits=limits, seeds=seeds, progress=progress)
        return [rule.score(trajectory, task) for trajectory, task in zip(played, plays, strict=True)]

    greedy = play(tasks, 0.0, [0] * len(tasks))
    sampled = play([task for task in tasks for _ in range(num_samples)], 1.0, [*range(1, num_samples + 1)] * len(tasks))
    # A summary is of the tasks of `test`; here all are of one split, whichever it is.
    evaluated = evaluated_tasks(
        [replace(task, split="test") for task in tasks], greedy, sampled, num_samples=num_samples
    )
    if all(one.greedy.is_aborted for one in evaluated):
        raise Interrupted("every greedy episode was aborted, so there is no result: run it again")
    by = sorted({name for task in tasks for name in task.labels})
    summary = {
        "model": model,
        "world": domain.name,
        "split": split,
        "rewarded_by": whose,
        "cost": account.cost,
        "endpoint_parameters": parameters.changed,
        **summarise(evaluated, num_samples=num_samples, by=by),
    }
    print(json.dumps(summary, indent=2, ensure_ascii=False) if as_json else page(summary))


def page(summary: Mapping[str, Any]) -> str:
    """The rates with their intervals, what went wrong, and the scores."""
    from posttrain.runtime.control_chars import escape_control_chars

    num_samples, level = summary["num_samples"], summary["ci_level"]
    lines = [
        escape_control_chars(
            f"{summary['model']} on {summary['world']}: {summary['num_tasks']} tasks of {summary['split']}, each "
            f"greedily and {num_samples} times at temperature 1; {summary['rewarded_by']}"
        ),
        "",
    ]
    if changed := summary["endpoint_parameters"]:
        lines[1:] = [f"the endpoint refused: {', '.join(f'{name} ({how})' for name, how in changed.items())}", ""]
    for name, prefix in (("strict success", "strict_"), ("success", "")):
        low, high = 100 * summary[f"{prefix}ci_low"], 100 * summary[f"{prefix}ci_high"]
        rate = 100 * summary[f"{prefix}success_rate"]
        lines.append(f"{name:<16}{rate:6.1f} %  {low:.1f} … {high:.1f} ({level:.0%}, Wilson)")
    for k in range(1, num_samples + 1):
        if (share := summary.get(f"pass_hat_{k}")) is not None:
            strict = summary[f"strict_pass_hat_{k}"]
            lines.append(f"{f'pass^{k}':<16}{100 * share:6.1f} %  strictly {100 * strict:.1f} %")
    lines.append(f"{'reward':<16}{summary['reward_mean']:8.3f}  in {summary['turns_mean']:.1f} messages")
    failures = [f"{name} {count}" for name, count in summary["failures"].items()]
    lines += ["", f"failures: {escape_control_chars(', '.join(failures)) or 'none'}"]
    scores = [f"{name} {score['mean']:.3f}" for name, score in summary["scores"].items()]
    lines.append(f"scores: {escape_control_chars(', '.join(scores))}")
    if aborted := summary["num_lost"] + summary["num_lost_samples"]:
        lines.append(f"{aborted} episodes were aborted and do not count; run it again to play them")
    return "\n".join(lines)


def _limits(settings: "Params | None", section: "WorldParams") -> "AgentParams":
    """Episode limits: those of params.yaml where it names this world, else the default."""
    from posttrain.rollout.params import AgentParams

    is_named = settings is not None and settings.world == section
    return settings.agent if settings is not None and is_named else AgentParams.model_validate(DEFAULT_AGENT)


def _tasks_of(domain: "Domain", section: "WorldParams", split: Split, num_tasks: int) -> list[Task]:
    """Raises ConfigurationError where the split has none, or cannot give what the section wants of
    it."""
    knob = f"num_{split.removesuffix('_paraphrase')}_tasks"
    try:
        tasks = domain.tasks(split, min(num_tasks, getattr(section, knob)))
    except ValueError as error:
        raise ConfigurationError(f"world.{knob} is {getattr(section, knob)}: {reason(error)}") from error
    if not tasks:
        raise ConfigurationError(f"the world {domain.name} has no tasks of {split}; choose another --split")
    return tasks


def _file(model: str, section: "WorldParams", limits: "AgentParams", others: str) -> Path:
    """The file in which episodes of these settings are kept; an episode of another task or seed is
    never taken from it."""
    settings = [model, os.environ.get("OPENAI_BASE_URL", ""), others, section.model_dump(mode="json")]
    text = json.dumps([*settings, limits.model_dump(mode="json")], sort_keys=True)
    return private_folder(ENDPOINTS) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"


def _progress(part: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{part}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
