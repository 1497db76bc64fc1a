"""Process reward model: the chance of strict success in each state of an episode, learnt from
Monte-Carlo shares by binary cross-entropy (soft labels, Math-Shepherd, arXiv 2312.08935).

An episode of K turns has K + 1 states: before the first turn, and behind each. The model is of the
reward model's class, a linear head on the body of the SFT model, which is read at the last token
before each of the agent's messages and at its last one: one pass gives all values. So the value
behind a turn knows the results that the turn caused, in which a wrong code shows: read at the end
of the message, the model sees it a turn late.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import TrainingArguments

from posttrain.data.preferences import Verdict
from posttrain.models.adapters import behind_adapters
from posttrain.models.codec import ChatCodec
from posttrain.models.distributed import parts_of
from posttrain.models.params import OptimizerParams
from posttrain.models.token_logprobs import IGNORED, pad_right
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.expert_traces import first_deviation
from posttrain.rollout.play_on import Fork, sample_branches
from posttrain.train.advantages.branch_values import BranchValueCredit
from posttrain.train.advantages.groups import EpisodeGroup, FloatArray
from posttrain.train.online.branches import play_branches
from posttrain.train.params import TrainProcessModelParams
from posttrain.train.process_model_quality import LabelledEpisode
from posttrain.train.resumable_trainer import Resumable, TrainingRun, trainer_arguments
from posttrain.train.reward_model import SCORE_BATCH_SIZE
from posttrain.train.sample_order import passes_by_length
from posttrain.types import ScoredEpisode, Task, Trajectory
from posttrain.worlds.protocol import Domain, ExpertDomain


def label_states(
    sampler: EpisodeSampler,
    tasks: Sequence[Task],
    played: Sequence[Trajectory],
    *,
    branches: int,
    seed: int,
) -> tuple[list[list[LabelledEpisode]], int]:
    """Label what the sampler's model has `played`, as many episodes in a row of each task, by the
    share of `branches` plays on from behind each turn that succeed strictly. The first state's
    label is of the task's own plays, the last one's is the episode's outcome. Each task's episodes
    without aborted ones, and the tokens that the branches wrote."""
    size = len(played) // len(tasks)
    own = _by_outcome(played)
    groups = [EpisodeGroup(task, own[place * size : (place + 1) * size]) for place, task in enumerate(tasks)]

    def play_on(forks: Sequence[Fork]) -> list[ScoredEpisode]:
        return _by_outcome(sample_branches(sampler, forks))

    knobs = {"type": "branch_values", "branches": branches, "at": {"type": "turns"}, "scale": {"type": "none"}}
    rule = BranchValueCredit.model_validate(knobs)
    values = play_branches(groups, rule, play_on, entropies=None, seed=seed, step=0)
    labelled = [
        [_labelled(sampler.domain, group, *both) for both in zip(group.members, values_G, strict=True)]
        for group, values_G in zip(groups, values.values, strict=True)
    ]
    return labelled, values.num_tokens


def _by_outcome(played: Sequence[Trajectory]) -> list[ScoredEpisode]:
    """With strict success for a reward: values are then shares of it."""
    return [ScoredEpisode(replace(one, reward=float(one.is_strict_success))) for one in played]


def _labelled(domain: Domain, group: EpisodeGroup, member: ScoredEpisode, values_K: FloatArray) -> LabelledEpisode:
    episode = member.trajectory
    labels = np.append(values_K, float(episode.is_strict_success)) if len(values_K) else values_K
    labels[:1] = group.group.rewards_G.mean()
    numbers = [number for number, turn in enumerate(episode.turns, 1) if turn.num_written]
    messages = [episode.turn_messages[number - 1] for number in numbers]
    calls = [place for place, message in enumerate(messages) if message and message.tool_calls]
    found = first_deviation(domain, group.task, episode) if isinstance(domain, ExpertDomain) else None
    is_known = found is not None and found[0] in numbers and len(numbers) == len(values_K)
    return LabelledEpisode(episode, labels, numbers.index(found[0]) if found and is_known else None, [*calls, 0][0])


def marked_episodes(verdicts: Sequence[Verdict], codec: ChatCodec) -> list[LabelledEpisode]:
    """The episodes whose turns people marked, for training: a mark from 0 to 1 is the label of the
    state behind its turn, other states have none. One whose messages the codec does not write as so
    many turns is left out."""
    marked = [one for one in verdicts if any(mark is not None for mark in one.turn_marks)]
    found = []
    for one, row in zip(marked, codec.encode_rows(one.row.conversation for one in marked), strict=True):
        played = replace(one.row.trajectory, token_ids=row.input_ids, mask=row.mask)
        labels = np.array([math.nan, *(math.nan if mark is None else mark for mark in one.turn_marks)])
        if len(state_places(played)) == len(labels):
            found.append(LabelledEpisode(played, labels))
    return found


def train_process_model(
    model: Any,
    tokenizer: Any,
    *,
    episodes: Sequence[LabelledEpisode],
    params: TrainProcessModelParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model`, a new reward model, in place on episodes used in shuffled passes; the loss is
    a mean over a step's labelled states. Resumes from `run.checkpoint`."""
    num_parts, rows_per_part = parts_of(params.batch_size, "train_process_model.batch_size", run.at_once)
    optimizer_params = OptimizerParams(lr=params.lr, optimizer="adamw")
    how = {"max_steps": params.max_steps, "checkpoint_every_steps": params.checkpoint_every_steps, "seed": seed}
    ids_N = [list(one.trajectory.token_ids) for one in episodes]
    order = passes_by_length([len(ids) for ids in ids_N], params.max_steps, params.batch_size, seed=seed)
    columns = {"input_ids": ids_N, "labels": [_token_labels(one) for one in episodes]}
    trainer = _ProcessModel(
        model=model,
        args=TrainingArguments(
            **trainer_arguments(run, model, optimizer_params, **how),
            per_device_train_batch_size=rows_per_part,
            gradient_accumulation_steps=num_parts,
        ),
        train_dataset=Dataset.from_dict(columns).select(order),
        data_collator=lambda rows: {
            "input_ids": pad_right([row["input_ids"] for row in rows], tokenizer.pad_token_id).long(),
            "labels": pad_right([row["labels"] for row in rows], IGNORED).float(),
        },
        processing_class=tokenizer,
        optimizer_params=optimizer_params,
        run=run,
    )
    trainer.train_or_resume()


def state_values(model: Any, episodes: Sequence[Trajectory]) -> list[FloatArray]:
    """The chance of strict success in each state of each episode, (K + 1,)."""
    found, pad_id = list[FloatArray](), model.config.pad_token_id
    for start in range(0, len(episodes), SCORE_BATCH_SIZE):
        part = episodes[start : start + SCORE_BATCH_SIZE]
        ids_N_T = pad_right([list(one.token_ids) or [pad_id] for one in part], pad_id).long()
        with torch.no_grad():
            values_N_T = _logits(model, ids_N_T.to(model.device)).double().sigmoid().cpu().numpy()
        found += [values_T[state_places(one)] for values_T, one in zip(values_N_T, part, strict=True)]
    return found


def state_places(trajectory: Trajectory) -> list[int]:
    """Indices of the tokens at which the head is read. The agent wrote tokens 2, 3 and 5 of seven:
    1, 4, 5. None without a token of the agent's."""
    changes_T = np.diff(np.asarray(trajectory.mask, dtype=np.int64), prepend=0, append=0)
    starts, last = np.flatnonzero(changes_T == 1), np.flatnonzero(changes_T == -1)[-1:]
    return [max(place - 1, 0) for place in [*starts.tolist(), *last.tolist()]]


def _token_labels(one: LabelledEpisode) -> list[float]:
    """`IGNORED` but where a labelled state is."""
    labels = np.full(len(one.trajectory.token_ids), float(IGNORED))
    labels[state_places(one.trajectory)] = np.nan_to_num(one.labels, nan=IGNORED)
    return labels.tolist()


def _logits(model: Any, input_ids_N_T: Tensor) -> Tensor:
    """The head's logit at each token, (N, T), caught in the whole model's forward pass, which knows
    the precision of its parts. Padding is on the right, where no token looks."""
    caught: list[Tensor] = []
    hook = behind_adapters(model).score.register_forward_hook(lambda _, __, logits: caught.append(logits[..., 0]))
    try:
        model(input_ids=input_ids_N_T, use_cache=False)
    finally:
        hook.remove()
    return caught[0].float()


class _ProcessModel(Resumable):
    logged: ClassVar[Mapping[str, str]] = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # the loss is through the labels of the whole step, which the trainer then counts
        self.model_accepts_loss_kwargs = True

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        assert not return_outputs
        labels_N_T = inputs["labels"]
        is_labelled = labels_N_T != IGNORED
        logits = _logits(model, inputs["input_ids"])[is_labelled]
        summed = binary_cross_entropy_with_logits(logits, labels_N_T[is_labelled], reduction="sum")
        loss: Tensor = summed / num_items_in_batch
        return loss
