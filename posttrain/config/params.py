"""The one reader of `params.yaml`: every knob, its range, and the rules between knobs.

No knob has a default here: a default is a hyper-parameter that DVC cannot see. Unknown keys are
refused. `load_params` raises `ParamsError` with all problems (key, value, reason, remedy);
`stages/check_params.py` runs it on the whole file before any other stage, and looks up the names in
it that lead to code or files.

A section that is one of a choice has an `example`, the knobs besides its type as they might stand
in the file: shown where one is missing, and never read in place of a knob.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from posttrain.data.params import GenerateDataParams, ResampleDataParams, ValidateDataParams
from posttrain.evals.params import EvaluateParams
from posttrain.models.params import LoraAdapter, PrepareModelParams, PretrainedModel, ScratchModel
from posttrain.retrieval.params import TrainRetrieverParams
from posttrain.rewards.params import RewardParams
from posttrain.rollout.params import AgentParams
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError, Problem
from posttrain.runtime.knob_errors import explain, problem_lines
from posttrain.runtime.knobs import SLIP, Section, Seed
from posttrain.runtime.plain_yaml import read_plain
from posttrain.train.online.params import OnlineParams
from posttrain.train.params import (
    SamplePreferencesParams,
    TrainProcessModelParams,
    TrainRewardModelParams,
    TrainSftParams,
)
from posttrain.train.policy_params import PairParams, Phase, TrainPolicyParams
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.roles import RoleWeights
from posttrain.worlds.catalog import World

_CREDITS_OF_ROLES = ("episode", "scores")  # which give a number for all of an episode's tokens


class ParamsError(ConfigurationError):
    """`params.yaml` is wrong: exit code 78."""


class ReportParams(Section):
    num_failures_shown: Annotated[int, Field(ge=0, le=100_000, description=SLIP)]


class Params(Section):
    """The whole of `params.yaml`. A stage uses only the sections that it lists under `params:` in
    `dvc.yaml`; a test compares the two."""

    seed: Seed
    world: World
    agent: AgentParams
    model: Annotated[ScratchModel | PretrainedModel, Field(discriminator="type")]
    reward: RewardParams
    train_retriever: TrainRetrieverParams
    generate_data: GenerateDataParams
    validate_data: ValidateDataParams
    prepare_model: PrepareModelParams
    resample_data: ResampleDataParams
    train_sft: TrainSftParams
    sample_preferences: SamplePreferencesParams
    train_reward_model: TrainRewardModelParams
    train_process_model: TrainProcessModelParams
    train_policy: TrainPolicyParams
    evaluate: EvaluateParams
    report: ReportParams


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check the whole file. Raises ParamsError naming every bad key at once."""
    try:
        content = read_knobs(path.read_bytes(), source=str(path))
    except FileNotFoundError as error:
        raise ParamsError(f"{path} is not here; run from the root of the repository") from error
    return parse_params(content, source=str(path))


def read_knobs(text: str | bytes, *, source: str) -> Any:
    """A YAML file of knobs. Raises ParamsError for no YAML, or a key that stands twice."""
    try:
        return read_plain(text, only_decimal=True)
    except ValueError as error:
        raise ParamsError(f"{source} cannot be read as YAML: {error}") from error


def set_knobs(content: Any, knobs: Mapping[str, Any], *, source: str) -> Iterator[tuple[Sequence[str], str, Any]]:
    """Write values at dotted keys into the content of a `params.yaml`; yields section, key and
    value of each that was another. Raises ConfigurationError where there is no such section, which
    `source` names."""
    for key, value in knobs.items():
        *path, last = key.split(".")
        section = content
        for part in path:
            section = section.get(part) if isinstance(section, Mapping) else None
        if not isinstance(section, dict):
            raise ConfigurationError(
                f"{source} sets {key!r}, and params.yaml has no section {'.'.join(path)!r}; nothing was run"
            )
        if last not in section or json.dumps(section[last]) != json.dumps(value):
            section[last] = deepcopy(value)  # a later key may lie below it
            yield path, last, value


def refusal(problems: Sequence[Problem], source: str) -> ParamsError:
    """One error with the lines of all problems."""
    lines = problem_lines(problems)
    text = "\n".join(f"  - {escape_control_chars(line)}" for line in lines)
    return ParamsError(f"{source} has {len(lines)} problem(s), nothing was run:\n{text}", problems=problems)


def parse_params(content: Any, *, source: str) -> Params:
    """Check content that was read already; the message names `source`. Raises ParamsError."""
    try:
        params = Params.model_validate(content)
    except ValidationError as error:
        raise refusal(explain(error, Params), source) from error
    if found := list(_contradictions(params)):
        raise refusal(found, source)
    return params


def _contradictions(params: Params) -> Iterator[Problem]:
    """Contradictions between sections; each section refuses its own."""
    world, preferences = params.world, params.sample_preferences
    if (learn := params.train_sft.learn) == "separate_adapters" and not isinstance(params.model.adapter, LoraAdapter):
        reason = "reasoning and calls are each learnt by a LoRA adapter, and model.adapter has none"
        remedy = "Set model.adapter.type to lora, or learn to alternating"
        yield Problem("train_sft.learn", "contradiction", reason, remedy, learn)
    has_memory = params.agent.memory.type != "none"
    windowed = "agent.memory" if has_memory else "agent.worker" if params.agent.worker else ""

    if preferences.num_tasks > world.num_rl_tasks:
        reason = f"world.num_rl_tasks is only {world.num_rl_tasks}, and preferences are sampled on the rl split"
        yield _contradiction(
            "sample_preferences.num_tasks", preferences.num_tasks, reason, "Raise the split or lower it"
        )
    for section, algorithm in params.train_policy.online.items():
        yield from _online_contradictions(params, f"train_policy.{section}", algorithm)
    if windowed:
        yield from _window_contradictions(params.train_policy, windowed)
    yield from _role_contradictions(params)
    if params.validate_data.max_tokens > (context := params.agent.max_context_tokens) and not has_memory:
        reason = f"agent.max_context_tokens is {context}: no episode could hold such demonstrations"
        remedy = "Lower it or raise agent.max_context_tokens"
        yield _contradiction("validate_data.max_tokens", params.validate_data.max_tokens, reason, remedy)
    holdout_frac = params.train_reward_model.holdout_frac
    num_held_out = round(holdout_frac * preferences.num_tasks)
    if not 0 < num_held_out < preferences.num_tasks:
        num_trained = preferences.num_tasks - num_held_out
        reason = f"of {preferences.num_tasks} tasks {num_held_out} would be held out and {num_trained} trained on"
        yield _contradiction(
            "train_reward_model.holdout_frac", holdout_frac, reason, "Change it or sample_preferences.num_tasks"
        )
    if params.agent.max_new_tokens < (needed := getattr(world, "num_answer_tokens", 1)):
        reason = f"the world {world.type} asks for messages of {needed} tokens, which would be cut off"
        yield _contradiction("agent.max_new_tokens", params.agent.max_new_tokens, reason, f"Raise it to {needed}")


def _window_contradictions(params: TrainPolicyParams, knob: str) -> Iterator[Problem]:
    """The choices that take an episode for one row, where `knob` makes one for each window."""
    remedy = f"Set {'agent.memory.type to none' if knob == 'agent.memory' else f'{knob} to null'}, or choose another"
    for section, phase in params.phases.items():
        needs: list[str] = [phase.type] if isinstance(phase, PairParams) else []
        if isinstance(phase, OnlineParams):
            needs += [phase.credit.type] if phase.credit.type in ("gae", "process_model") else []
            needs += [phase.join.type] if phase.join.type != "none" else []
        for name in needs:
            reason = f"{knob} cuts an episode into context windows, and this takes it as one row"
            yield Problem(f"train_policy.{section}", "contradiction", reason, remedy, name)
    if params.reward_model_weight:
        reason = f"{knob} cuts an episode into context windows, and a reward model reads it as one row"
        yield _contradiction("train_policy.reward_model_weight", params.reward_model_weight, reason, "Set it to 0")


def _role_contradictions(params: Params) -> Iterator[Problem]:
    """Choices that make no sense for one policy, or for two in one episode."""
    worker, policy = params.agent.worker, params.train_policy
    for role, weight in policy.role_weights.of_roles.items():
        key = f"train_policy.role_weights.{role}"
        if worker is None and weight != 1:
            yield _contradiction(key, weight, "agent.worker is null, and there is one policy", "Set it to 1.0")
        elif worker is not None and weight and role in worker.others:
            reason = f"agent.worker.{role} is of type {worker.others[role].type}, and other weights are frozen"
            yield _contradiction(key, weight, reason, "Set it to 0.0")
    for section, phase in policy.phases.items() if worker is not None else ():
        for name, reason, remedy in _unfit_for_roles(phase, policy.role_weights):
            yield Problem(f"train_policy.{section}", "contradiction", reason, remedy, name)


def _unfit_for_roles(phase: Phase, weights: RoleWeights) -> Iterator[tuple[str, str, str]]:
    """What a phase cannot do with two policies, the reason, and the remedy."""
    one = "it follows one conversation, and with agent.worker an episode has several"
    if isinstance(phase, OnlineParams) and phase.credit.type not in _CREDITS_OF_ROLES:
        yield f"credit.type {phase.credit.type}", one, f"Take one of {', '.join(_CREDITS_OF_ROLES)}"
    if not isinstance(phase, PairParams) and phase.retry.type == "reflection":
        yield "retry.type reflection", one, "Take retry none"
    if isinstance(phase, RejectionSamplingParams) and {*weights.of_roles.values()} - {0.0, 1.0}:
        yield phase.type, "its rows have no advantage, of which role_weights could be shares", "Set these to 0 or 1"


def _online_contradictions(params: Params, section: str, algorithm: OnlineParams) -> Iterator[Problem]:
    if algorithm.tasks_per_step > (num_tasks := params.world.num_rl_tasks):
        reason = f"world.num_rl_tasks is only {num_tasks}: one step would play a task as two groups"
        yield _contradiction(
            f"{section}.tasks_per_step", algorithm.tasks_per_step, reason, "Raise the split or lower it"
        )
    most = _most_to_earn(params)
    for name, best in algorithm.virtual_bests.items():
        if best < most:
            reason = f"an episode can earn {most:g}, and one that is better than the best would be pushed down"
            yield _contradiction(f"{section}.credit.{name}.best", best, reason, f"Raise it to {most:g}")


def _contradiction(key: str, value: float, reason: str, remedy: str) -> Problem:
    return Problem(key, "contradiction", reason, remedy, f"{value:g}")


def _most_to_earn(params: Params) -> float:
    """The highest reward of an episode, by rules and by a reward model, where all scores are 1."""
    own = sum(params.reward.weights.values()) + sum(max(extra.weight, 0.0) for extra in params.reward.extra)
    policy = params.train_policy
    return round(policy.world_reward_weight * own + policy.reward_model_weight, 9)
