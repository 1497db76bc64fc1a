"""`posttrain evaluate`: how well a model does in a world. It is a folder, a name of the hub, or
what an OpenAI-compatible endpoint serves."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from posttrain.cli.command import Commands, add_command, add_world_arguments, load_asked_world
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import STATE_DIR, private_folder
from posttrain.types import Split, Task, Trajectory

if TYPE_CHECKING:
    from posttrain.api import World
    from posttrain.rollout.episode_sampler import Player
    from posttrain.runtime.endpoint_limits import Account, ChatParameters

ENDPOINTS = STATE_DIR / "endpoints"


def add_evaluate(commands: Commands) -> None:
    command = add_command(commands, "evaluate", evaluate)
    command.add_argument("model", help="a folder, a name of the hub, or with --endpoint as the endpoint calls it")
    add_world_arguments(command, is_required=True)
    command.add_argument("--endpoint", action="store_true", help="the model is behind OPENAI_BASE_URL")
    command.add_argument("--split", choices=get_args(Split), default="test", help="whose tasks (test)")
    command.add_argument("--num-tasks", type=int, default=100, help="of the split (100, or all there are)")
    command.add_argument("--num-samples", type=int, default=4, help="plays at temperature 1 of each, for pass^k (4)")
    command.add_argument(
        "--reward-model", type=Path, help="folder of one: the success of the sampled play that it picks"
    )
    command.add_argument("--max-new-tokens", type=int, help="in one message of an endpoint (1024)")
    command.add_argument("--json", dest="as_json", action="store_true", help="one JSON object instead of a page")


def evaluate(
    model: str,
    world: str,
    quick: bool,
    params: Path | None,
    knobs: Sequence[str],
    endpoint: bool,
    split: Split,
    num_tasks: int,
    num_samples: int,
    reward_model: Path | None,
    max_new_tokens: int | None,
    as_json: bool,
) -> None:
    """Evaluate a model in a world. Plays each task once greedily and some times at
    temperature 1. What an endpoint played is kept, and not paid for twice."""
    if num_tasks < 1 or num_samples < 0 or (max_new_tokens or 1) < 1:
        raise ConfigurationError("--num-tasks and --max-new-tokens are 1 or more, --num-samples 0 or more")
    if max_new_tokens and not endpoint:
        raise ConfigurationError("--max-new-tokens is of an endpoint; of a folder set agent.max_new_tokens (--set)")
    if reward_model and (endpoint or not num_samples):
        raise ConfigurationError("--reward-model picks from the sampled plays of a folder: it needs --num-samples")
    asked = load_asked_world(world, quick, params, knobs)
    from posttrain import api
    from posttrain.report.table import evaluation_text

    if endpoint:
        from posttrain.runtime.endpoint_limits import ChatParameters, account_of

        account = account_of("POSTTRAIN_OPENAI")
        parameters = ChatParameters(_file(model, asked, "refused parameters"))
        player = _endpoint_player(model, asked, split, max_new_tokens or 1024, account, parameters)
        found = api.evaluate_player(model, asked, player, split=split, num_tasks=num_tasks, num_samples=num_samples)
        summary = {"cost": account.cost, "endpoint_parameters": parameters.changed, **found.summary}
    else:
        how = {"split": split, "num_tasks": num_tasks, "num_samples": num_samples}
        found = api.evaluate(model, asked, reward_model=reward_model, **how)  # type: ignore[arg-type]
        summary = dict(found.summary)
    print(json.dumps(summary, indent=2, ensure_ascii=False) if as_json else evaluation_text(summary))


def _endpoint_player(
    model: str,
    world: "World",
    split: Split,
    max_new_tokens: int,
    account: "Account",
    parameters: "ChatParameters",
) -> "Player":
    from posttrain.rollout.episodes import resume_episodes
    from posttrain.rollout.openai_policy import OpenAiPolicy

    scored = world.scored

    def play(
        tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
    ) -> list[Trajectory]:
        policy = OpenAiPolicy(
            model, temperature=temperature, max_new_tokens=max_new_tokens, account=account, parameters=parameters
        )
        file = _file(model, world, f"{max_new_tokens} {temperature:g} {split}")
        # A greedy play has seed 0; those of one task at temperature 1 are told apart by theirs.
        counts: dict[str, int] = {}
        seeds = []
        for task in tasks:
            counts[task.task_id] = counts.get(task.task_id, 0) + 1
            seeds.append(counts[task.task_id] if temperature else 0)
        played = resume_episodes(
            policy, tasks, file, domain=scored.domain, limits=scored.limits, seeds=seeds, progress=progress
        )
        return scored.reward.score_all(played, tasks)

    return play


def _file(model: str, world: "World", others: str) -> Path:
    settings = [model, os.environ.get("OPENAI_BASE_URL", ""), others, world.params.world.model_dump(mode="json")]
    text = json.dumps([*settings, world.scored.limits.model_dump(mode="json")], sort_keys=True)
    return private_folder(ENDPOINTS) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
