"""Training runs of a tiny model from start to end, and ways to die in the middle of one. Each runs
in a process of its own, forked from one that has torch."""

import copy
import dataclasses
import hashlib
import itertools
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import two_policies
import yaml
from accelerate import Accelerator
from sharded_runs import ServedWords, large_section, run_held, run_merged, server_model
from tiny import (
    Remembering,
    copy_rows,
    expert_words,
    play_words,
    play_words_greedily,
    spoilt,
    tiny_adapted_model,
    tiny_model,
    tiny_reward_model,
    tiny_tokenizer,
    word_task,
    wrong_copy,
)

from posttrain.models import distributed
from posttrain.models.micro_batches import AtOnce
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import OptimizerParams
from posttrain.models.sharding import sharded, weights_kept, whole
from posttrain.models.token_logprobs import agent_logprobs, labels_of
from posttrain.runtime.exits import Interrupted
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.metrics_log import read_metrics
from posttrain.tracking.params import AlarmParams
from posttrain.train import resumable_trainer
from posttrain.train.advantages.critic import Critic, targets_of
from posttrain.train.advantages.gae import CriticParams
from posttrain.train.on_pairs import train_on_pairs
from posttrain.train.online import trainer_state
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.online.updates import Sample, batch_of
from posttrain.train.pair_training import PairTraining
from posttrain.train.params import TrainProcessModelParams, TrainRewardModelParams, TrainSftParams
from posttrain.train.policy import in_phases
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams
from posttrain.train.process_model import train_process_model
from posttrain.train.process_model_quality import LabelledEpisode
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.rejection_sampling.rounds import Learner, train_by_rejection_sampling
from posttrain.train.resumable_trainer import METRICS, TrainingRun, open_run
from posttrain.train.reward_model import train_reward_model
from posttrain.train.sft import train_sft
from posttrain.train.trainable import load_trainable
from tests import forked

DEMONSTRATIONS = copy_rows(4)[0]
KIND_WEIGHTS = {"tool_selection": 0.35, "multi_step_planning": 0.30, "timing_decision": 0.20, "tool_retrieval": 0.15}


@dataclasses.dataclass(frozen=True)
class Death:
    """`after`: killed when that step is done. `in_save`: killed when the files of that step's
    checkpoint are there but for the marker, one of them cut off. `asked`: SIGTERM in that step.
    """

    after: int | None = None
    in_save: int | None = None
    asked: int | None = None


def sft_params(**changes):
    values = {
        "max_steps": 12,
        "batch_size": 8,
        "lr": 1e-2,
        "lr_warmup_frac": 0.1,
        "optimizer": "muon",
        "label_weights": {"kind": KIND_WEIGHTS},
        "eval_every_steps": 4,
        "early_stopping_patience": 3,
        "edit_copies": 0,
    }
    return TrainSftParams.model_validate(values | changes)


def run_sft(run: TrainingRun, model, *, rows=None, kinds=None, dev_rows=None, ewc=None, **changes):
    usual_rows, usual_kinds = copy_rows(50)
    train_sft(
        model,
        tiny_tokenizer(),
        rows=rows or usual_rows,
        values=kinds or usual_kinds,
        shares=KIND_WEIGHTS,
        dev_rows=dev_rows or copy_rows(10, seed=1)[0],
        params=sft_params(**changes),
        seed=1,
        run=run,
        ewc=ewc,
    )


def run_sft_on_wrong_dev(run: TrainingRun, model):
    """Dev rows are training rows with the words the wrong way round: what is learnt makes them ever
    less likely. Returns the dev loss at the end."""
    dev_rows = [wrong_copy(row) for row in copy_rows(50)[0]]
    knobs = {"max_steps": 200, "eval_every_steps": 20, "early_stopping_patience": 2, "lr": 2e-2}
    run_sft(run, model, dev_rows=dev_rows, **knobs)
    model.eval()
    sums = [
        agent_logprobs(model, torch.tensor([row.input_ids]), torch.tensor([labels_of(row.input_ids, row.mask)])).sum()
        for row in dev_rows
    ]
    return {"eval_loss": -float(sum(sums)) / sum(sum(row.mask) for row in dev_rows)}


def optimizer_params(changes, *, lr):
    """Takes the knobs of the optimizer out of `changes`; `lr` where there is none."""
    own = {name: changes.pop(name) for name in OptimizerParams.model_fields if name in changes}
    found = OptimizerParams.model_validate({"optimizer": "muon", **own, "lr": 0.5})
    return found.model_copy(update={"lr": own.get("lr", lr)})  # also one that is refused as a knob


def run_online(run: TrainingRun, model, *, on_step=lambda *_: None, process_model=None, source=None, **changes):
    of_optimizer = optimizer_params(changes, lr=3e-2)
    values = yaml.safe_load(OnlineParams.example) | {
        "type": "online",
        "max_steps": 12,
        "tasks_per_step": 2,
        "group_size": 4,
        "dev": {"every_steps": 100, "num_tasks": 10, "keep": "last"},
    }
    tasks = [word_task(x, y) for x in range(4, 9) for y in range(9, 12)]
    source = source or WordEpisodes(model)
    inputs = TrainingInputs(
        tasks,
        source,
        DEMONSTRATIONS,
        on_step,
        dev_tasks=[word_task(x, y) for x in range(4, 9) for y in (12, 13)],
        play_greedily=source.play_greedily,
        expert=expert_words,
        score_weights={"first": 0.5, "second": 0.5},
        process_model=process_model,
    )
    train_online(
        model,
        tiny_tokenizer(),
        inputs,
        params=OnlineParams.model_validate(values | changes),
        max_context_tokens=16,
        optimizer_params=of_optimizer,
        checkpoint_every_steps=4,
        seed=1,
        run=run,
    )


def run_rejection_sampling(run: TrainingRun, model, *, on_step=lambda *_: None, earlier=(), kept=None, **changes):
    """Two rounds of 8 steps on episodes with a right word or two. `kept` gets the accepted ones."""
    values = yaml.safe_load(RejectionSamplingParams.example) | {
        "type": "rejection_sampling",
        "max_generated_tokens": 200,
        "tasks_per_step": 8,
        "samples_per_task": 2,
        "accept": {"type": "quantile", "quantile": 0.75},
        "max_steps": 8,
        "batch_size": 8,
        "num_dev_tasks": 10,
    }
    tasks = [word_task(x, y) for x in range(4, 9) for y in range(9, 12)]
    source = WordEpisodes(model)
    inputs = TrainingInputs(
        tasks,
        source,
        on_step=on_step,
        dev_tasks=[word_task(x, y) for x in range(4, 9) for y in (12, 13)],
        play_greedily=source.play_greedily,
    )
    params = RejectionSamplingParams.model_validate(values | changes)
    learner = Learner(model, tiny_tokenizer(), optimizer_params({}, lr=1e-2), checkpoint_every_steps=4, seed=1)
    how = {"replayed": DEMONSTRATIONS, "earlier": earlier, "params": params, "run": run}
    accepted = train_by_rejection_sampling(learner, inputs, **how)
    if kept is not None:
        kept += accepted


def run_phases(run: TrainingRun, model):
    """Rejection sampling, 16 steps, then online, 8."""
    own = RejectionSamplingParams.model_validate(
        yaml.safe_load(RejectionSamplingParams.example) | {"type": "rejection_sampling", "max_steps": 8}
    )
    online = OnlineParams.model_validate(yaml.safe_load(OnlineParams.example) | {"type": "online", "max_steps": 8})

    def learn(phase, part):
        if phase is own:
            run_rejection_sampling(part, model)
        else:
            run_online(part, model, max_steps=8)

    in_phases([own, online], learn, run)


def critic_params(**knobs):
    values = {"trunk": "apart", "lr": 1e-2, "updates_per_step": 2, "warmup_steps": 0}
    return CriticParams.model_validate(values | knobs)


def parts_of_words(episodes, num_parts=2):
    """Rows of the episodes in their order, in that many parts."""
    cuts = [len(episodes) * place // num_parts for place in range(num_parts + 1)]
    samples = [Sample(one, np.zeros(sum(one.trajectory.mask))) for one in episodes]
    return [batch_of(samples[start:end], pad_id=0) for start, end in itertools.pairwise(cuts)]


def run_critic(run: TrainingRun, model):
    """A critic on either trunk. Each process learns of its own share of words that were written
    once, the first of two of five episodes out of eight; the metrics tell of all."""
    player = copy.deepcopy(model)
    learner = sharded(model)
    accelerator = Accelerator()
    critics = {
        trunk: Critic(learner, critic_params(trunk=trunk), device=accelerator.device) for trunk in ("shared", "apart")
    }
    optimizer = build_optimizer(learner, "adamw", 1e-2)
    with weights_kept(learner, optimizer) if distributed.is_sharded() else nullcontext():
        accelerator.prepare(learner, optimizer)
    episodes = [play_words(player, word_task(x, 9), seed) for seed in range(4) for x in (4, 5)]
    own = episodes if distributed.count() == 1 else episodes[:5] if distributed.is_first() else episodes[5:]
    parts = parts_of_words(own)
    returns = [targets_of([np.full(2, float(ids_T[4])) for ids_T in part.input_ids_N_T], part) for part in parts]
    for step in range(6):
        metrics = {}
        for trunk, critic in critics.items():
            metrics[f"value_loss_{trunk}"] = critic.learn(parts, returns)
            own_sum = sum(float(values_N_T.sum()) for values_N_T in critic.values(parts))
            metrics[f"values_{trunk}"] = sum(distributed.gather(own_sum))
        if run.metrics is not None:
            run.metrics.write(step + 1, metrics)


class WordEpisodes:
    """Plays by a copy of the weights, as an engine does. The copy is made of a model that no
    trainer has had: it patches `forward`."""

    is_elsewhere = False

    def __init__(self, model):
        self.model, self.copy = model, Remembering(copy.deepcopy(model).eval())

    def refresh(self):
        self.copy.load_state_dict(whole_state(self.model))

    def sleep(self): ...

    def run(self, tasks, seeds, *, prefix_fracs=()):
        if not prefix_fracs:
            return [play_words(self.copy, task, seed) for task, seed in zip(tasks, seeds, strict=True)]
        words = [int(task.task_id.split()[0]) for task in tasks]
        return [
            play_words(self.copy, task, seed, given=(word,) if frac >= 0.5 else ())
            for task, seed, frac, word in zip(tasks, seeds, prefix_fracs, words, strict=True)
        ]

    def play_on(self, forks):
        """Words before the turn are given back as the agent's own."""
        recorded = [fork.trajectory for fork in forks]
        played = [
            play_words(self.copy, fork.task, one.seed, given=one.token_ids[4 : 2 * fork.at + 2 : 2])
            for fork, one in zip(forks, recorded, strict=True)
        ]
        return [replace(one, trajectory=replace(one.trajectory, mask=[0, 0, 0, 0, 1, 0, 1])) for one in played]

    def refuse_many_aborted(self, episodes): ...

    def play_greedily(self, tasks):
        self.refresh()
        return [play_words_greedily(self.copy, task) for task in tasks]


def run_dpo(run: TrainingRun, model, **changes):
    _run_on_pairs(DpoParams, {"type": "dpo", "beta": 0.5, "loss": "sigmoid"}, run, model, **changes)


def run_kto(run: TrainingRun, model, **changes):
    knobs = {"type": "kto", "beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.0}
    _run_on_pairs(KtoParams, knobs, run, model, **changes)


def run_orpo(run: TrainingRun, model, **changes):
    _run_on_pairs(OrpoParams, {"type": "orpo", "beta": 0.5}, run, model, **changes)


def pairs_of_copies():
    return [(row, spoilt(row)) for row in copy_rows(30)[0]]


def _run_on_pairs(section, knobs, run, model, *, pairs=None, **changes):
    of_optimizer = optimizer_params(changes, lr=1e-2)
    how = {"optimizer_params": of_optimizer, "checkpoint_every_steps": 4, "seed": 1, "run": run}
    training = PairTraining(model, tiny_tokenizer(), pairs or pairs_of_copies(), **how)
    train_on_pairs(training, section.model_validate({"max_steps": 12, "batch_size": 8} | knobs | changes))


def run_reward_model(run: TrainingRun, model, *, orders=(), **changes):
    values = {"max_steps": 12, "batch_size": 8, "lr": 1e-2, "holdout_frac": 0.2, "checkpoint_every_steps": 4}
    train_reward_model(
        model,
        tiny_tokenizer(),
        pairs=pairs_of_copies(),
        orders=orders,
        params=TrainRewardModelParams.model_validate(values | changes),
        seed=1,
        run=run,
    )


def labelled_words(count, seed=0):
    """Random words; the label is the share of `a` so far, and of a first state there is none."""
    model, rng = tiny_model(), np.random.default_rng(seed)
    found = []
    for number in range(count):
        x, *given = rng.integers(4, 7, size=3).tolist()
        ids = play_words(model, word_task(x, 9), number, given=given).trajectory.token_ids
        played = replace(play_words(model, word_task(x, 9), number).trajectory, token_ids=ids)
        is_a = [float(ids[place] == 4) for place in (4, 6)]
        found.append(LabelledEpisode(played, np.array([np.nan, is_a[0], sum(is_a) / 2])))
    return found


def run_process_model(run: TrainingRun, model, **changes):
    values = {"num_tasks": 2, "samples_per_task": 2, "branches_per_turn": 1, "temperature": 1.0, "holdout_frac": 0.5}
    values |= {"max_steps": 12, "batch_size": 8, "lr": 1e-2, "checkpoint_every_steps": 4}
    params = TrainProcessModelParams.model_validate(values | changes)
    train_process_model(model, tiny_tokenizer(), episodes=labelled_words(60), params=params, seed=1, run=run)


RUNS = {
    "sft": run_sft,
    "sft_by_adapter": lambda run, model: run_sft(run, model, learn="separate_adapters"),
    "sft_on_wrong_dev": run_sft_on_wrong_dev,
    "online": run_online,
    "rejection_sampling": run_rejection_sampling,
    "phases": run_phases,
    "critic": run_critic,
    "dpo": run_dpo,
    "kto": run_kto,
    "orpo": run_orpo,
    "reward_model": run_reward_model,
    "process_model": run_process_model,
    "two_policies": two_policies.run_two_policies,
    "served": lambda run, model, **changes: run_online(run, model, source=ServedWords(model), **changes),
    "loaded": run_sft,
    "held": run_held,
    "merged": run_merged,
}


def run_here(
    algorithm, folder, model=None, *, progress=lambda *_: None, rows_at_once=None, tokens_at_once=None, **changes
):
    """In this process: the model, a tiny one unless it is given, and the lines of metrics.jsonl."""
    model = model or tiny_model()
    with open_run(folder, progress=progress, at_once=AtOnce(rows_at_once, tokens_at_once)) as run:
        RUNS[algorithm](run, model, **changes)
    return model, read_metrics(folder / METRICS)


def make_model(algorithm, *, is_adapted):
    if algorithm in ("reward_model", "process_model"):
        return tiny_adapted_model("SEQ_CLS") if is_adapted else tiny_reward_model()
    if algorithm in ("held", "merged"):
        return None
    if algorithm == "loaded":
        return load_trainable(Path("model"), large_section(), seed=1)
    if algorithm == "sft_by_adapter":
        return tiny_adapted_model(has_second=True)
    if algorithm == "served":
        return server_model(is_adapted=is_adapted)
    if algorithm == "two_policies":
        return two_policies.make_model()
    return tiny_adapted_model() if is_adapted else tiny_model()


def whole_state(model):
    """All weights in this process; of a sharded model all processes ask together."""
    return {name: whole(weight.detach()) for name, weight in model.state_dict().items()}


def digest_of(model):
    return digest_of_weights(model.state_dict())


def digest_of_weights(state):
    return hashlib.sha256(
        b"".join(name.encode() + state[name].contiguous().numpy().tobytes() for name in sorted(state))
    ).hexdigest()


def train(algorithm: str, folder: Path, death: Death = Death(), *, is_adapted=False, limits=None, **changes):
    """Exit code and, where it ended well, what it made: a digest of the weights and the text of
    metrics.jsonl. `limits` of alarms; None for no alarms."""
    code = forked.call(_train, algorithm, folder, death, is_adapted, limits, changes)
    return code, json.loads((folder / "result.json").read_text()) if code == 0 else None


def _train(algorithm, folder, death, is_adapted, limits, changes):
    torch.set_num_threads(1)

    def progress(done, total, note):
        if done == death.after:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == death.asked:
            os.kill(os.getpid(), signal.SIGTERM)

    if death.in_save is not None:
        resumable_trainer.seal = trainer_state.seal = _die_in(death.in_save)
    model = make_model(algorithm, is_adapted=is_adapted)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    try:
        alarms = Alarms(AlarmParams.model_validate(limits), on_alarm="warn") if limits else None
        with open_run(folder, alarms=alarms, progress=progress) as run:
            more = RUNS[algorithm](run, model, **changes) or {}
    except Interrupted as error:
        (folder / "interrupted.txt").write_text(str(error))
        raise SystemExit(error.code) from error
    changed = [name for name, weights in before.items() if not torch.equal(weights, model.state_dict()[name])]
    result = {
        "weights": digest_of(model),
        "changed": changed,
        "metrics": (folder / METRICS).read_text(),
        **more,
    }
    (folder / "result.json").write_text(json.dumps(result))


def _die_in(step):
    seal = resumable_trainer.seal

    def seal_or_die(checkpoint):
        if checkpoint.name == f"checkpoint-{step}":
            weights = checkpoint / "optimizer.pt"
            weights.write_bytes(weights.read_bytes()[:100])
            os.kill(os.getpid(), signal.SIGKILL)
        seal(checkpoint)

    return seal_or_die
