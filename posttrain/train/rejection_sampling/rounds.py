"""Rounds of rejection-sampling fine-tuning: play, accept, learn.

Every round has a folder of its own, with the episodes that it played, a line for each batch, and
the checkpoints of its supervised training. A killed run reads both again and goes on in the batch
or the step that it was in, to the bytes of an undisturbed one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.data.schemas import trajectory_columns, trajectory_from_columns
from posttrain.models import distributed
from posttrain.models.codec import NONE, OBSERVED, TokenRow
from posttrain.models.params import OptimizerParams
from posttrain.models.sharding import named_weights
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.generator import RolloutBatch, RolloutSchedule
from posttrain.rollout.reflection import is_failed, reflect_and_retry
from posttrain.runtime.exits import DataError
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.ewc import Ewc, ewc_of, trained_weights
from posttrain.train.online.params import DevParams
from posttrain.train.online.trainer_state import DevEvaluation, TrainingInputs
from posttrain.train.params import TrainSftParams
from posttrain.train.rejection_sampling.params import RejectionSamplingParams, RetryAgain, RetryReflection
from posttrain.train.rejection_sampling.selection import row_weights
from posttrain.train.resumable_trainer import TrainingRun, asked_to_stop, open_part
from posttrain.train.sft import train_sft
from posttrain.types import ScoredEpisode, Task, Trajectory

PLAYED, DEV = "played.jsonl", "dev.json"  # files of a round's folder
REPLAYED = "replayed"  # kind of row
INHERITED = {"optimizer", "max_grad_norm", "betas", "weight_decay"}  # from the knobs of train_policy


@dataclass(frozen=True, slots=True)
class Learner:
    """The model in training, with its optimizer and seed; the learning rate and its warm-up are
    those of the rounds."""

    model: Any
    tokenizer: Any
    optimizer_params: OptimizerParams
    checkpoint_every_steps: int
    seed: int


def train_by_rejection_sampling(
    learner: Learner,
    inputs: TrainingInputs,
    *,
    replayed: Sequence[TokenRow] = (),
    earlier: Sequence[ScoredEpisode] = (),
    params: RejectionSamplingParams,
    run: TrainingRun,
) -> list[ScoredEpisode]:
    """Train the learner's model in place; `replayed` are rows of SFT, for `replay_frac` and
    `ewc_weight`, `earlier` episodes that an earlier run accepted, which count as played before the
    first round. Returns the accepted episodes of this run. Raises DataError where a round has
    nothing to learn from."""
    distributed.refuse_unequal_shares(
        params.tasks_per_step * params.samples_per_task, "train_policy.algorithm.tasks_per_step · samples_per_task"
    )
    model = learner.model
    ewc = ewc_of(model, replayed, params.ewc_weight, seed=learner.seed) if params.ewc_weight else None
    start = ewc.start if ewc else trained_weights(model)
    dev = DevEvaluation(DevParams(every_steps=1, num_tasks=params.num_dev_tasks, keep="last"), inputs)
    episodes: list[ScoredEpisode] = []
    with RolloutSchedule(inputs.source) as rollouts:
        player = _Player(rollouts, inputs, params, seed=learner.seed)
        for number in range(params.rounds):
            first_step = number * params.max_steps
            with open_part(run, f"round-{number + 1}", first_step=first_step, num_steps=params.num_steps) as part:
                before = {} if number else _dev_metrics(dev, part.folder / f"before_{DEV}", 0)
                episodes += player.play(number, part)
                own = [*episodes, *player.retries]
                weights_N = row_weights([*own, *earlier], params)
                if not weights_N.any():
                    raise DataError(_nothing_learnt(len(own) + len(earlier), number, params))
                if part.checkpoint is None and part.metrics is not None:
                    counts = {"round": number + 1, "generated_tokens": player.num_generated}
                    part.metrics.write(0, before | counts | _metrics(episodes, player.retries, weights_N[: len(own)]))
                if params.restart:
                    _load(model, start)
                _fine_tune(learner, [*own, *earlier], weights_N, replayed, params, number, part, ewc)
                logged = _dev_metrics(dev, part.folder / DEV, params.max_steps)
                if logged and part.metrics is not None:
                    part.metrics.write(params.max_steps, logged)
    return [one for one, weight in zip(own, weights_N, strict=False) if weight]


class _Player:
    """Plays batches of tasks, in shuffled passes, and keeps what was played."""

    def __init__(
        self, rollouts: RolloutSchedule, inputs: TrainingInputs, params: RejectionSamplingParams, *, seed: int
    ) -> None:
        self._rollouts, self._inputs, self._params, self._seed = rollouts, inputs, params, seed
        self._tasks = _passes(inputs.tasks, seed)
        self.num_generated, self.retries = 0, list[ScoredEpisode]()  # tokens; both of all rounds so far

    def play(self, number: int, part: TrainingRun) -> list[ScoredEpisode]:
        """The episodes of a round: those in its file, then as many batches as are missing until
        the rounds so far have had their share of the tokens. Adds to `retries`."""
        file, params = part.folder / PLAYED, self._params
        kept = distributed.from_first(_read_batches(file) if distributed.is_first() else [])
        budget = params.max_generated_tokens * (number + 1) / params.rounds
        episodes: list[ScoredEpisode] = []
        num_batches = 0
        while self.num_generated < budget:
            batch = [next(self._tasks) for _ in range(params.tasks_per_step)]
            tasks = [task for task in batch for _ in range(params.samples_per_task)]
            is_kept = num_batches < len(kept)
            played = kept[num_batches] if is_kept else self._played(tasks, number, num_batches)
            own = played[: len(tasks)]
            again = played[max(len(own), len(played) - sum(map(is_failed, own))) :]  # behind any reflections
            if not is_kept and distributed.is_first():
                _append_batch(file, played)
                learnt = [*own, *again]
                self._inputs.on_step(number * params.max_steps, learnt, [float(one.is_success) for one in learnt])
            num_batches += 1
            episodes += own
            self.retries += again
            num_tokens = sum(sum(one.trajectory.mask) for one in played)
            if not num_tokens:
                raise DataError(
                    f"{len(played)} episodes wrote no token: agent.max_context_tokens leaves no room for one"
                )
            self.num_generated += num_tokens
            part.progress(
                0, params.max_steps, f"round {number + 1}: {self.num_generated} of {budget:.0f} tokens played"
            )
            if any(distributed.gather(part.is_stopping)):
                raise asked_to_stop(number * params.max_steps, params.num_steps)
        return episodes

    def _played(self, tasks: Sequence[Task], number: int, batch: int) -> list[ScoredEpisode]:
        """An episode of each task, then reflections on those that failed, then their retries, as
        far as the knobs ask for them."""

        def take(own: Sequence[Task], *of_retries: int) -> list[ScoredEpisode]:
            seeds = episode_seeds(Stream.OWN, self._seed, number, batch, *of_retries, count=len(own))
            return self._rollouts.take(RolloutBatch(own, seeds))[0] if own else []

        played = take(tasks)
        failed = [(task, one.trajectory) for task, one in zip(tasks, played, strict=True) if is_failed(one)]
        match self._params.retry:
            case RetryAgain():
                played += take([task for task, _ in failed], 1)
            case RetryReflection(prompt=prompt):
                played += chain(*reflect_and_retry(lambda own: take(own, 1 + own[0].is_reflection), failed, prompt))
        return played


def _passes(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """All tasks in a shuffled order, again and again."""
    rng = np.random.default_rng(seed)
    while True:
        yield from (tasks[place] for place in rng.permutation(len(tasks)))


def _fine_tune(
    learner: Learner,
    episodes: Sequence[ScoredEpisode],
    weights_N: FloatArray,
    replayed: Sequence[TokenRow],
    params: RejectionSamplingParams,
    number: int,
    part: TrainingRun,
    ewc: Ewc | None,
) -> None:
    """Supervised learning of the accepted episodes' tokens, as the engine saw them."""
    accepted = [int(place) for place in np.flatnonzero(weights_N)]
    is_whole_N = [not one.is_aborted and any(one.trajectory.mask) for one in episodes]
    rest = [place for place in range(len(episodes)) if is_whole_N[place] and not weights_N[place]]
    others = rest if params.observations_of == "all" else []
    places, frac = accepted + others, len(accepted) / (len(accepted) + len(others))
    rows = [_rows(episodes[place].trajectory, is_accepted=bool(weights_N[place])) for place in places]
    shares = {str(place): float(weights_N[place]) * (1 - params.replay_frac) * frac for place in accepted}
    shares |= {str(place): (1 - params.replay_frac) / len(places) for place in others}
    train_sft(
        learner.model,
        learner.tokenizer,
        rows=[row for of_place in rows for row in of_place] + [*replayed],
        values=[str(place) for place, of_place in zip(places, rows, strict=True) for _ in of_place]
        + [REPLAYED] * len(replayed),
        shares=shares | {REPLAYED: params.replay_frac},
        dev_rows=[],
        params=TrainSftParams(
            **learner.optimizer_params.model_dump(include=INHERITED),
            max_steps=params.max_steps,
            batch_size=params.batch_size,
            lr=params.lr,
            lr_warmup_frac=params.lr_warmup_frac,
            label_weights={},
            eval_every_steps=min(learner.checkpoint_every_steps, params.max_steps),
            early_stopping_patience=1,
            edit_copies=0,
            observation_weight=params.observation_weight,
        ),
        seed=learner.seed + number,
        run=part,
        ewc=ewc,
    )


def _rows(played: Trajectory, *, is_accepted: bool) -> list[TokenRow]:
    """A row for each context window. The agent's tokens are targets if accepted; all else behind
    its first one was observed."""
    rows = []
    for window in played.windows:
        written = list(played.mask[window])
        if not any(written):  # the context had no room for its first message
            continue
        mask, first = [int(is_accepted and one) for one in written], written.index(1)
        behind = zip(mask[first:], written[first:], strict=True)
        category = [NONE] * first + [own if is_agents else OBSERVED for own, is_agents in behind]
        rows.append(TokenRow(list(played.token_ids[window]), mask, category))
    return rows


def _metrics(
    episodes: Sequence[ScoredEpisode], retries: Sequence[ScoredEpisode], weights_N: FloatArray
) -> dict[str, float]:
    """Metrics of all episodes so far: `played`, `success`, `strict_success`, `reward_mean`, and
    `lost`, the share of aborted ones, without the retries; `accepted` (rows) and `accepted_tasks`
    with them. Of retries, which come last in `weights_N`: `retried`, `turned` (the share that
    succeeded) and `retry_rows`."""
    kept = [one for one in episodes if not one.is_aborted]
    accepted = [one for one, weight in zip([*episodes, *retries], weights_N, strict=True) if weight]
    of_retries = {
        "retried": len(retries),
        "turned": sum(one.is_success for one in retries) / max(len(retries), 1),
        "retry_rows": int(np.count_nonzero(weights_N[len(episodes) :])),
    }
    return {
        "played": len(episodes),
        "success": float(np.mean([one.is_success for one in kept])),
        "strict_success": float(np.mean([one.trajectory.is_strict_success for one in kept])),
        "reward_mean": float(np.mean([one.rule_reward for one in kept])),
        "accepted": len(accepted),
        "accepted_tasks": len({one.trajectory.task_id for one in accepted}),
        "lost": 1 - len(kept) / len(episodes),
        **(of_retries if retries else {}),
    }


def _nothing_learnt(num_played: int, number: int, params: RejectionSamplingParams) -> str:
    return (
        f"none of the {num_played} episodes up to round {number + 1} was accepted (accept: {params.accept.type}): "
        "there is nothing to learn from. Let it play more (max_generated_tokens, samples_per_task, temperature), "
        "accept by_reward, or train the model further before (train_sft)"
    )


def _load(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, one in named_weights(model).items():
            if name in weights:
                one.copy_(weights[name])


def _dev_metrics(dev: DevEvaluation, file: Path, step: int) -> dict[str, float]:
    """Play the dev tasks, or read what they came to before the run was killed."""
    found = distributed.from_first(json.loads(file.read_text()) if distributed.is_first() and file.exists() else None)
    if found is None:
        found = {"metrics": dev.run(step), "state": dev.state()}
        if distributed.is_first():
            _write(file, json.dumps(found))
    dev.restore(found["state"])
    metrics: dict[str, float] = found["metrics"]
    return metrics


def _append_batch(file: Path, played: Sequence[ScoredEpisode]) -> None:
    batch = [{"bonus": one.bonus, **trajectory_columns(one.trajectory)} for one in played]
    with file.open("ab") as lines:
        lines.write(json.dumps(batch).encode() + b"\n")


def _read_batches(file: Path) -> list[list[ScoredEpisode]]:
    """The batches of a round's file up to a line that a kill cut off, which is removed."""
    whole, _, cut = (file.read_bytes() if file.exists() else b"").rpartition(b"\n")
    if cut:
        _write(file, whole.decode() + "\n" if whole else "")
    return [
        [ScoredEpisode(trajectory_from_columns(one), bonus=one["bonus"]) for one in json.loads(line)]
        for line in whole.splitlines()
    ]


def _write(file: Path, text: str) -> None:
    temporary = file.with_suffix(".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
