"""Choices of online training go together over a resumption: two steps, a checkpoint, and two more
are the bytes of four steps, under every combination of credit, replay and order, and every pair of
all other choices that no rule refuses. `make test` runs as few of them as have every choice, and
every pair of credit, replay and order."""

import copy
import functools
import hashlib
import itertools
import shutil
import types
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from tiny import tiny_model, tiny_reward_model, tiny_tokenizer, word_task
from tiny_runs import DEMONSTRATIONS, digest_of

from posttrain.models.micro_batches import AtOnce
from posttrain.models.params import OptimizerParams
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.runtime.knobs import Section
from posttrain.train.checkpointing import checkpoints_in
from posttrain.train.online.constraints import ConstraintParams
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams, SamplingParams
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.resumable_trainer import open_run
from posttrain.types import Message, Outcome, ScoredEpisode, StopReason, ToolRun, Trajectory, Turn

NUM_STEPS = 4
NUM_TRIES, NUM_TRIES_OF_REFUSED, NUM_MORE = 200, 30, 2000
JOINS = {"gae": {"none"}, "branch_values": {"none"}, "imitation": {"expert", "edits"}}  # of credits without the others
AXES = {
    "credit": (OnlineParams, "credit"),
    "join": (OnlineParams, "join"),
    "sampling.order": (SamplingParams, "order"),
}
SIZES = {"max_steps": NUM_STEPS, "tasks_per_step": 2, "group_size": 3, "temperature": 1.0, "importance_cap": 2.0}
# of numbers without which a part would be idle, or that must be as the scripted episodes are
NUMBERS = {
    "best": [1.25],
    "max_refills": [0, 1],
    "updates_per_step": [1, 2],
    "minibatches": [1, 2],
    "entropy_bonus": [0.0, 0.05],
    "max_generated_tokens": [None, 90],
    "every_steps": [1],
    "warmup_steps": [1],
}
MODEL = tiny_model()
TASKS = [word_task(x, y) for x, y in ((4, 9), (5, 9), (4, 10))]
# before the checkpoint many succeed, and few behind it: what is remembered of a task is used
EARLY = {
    seed
    for step in range(NUM_STEPS // 2)
    for refill in (0, 1)
    for seed in episode_seeds(Stream.ONLINE, 1, step, refill, count=6)
}


def type_of(section):
    return get_args(section.model_fields["type"].annotation)[0]


example_of = functools.cache(lambda section: yaml.safe_load(getattr(section, "example", "{}")))


@functools.cache
def options_of(section, name):
    """The values that a knob may have by their names, which of a section is its type; none of a
    number."""
    field = section.model_fields[name]
    if field.discriminator:
        return {type_of(one): one for one in get_args(field.annotation)}
    values = [False, True] if field.annotation is bool else NUMBERS.get(name) or literals_of(field.annotation)
    return {value: value for value in values}


def literals_of(annotation):
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def drawn(section, rng, wanted, above="", example=types.MappingProxyType({})):
    """Values of a section's knobs, and its choices by their place: what is wanted, else any."""
    values, choices, example = {}, {}, example_of(section) | example
    for name, field in section.model_fields.items():
        place, inner = f"{above}{name}", field.annotation
        usual = example.get(name, 0.5 if field.is_required() else field.default)
        if options := options_of(section, name):
            choices[place] = wanted[place] if place in wanted else list(options)[rng.integers(len(options))]
            usual = inner = options[choices[place]]
        if isinstance(inner, type) and issubclass(inner, Section):
            given = usual if isinstance(usual, dict) else {}
            usual, further = drawn(inner, rng, wanted, f"{place}.", given)
            choices |= further
        values[name] = SIZES.get(name, usual)
    return values, choices


def num_tries(wanted):
    """More where the rules have an answer to find: that of the others is no."""
    if not wanted:
        return 1
    return NUM_TRIES if wanted["join"] in JOINS.get(wanted["credit"], {wanted["join"]}) else NUM_TRIES_OF_REFUSED


def combinations():
    """Every one of credit, replay and order that is valid, other choices drawn; and more, until
    two choices that go together do so in one."""
    every = itertools.product(*(options_of(*one) for one in AXES.values()))
    triples = [dict(zip(AXES, one, strict=True)) for one in every]
    rng, found, pairs = np.random.default_rng(0), [], set()
    for wanted in [*triples, *[{}] * NUM_MORE]:
        for _ in range(num_tries(wanted)):
            values, choices = drawn(OnlineParams, rng, wanted)
            own = set(itertools.combinations(choices.items(), 2))
            if own <= pairs and not wanted:
                continue
            try:
                found.append((OnlineParams.model_validate(values), choices))
            except ValidationError:
                continue
            pairs |= own
            break
    return found


def few(found):
    """Places of as few as have every choice, and every pair of credit, replay and order."""
    choices = [list(one.items()) for _, one in found]
    wanted = [{*own, *itertools.combinations([one for one in own if one[0] in AXES], 2)} for own in choices]
    left, kept = set().union(*wanted), set()
    while left:
        kept.add(max(range(len(found)), key=lambda place: len(wanted[place] & left)))
        left -= set().union(*(wanted[place] for place in kept))
    return kept


FOUND = combinations()
FEW = few(FOUND)
CONSTRAINED = next(
    one.model_copy(
        update={"constraints": [ConstraintParams(score="first", max_mean=0.1, lr=1.0, decay=0.5, max_weight=9)]}
    )
    for one, _ in FOUND
    if (one.credit.type, one.join.type) == ("episode", "hints")
)


def digest(*numbers):
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")


def played(task, seed, given=0.0):
    """Two turns of random words, by their seed. Every other episode has scores of its turns by the
    world, the others calls that worked or not."""
    rng = np.random.default_rng([seed, digest(task.task_id, given)])
    words, of_turns = rng.integers(4, 16, size=5).tolist(), rng.random(2)
    won = int(rng.choice(3, p=[0.25, 0.25, 0.5] if seed in EARLY else [0.45, 0.45, 0.1]))
    is_called, is_graded = rng.random() < 0.5, rng.random() < 0.5
    runs = tuple(ToolRun(str(place), "look", "ok" if one < 0.5 else "error") for place, one in enumerate(of_turns))
    return ScoredEpisode(
        Trajectory(
            task.task_id,
            (*task.messages, Message("assistant", "one"), Message("tool", "{}"), Message("assistant", "two")),
            StopReason.DONE,
            seed,
            token_ids=[2, *words[:3], 2, *words[3:]],
            mask=[0, 0, 1, 1, 0, 1, 1],
            logprobs=[0.0, 0.0, *(-1 - rng.random(2)), 0.0, *(-1 - rng.random(2))],
            scores={"second": float(won == 2), "first": float(won > 0)},
            reward=won / 2,
            turns=(Turn(2, 2, 0, 1, runs * is_called), Turn(1, 2, 0, 3)),
            outcome=Outcome(won == 2, won == 2, turn_scores=tuple(of_turns.tolist()) * is_graded),
        ),
        bonus=float(rng.random()) / 8,
    )


class Scripted:
    """An `EpisodeSource` that asks no model, but for what seeds the plays of dev tasks."""

    is_elsewhere = False

    def __init__(self, model):
        self._model = model

    def refresh(self): ...

    def sleep(self): ...

    def play_on(self, forks):
        return [played(fork.task, fork.trajectory.seed) for fork in forks]

    def refuse_many_aborted(self, episodes): ...

    def run(self, tasks, seeds, *, prefix_fracs=()):
        return [
            played(task, seed, given)
            for task, seed, given in itertools.zip_longest(tasks, seeds, prefix_fracs, fillvalue=0.0)
        ]

    def play_greedily(self, tasks):
        return [played(task, digest(digest_of(self._model))) for task in tasks]


def trained(folder, params, *, on_step=lambda _: None):
    """The bytes of the last checkpoint and of the weights that come out."""
    model = copy.deepcopy(MODEL)
    source = Scripted(model)
    inputs = TrainingInputs(
        TASKS,
        source,
        DEMONSTRATIONS,
        dev_tasks=TASKS[:2],
        play_greedily=source.play_greedily,
        expert=lambda task, count: [played(task, place) for place in range(count)],
        score_weights={"first": 0.5, "second": 0.5},
        process_model=tiny_reward_model(),
    )
    with open_run(folder, progress=lambda step, *_: on_step(step), at_once=AtOnce(6)) as run:
        train_online(
            model,
            tiny_tokenizer(),
            inputs,
            params=params,
            max_context_tokens=16,
            optimizer_params=OptimizerParams(lr=3e-2, optimizer="muon"),
            checkpoint_every_steps=NUM_STEPS // 2,
            seed=1,
            run=run,
        )
    last = checkpoints_in(folder)[-1]
    return {file.name: file.read_bytes() for file in last.iterdir()} | {"weights": digest_of(model)}


def every_choice(section, above=""):
    for name, field in section.model_fields.items():
        options = options_of(section, name)
        yield from ((f"{above}{name}", chosen) for chosen in options)
        for inner in [*options.values(), field.annotation]:
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from every_choice(inner, f"{above}{name}.")


def test_each_choice_is_made_and_each_of_credit_replay_and_order_with_each_other_that_it_goes_with():
    assert set(every_choice(OnlineParams)) <= {choice for _, choices in FOUND for choice in choices.items()}
    triples = {(params.credit.type, params.join.type, params.sampling.order.type) for params, _ in FOUND}
    every = itertools.product(*(options_of(*one) for one in AXES.values()))
    assert triples == {one for one in every if one[1] in JOINS.get(one[0], {one[1]})}


@pytest.mark.parametrize(
    "params",
    [
        CONSTRAINED,
        *(
            pytest.param(params, marks=[] if place in FEW else pytest.mark.needs_killed)
            for place, (params, _) in enumerate(FOUND)
        ),
    ],
    ids=lambda one: f"{one.credit.type}-{one.join.type}-{one.sampling.order.type}",
)
def test_two_steps_a_resumption_and_two_steps_are_the_bytes_of_four(tmp_path, params):
    def keep(step):
        if step == NUM_STEPS // 2:
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    expected = trained(tmp_path / "whole", params, on_step=keep)
    found = trained(tmp_path / "cut", params)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
