"""The Python API: make demonstrations in a world, fine-tune on them, train online or from pairs,
evaluate, and look at one episode.

    world = load_world("toy")
    model = sft(demonstrate(world), world)
    policy = train_policy(model, world)
    print(evaluate(policy, world).compared_with(evaluate(model, world)))
    print(play(policy, world))

Every function calls what the stage of its name calls, with the knobs of `params.yaml`, and what it
leaves out is what DVC adds: no validation, no resampling, no cache, no record. A model is a folder
in Hugging Face format.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.config.named_world import PARAMS, domain_of, knobs_for_world, reward_of
from posttrain.config.params import Params
from posttrain.data.preferences import Pair
from posttrain.data.schemas import TrajectoryRow, conversations, tool_names, trajectory_row
from posttrain.evals.significance import Verdict, difference
from posttrain.evals.summary import EvaluatedTask, evaluate_policy, task_record
from posttrain.models.base import write_base
from posttrain.models.codec import ChatCodec
from posttrain.models.distributed import to_device
from posttrain.models.loading import load_codec, load_pretrained
from posttrain.models.params import PretrainedModel, ScratchModel, at_once_of
from posttrain.provenance.eta import Progress
from posttrain.report.table import evaluation_text, gain_sentence
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import Player, ScoredWorld, sample_groups
from posttrain.rollout.episodes import demonstrate as demonstrated
from posttrain.rollout.memory import window_rows
from posttrain.rollout.offers import with_offers
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.threads import choose_num_threads, limit_threads
from posttrain.traces.show import transcript
from posttrain.tracking.alarms import Alarms
from posttrain.train.online.learning import PolicyInputs
from posttrain.train.policy import learn_policy
from posttrain.train.preference_pairs import pairs_of
from posttrain.train.resumable_trainer import METRICS, TrainingRun, open_run
from posttrain.train.reward_bound import MeanBound
from posttrain.train.reward_ensemble import RewardModels, load_reward_models
from posttrain.train.reward_model_quality import BestOf, best_of
from posttrain.train.sft import fine_tune
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import Split, Task, Trajectory
from posttrain.worlds.catalog import cost_names, require_expert, score_names, tasks_of

Model = str | Path  # a folder with config.json, safetensors and a tokenizer, or a name of the hub


@dataclass(frozen=True, slots=True)
class World:
    """A world with its reward and limits, and the knobs of `params.yaml` to train in it with."""

    params: Params
    scored: ScoredWorld
    rewarded_by: str

    def tasks(self, split: Split, count: int | None = None) -> list[Task]:
        """The tasks of a split, all by default. Raises ConfigurationError where there is none."""
        if tasks := tasks_of(self.scored.domain, split, self.params.world, at_most=count):
            return tasks
        raise ConfigurationError(f"the world {self.scored.domain.name} has no tasks of {split}; choose another split")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`summary` and `records` are what the stage `evaluate` writes of a policy: rates with their
    intervals, and a line for each task."""

    summary: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]

    def difference_to(self, baseline: "Evaluation") -> Verdict:
        """Strict success less that of `baseline`, on the tasks that both played. Raises DataError
        where these are fewer than two."""
        before, after = (
            {record["task_id"]: float(record["strict_success"]) for record in one.records} for one in (baseline, self)
        )
        return difference([before], [after])

    def compared_with(self, baseline: "Evaluation") -> str:
        """The difference in points, its interval, and whether it is more than chance."""
        return gain_sentence(self.difference_to(baseline))

    def __str__(self) -> str:
        return evaluation_text(self.summary)


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """An episode with its task; printed as the conversation that it was."""

    task: Task
    trajectory: Trajectory

    def __str__(self) -> str:
        played = self.trajectory
        result = "success" if played.is_success else f"failed: {played.outcome.failure if played.outcome else ''}"
        return f"{transcript(played).strip()}\n\n{result.rstrip(': ')}; reward {played.reward}; goal {self.task.goal}"


def load_world(
    name: str = "",
    knobs: Mapping[str, Any] | None = None,
    *,
    quick: bool = True,
    params: str | Path = PARAMS,
) -> World:
    """The world of that type (such as `toy`, or your own as `module:name`), by default the one of
    `params.yaml`; with the small sizes of `experiments/demo.yaml` where `quick`, then `knobs`:
    dotted keys with their values, `{"train_sft.max_steps": 50}`."""
    settings, is_named = knobs_for_world(name, knobs or {}, is_quick=quick, file=Path(params))
    domain = with_offers(domain_of(settings.world), settings.agent)
    source = Path(params).name
    if is_named:
        reward, whose = load_reward(settings.reward, score_names(domain)), f"the reward of {source}"
    else:
        reward, whose = reward_of(domain, settings, source)
    return World(settings, ScoredWorld(domain, reward, settings.agent), whose)


def demonstrate(world: World, num_tasks: int | None = None) -> list[TrajectoryRow]:
    """Demonstrations of the sft tasks by the world's scripted expert, which makes mistakes at the
    rates that the world's knobs give them."""
    return _demonstrated(world, "sft", num_tasks, is_flawless=False)


def sft(
    demonstrations: Sequence[TrajectoryRow], world: World, *, model: Model = "", to: str | Path = "out/sft"
) -> Path:
    """Fine-tune a model on what the agent wrote, and give its folder; without a `model`, the one of
    `params.yaml`. The loss on dev demonstrations chooses the checkpoint."""
    params, section = world.params, _model_section(world, model)
    dev = [row for row in demonstrations if row.split == "dev"] or _demonstrated(world, "dev", is_flawless=True)
    rows = [row for row in demonstrations if row.split != "dev"]
    with _training("train_sft", to, world) as (run, progress):
        codec, network = _trainable(world, section, rows, run.folder / "base", progress)
        rows, dev = ([one for row in own for one in window_rows(row, params.agent.memory)] for own in (rows, dev))
        fine_tune(network, codec, rows, dev, params=params.train_sft, seed=params.seed, run=run)
        return _saved(network, codec, run, Path(to))


def train_policy(model: Model, world: World, *, to: str | Path = "out/policy") -> Path:
    """Train a model further by `train_policy.algorithm`, and give the new folder: online (GRPO by
    default) or by rejection sampling on its own episodes of the rl tasks; or by DPO, KTO or ORPO on
    pairs of its episodes, which are sampled first. Raises DataError where they make no pair, or
    where no episode is accepted."""
    params, knobs = world.params, world.params.train_policy
    tasks = world.tasks("rl")
    with _training("train_policy", to, world) as (run, progress):
        codec, network = _trainable(world, _pretrained(world, model), (), run.folder / "base", progress)

        def pairs() -> Sequence[Pair]:
            how = params.sample_preferences
            sampler = world.scored.sampler(network.eval(), codec, temperature=how.temperature)
            sampled, plays = sample_groups(
                sampler, tasks[: how.num_tasks], num_samples=how.num_samples, seed=params.seed
            )
            tools = world.scored.domain.tools
            return pairs_of(
                [trajectory_row(one, task, tools) for one, task in zip(sampled, plays, strict=True)], how.pairs
            )

        inputs = PolicyInputs(
            world=world.scored,
            tasks=tasks,
            dev_tasks=world.tasks("dev"),
            reasoning_frac=params.generate_data.reasoning_frac,
            pairs=pairs,
        )
        learn_policy(network, codec, inputs, params=knobs, seed=params.seed, run=run)
        return _saved(network, codec, run, Path(to))


def evaluate(
    model: Model,
    world: World,
    *,
    split: Split = "test",
    num_tasks: int | None = None,
    num_samples: int = 4,
    reward_model: str | Path | None = None,
) -> Evaluation:
    """Play tasks of a split greedily, and `num_samples` times at temperature 1 for pass^k. With a
    folder of `train_reward_model` the summary has `best_of`, too: the success of the sampled play
    that it scores highest."""
    network, codec, scored = _loaded(model, world)
    player = scored.player(network, codec, seed=world.params.seed)
    picks = load_reward_models(Path(reward_model), MeanBound(type="mean")) if reward_model else None
    how: dict[str, Any] = {"split": split, "num_tasks": num_tasks, "num_samples": num_samples}
    return evaluate_player(str(model), world, player, picks=picks, **how)


def play(
    model: Model, world: World, *, split: Split = "test", number: int = 0, temperature: float = 0.0
) -> PlayedEpisode:
    """One episode of a split's task by its number from 0, greedily by default."""
    task = world.tasks(split, number + 1)[-1]
    network, codec, scored = _loaded(model, world)
    [trajectory] = scored.player(network, codec, seed=world.params.seed)([task], temperature)
    return PlayedEpisode(task, trajectory)


def evaluate_player(
    name: str,
    world: World,
    player: Player,
    *,
    split: Split,
    num_tasks: int | None,
    num_samples: int,
    picks: RewardModels | None = None,
) -> Evaluation:
    """The evaluation of whatever plays, and of what `picks` takes of the sampled plays. Raises
    Interrupted where every greedy play was lost."""
    own = {task.task_id: task for task in world.tasks(split, num_tasks)}
    # A summary is of the tasks of `test`; here all are of one split, whichever it is.
    tasks = [replace(task, split="test") for task in own.values()]
    by = sorted({label for task in tasks for label in task.labels})
    with _progress_lines() as progress:

        def play(some: Sequence[Task], temperature: float) -> Sequence[Trajectory]:
            part = "sampled" if temperature else "greedy"
            plays = [own[task.task_id] for task in some]
            return player(plays, temperature, lambda done, total: progress.show("evaluate", done, total, part))

        evaluated, summary = evaluate_policy(
            play, tasks, num_samples=num_samples, by=by, costs=cost_names(world.scored.domain)
        )
    if picks is not None:
        summary["best_of"] = _best_of(picks, evaluated, num_samples)
    about = {"model": name, "world": world.scored.domain.name, "split": split, "rewarded_by": world.rewarded_by}
    return Evaluation(about | summary, [task_record(one) for one in evaluated if not one.greedy.is_aborted])


def _best_of(picks: RewardModels, evaluated: Sequence[EvaluatedTask], num_samples: int) -> BestOf:
    """Best of n over the tasks with all of their sampled plays; others had a lost one."""
    whole = [one.samples for one in evaluated if len(one.samples) == num_samples]
    scores_P_K = np.reshape(picks.score([play.token_ids for plays in whole for play in plays]), (-1, num_samples))
    success_P_K = [[play.is_success for play in plays] for plays in whole]
    return best_of(scores_P_K.tolist(), success_P_K, num_samples=num_samples)


def _demonstrated(
    world: World, split: Split, num_tasks: int | None = None, *, is_flawless: bool
) -> list[TrajectoryRow]:
    return demonstrated(
        require_expert(world.scored.domain, needed_by="a demonstration"),
        world.tasks(split, num_tasks),
        limits=world.scored.limits,
        seed=world.params.seed,
        is_flawless=is_flawless,
        reasoning_frac=world.params.generate_data.reasoning_frac,
    )


def _model_section(world: World, model: Model) -> ScratchModel | PretrainedModel:
    """That of `params.yaml`, of another model where one is named."""
    own = world.params.model
    if not model:
        return own
    name = _sound_name(model)
    if isinstance(own, PretrainedModel):
        return own.model_copy(update={"name": name, "revision": None})
    return PretrainedModel(
        type="pretrained",
        name=name,
        adapter=own.adapter,
        gradient_checkpointing=own.gradient_checkpointing,
        rows_at_once=own.rows_at_once,
        tokens_at_once=own.tokens_at_once,
        dtype=own.dtype,
    )


def _sound_name(model: Model) -> str:
    """Raises ConfigurationError for a folder that is not there, which would be asked of the hub."""
    path = Path(model)
    if not path.is_dir() and (path.is_absolute() or str(model).count("/") != 1 or path.parent.is_dir()):
        raise ConfigurationError(
            f"there is no folder {str(model)!r}, and a model of the hub is named organisation/model: give the folder "
            "that `sft` or `train_policy` wrote, or such a name"
        )
    return str(model)


def _loaded(model: Model, world: World) -> tuple[Any, ChatCodec, ScoredWorld]:
    """A model to play with, and the world with no longer episodes than it has positions for."""
    limit_threads(choose_num_threads())
    network, tokenizer = load_pretrained(_pretrained(world, model))
    limits = world.scored.limits
    positions = getattr(network.config, "max_position_embeddings", None) or limits.max_context_tokens
    if positions < limits.max_context_tokens:
        shorter = {"max_context_tokens": positions, "max_new_tokens": min(limits.max_new_tokens, positions - 1)}
        limits = limits.model_copy(update=shorter)
    return to_device(network), ChatCodec(tokenizer), replace(world.scored, limits=limits)


def _pretrained(world: World, model: Model) -> PretrainedModel:
    section = _model_section(world, model)
    if not isinstance(section, PretrainedModel):
        raise ConfigurationError("no model is named: give the folder that `sft` wrote, or a name of the hub")
    return section


@contextlib.contextmanager
def _training(name: str, to: str | Path, world: World) -> Iterator[tuple[TrainingRun, Progress]]:
    """A run whose checkpoints go when it ends: it is not gone on with."""
    if Path(to).exists() and not (Path(to) / "config.json").is_file():
        raise ConfigurationError(f"{to} is there and is no model: it would be replaced; name another folder")
    knobs = world.params.train_policy
    is_online = name == "train_policy" and knobs.is_online
    with (
        _progress_lines() as progress,
        tempfile.TemporaryDirectory(prefix="posttrain-") as folder,
        open_run(
            Path(folder),
            alarms=Alarms(knobs.alarms, on_alarm=knobs.on_alarm) if is_online else None,
            progress=lambda *step: progress.show(name, *step),
            at_once=at_once_of(world.params.model),
        ) as run,
    ):
        yield run, progress


@contextlib.contextmanager
def _progress_lines() -> Iterator[Progress]:
    """Progress on stderr, and as many threads as there are idle cores."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    limit_threads(choose_num_threads())
    progress = Progress()
    try:
        yield progress
    finally:
        progress.end()


def _trainable(
    world: World,
    section: ScratchModel | PretrainedModel,
    rows: Sequence[TrajectoryRow],
    base: Path,
    progress: Progress,
) -> tuple[ChatCodec, Any]:
    params = world.params
    write_base(
        base,
        conversations(rows),
        tool_names(rows),
        params=section,
        warmup=params.prepare_model,
        max_context_tokens=params.agent.max_context_tokens,
        seed=params.seed,
        progress=lambda *step: progress.show("prepare_model", *step),
    )
    return load_codec(base), load_trainable(base, section, seed=params.seed)


def _saved(network: Any, codec: ChatCodec, run: TrainingRun, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    save_trained(network, codec.tokenizer, to)
    shutil.copyfile(run.folder / METRICS, to / METRICS)
    print(f"{to}: trained, and {to / METRICS} has its curves", file=sys.stderr, flush=True)
    return to
