"""The one reader of `params.yaml`: every knob, its range, and the rules between knobs.

No knob has a default here: a default is a hyper-parameter that DVC cannot see. Unknown keys are
refused. `load_params` raises `ParamsError` with one line per problem (key, value, what is
accepted); `stages/check_params.py` runs it on the whole file before any other stage, and looks up
the names in it that lead to code or files. One file, however long: it is `params.yaml` with its
types, read from top to bottom beside it.

A section that is one of a choice has an `example`, the knobs besides its type as they might stand
in the file: shown to who changed the type, and never read in place of a knob.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from posttrain.exits import ConfigurationError
from posttrain.knob_problems import explain, nearest
from posttrain.knobs import SLIP, Above, Below, Count, Frac, PositiveFrac, Rate, Section, Seed, SmallCount, Temperature
from posttrain.plain_yaml import read_plain
from posttrain.rl.params import OnlineParams
from posttrain.visible import visible
from posttrain.worlds.choices import World

# architectures by their `model_type`, and the linear layers that each of their layers has; models
# from scratch are Qwen3s. A test builds all and compares
LIKE_QWEN3 = ("llama", "mistral", "qwen2", "qwen3")
LINEAR_LAYERS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


class ParamsError(ConfigurationError):
    """`params.yaml` is wrong: exit code 78."""


class AgentParams(Section):
    max_turns: SmallCount
    max_new_tokens: Count
    max_context_tokens: Count
    max_seconds: Annotated[float, Field(gt=0)]
    tool_timeout_s: Annotated[float, Field(gt=0)]
    tool_retries: Annotated[int, Field(ge=0, le=1000, description=SLIP)]
    max_result_chars: Count
    max_lost_frac: Annotated[float, Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _one_message_fits_the_context(self) -> Self:
        if self.max_new_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens} and max_context_tokens {self.max_context_tokens}: "
                "one message would fill the episode; raise the context or lower the message"
            )
        return self


class FullAdapter(Section):
    type: Literal["full"]


Quantization = Literal["none", "int8", "nf4"]
OptimizerKind = Literal["muon", "adamw", "adamw_8bit"]


class LoraAdapter(Section):
    """Low-rank adapters (arXiv 2106.09685): W + (alpha / r) B A on the named linear layers, W kept
    as `quantization` says while they are trained."""

    example: ClassVar[str] = "{r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}"
    type: Literal["lora"]
    r: SmallCount
    alpha: SmallCount
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]
    quantization: Quantization = "none"


Adapter = Annotated[FullAdapter | LoraAdapter, Field(discriminator="type")]


Dtype = Literal["float32", "bfloat16"]
# of a training's step, forward and backward; None: a quarter of a process's share, online an eighth
RowsAtOnce = Annotated[int, Field(ge=1, le=100_000, description=SLIP)] | None


class ScratchModel(Section):
    """A Qwen3-architecture decoder with random weights and a byte-level BPE tokenizer of its
    own."""

    example: ClassVar[str] = (
        "{hidden_size: 96, num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 64, mlp_size: 256, "
        "vocab_size: 900, adapter: {type: full}, gradient_checkpointing: false, dtype: float32}"
    )
    type: Literal["scratch"]
    hidden_size: SmallCount
    num_layers: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    num_heads: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    num_kv_heads: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    head_dim: Annotated[int, Field(ge=2, le=1000, multiple_of=2, description=SLIP)]
    mlp_size: SmallCount
    vocab_size: Annotated[int, Field(ge=400, le=10_000_000, description=SLIP)]
    adapter: Adapter
    gradient_checkpointing: bool
    rows_at_once: RowsAtOnce = None
    dtype: Dtype

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}; "
                "each KV head serves whole query heads"
            )
        return self

    @model_validator(mode="after")
    def _adapts_layers_that_are_there(self) -> Self:
        targets = self.adapter.target_modules if isinstance(self.adapter, LoraAdapter) else []
        if problem := target_problem(targets, self.num_layers):
            raise ValueError(problem)
        return self


class PretrainedModel(Section):
    """Any causal LM in Hugging Face format: a hub name or a folder. `chat_template` is one of ours,
    for models whose own has no tools: `compact` (ChatML, tools by their signatures), or `bare`, the
    same without the system text."""

    example: ClassVar[str] = (
        "{name: Qwen/Qwen2.5-7B-Instruct, "
        "adapter: {type: lora, r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}, "
        "gradient_checkpointing: true, dtype: bfloat16}"
    )
    type: Literal["pretrained"]
    name: str
    revision: str | None = None
    chat_template: str | None = None
    adapter: Adapter
    gradient_checkpointing: bool
    rows_at_once: RowsAtOnce = None
    dtype: Dtype


class ExtraScore(Section):
    """One more score with a weight of either sign: another of the world's, `length_penalty`, or a
    user's function as `module:function`."""

    name: str
    weight: float


class RewardParams(Section):
    """`weights` are of scores that are good at 1, `penalties` of mistakes that happened at 1; each
    is a score that every world gives (`worlds/grading.py`) or that this one does."""

    weights: dict[str, Frac]
    penalties: dict[str, Annotated[float, Field(le=0)]]
    extra: list[ExtraScore]

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        total = sum(self.weights.values())
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the weights sum to {total:g}, not 1; a perfect episode would not earn 1")
        return self

    @model_validator(mode="after")
    def _each_score_once(self) -> Self:
        names = [*self.weights, *self.penalties, *(extra.name for extra in self.extra)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} stands twice, and a score counts once: add up the weights")
        return self

    @model_validator(mode="after")
    def _success_comes_first(self) -> Self:
        """No failure may earn what a success does, nor a success beside the point what a strict one
        does, whatever else was done well."""
        first, second = self.weights.get("completion", 0.0), self.weights.get("strictness", 0.0)
        ranked = {"completion", "strictness"}
        others = math.fsum(
            abs(weight)
            for name, weight in [
                *self.weights.items(),
                *self.penalties.items(),
                *((extra.name, extra.weight) for extra in self.extra),
            ]
            if name not in ranked
        )
        if first <= others + second:
            raise ValueError(
                f"weights.completion is {first:g} and all others come to {others + second:g} (penalties without their "
                "sign): a failure could earn more than a success; raise it above their sum"
            )
        if second and second <= others:
            raise ValueError(
                f"weights.strictness is {second:g} and all others but completion come to {others:g}: an episode that "
                "called every tool could earn more than one that chose; raise it above their sum, or leave it out"
            )
        return self


# of posttrain/data/importing/formats.py; a test compares
ImportFormat = Literal["tau_bench", "tau2", "xlam", "agentgym", "toolbench", "sharegpt", "openai", "trl", "bfcl"]


class ScriptedSource(Section):
    type: Literal["scripted"]


class ImportSource(Section):
    """Trajectories that a team already has. `path` is relative to the repository and lies under a
    dep of the stage, such as `data/imported`; without a `format` the records tell it. A call of
    one of `stop_tools` ends an episode. `dev_frac` of the tasks are kept back to choose the
    checkpoint by; with 0 the world's expert must play dev tasks."""

    example: ClassVar[str] = "{path: data/imported/ours.jsonl, stop_tools: [], dev_frac: 0.1}"
    type: Literal["import"]
    format: ImportFormat | None = None
    path: str
    stop_tools: list[str]
    dev_frac: Annotated[float, Field(ge=0, lt=1)]


class OpenAiSource(Section):
    """Episodes that a model behind an OpenAI-compatible endpoint plays; endpoint and key are the
    environment's."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, temperature: 0.7, max_new_tokens: 512}"
    type: Literal["openai"]
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_new_tokens: Count


class GenerateDataParams(Section):
    source: Annotated[ScriptedSource | ImportSource | OpenAiSource, Field(discriminator="type")]
    reasoning_frac: Frac


class ValidateDataParams(Section):
    max_quarantine_frac: Frac
    max_tokens: Count


class PrepareModelParams(Section):
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000, description=SLIP)]
    warmup_batch_size: SmallCount
    lr: Rate


class CoresetParams(Section):
    strategy: Literal["loss_topk", "diversity", "hybrid", "random"]
    keep_frac: PositiveFrac


class OversampleParams(Section):
    type: Literal["smote", "duplicate", "none"]
    target_frac: PositiveFrac
    num_neighbors: SmallCount
    max_contamination: Frac


class ResampleDataParams(Section):
    cells: list[str]
    quality_filter: bool
    max_dropped_frac: Frac
    success_filter: bool
    coreset: CoresetParams
    oversample: OversampleParams


class TrainSftParams(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    optimizer: OptimizerKind
    label_weights: dict[str, dict[str, Frac]]
    eval_every_steps: Count  # a checkpoint each time: the best evaluation needs one to return to
    early_stopping_patience: Count

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        if len(self.label_weights) > 1:
            raise ValueError(
                f"label_weights names the labels {', '.join(self.label_weights)}; rows are weighed by one of them"
            )
        for label, weights in self.label_weights.items():
            if abs((total := sum(weights.values())) - 1) > 1e-9:
                raise ValueError(
                    f"the weights of {label} sum to {total:g}, not 1; they are shares of the training rows"
                )
        return self

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        if self.eval_every_steps > self.max_steps:
            raise ValueError(
                f"eval_every_steps is {self.eval_every_steps} and max_steps {self.max_steps}: the dev loss would never "
                "be measured, so there would be no best checkpoint to keep; lower it to max_steps or less"
            )
        return self


class SamplePreferencesParams(Section):
    num_tasks: Count
    # the reward model is judged by the best of four
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=SLIP)]
    temperature: Temperature
    pairs: Literal["best_worst", "closest"]


class TrainRewardModelParams(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    checkpoint_every_steps: Count

    @model_validator(mode="after")
    def _writes_checkpoints(self) -> Self:
        _refuse_no_checkpoint(self.checkpoint_every_steps, self.max_steps, "max_steps")
        return self


class DpoParams(Section):
    """Direct preference optimisation (arXiv 2305.18290) on the sampled pairs. The example is the
    one that README has figures of. `loss`: `sigmoid`, `hinge` (SLiC), which lets go of a pair once
    it is 1 / `beta` apart, or `ipo`, which wants it 1 / (2 `beta`) apart per token."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5, loss: sigmoid}"
    type: Literal["dpo"]
    max_steps: Count
    batch_size: SmallCount
    beta: Annotated[float, Field(gt=0)]
    loss: Literal["sigmoid", "hinge", "ipo"]


class KtoParams(Section):
    """Kahneman-Tversky optimisation (arXiv 2402.01306): the chosen episodes of the sampled pairs
    are desirable, the rejected ones undesirable, each by itself. A step has both of `batch_size`
    pairs."""

    example: ClassVar[str] = (
        "{max_steps: 80, batch_size: 32, beta: 0.5, desirable_weight: 1.0, undesirable_weight: 1.0}"
    )
    type: Literal["kto"]
    max_steps: Count
    # the mismatched episodes are of another pair of the step
    batch_size: Annotated[int, Field(ge=2, le=100_000, description=SLIP)]
    beta: Annotated[float, Field(gt=0)]
    desirable_weight: Annotated[float, Field(gt=0)]
    undesirable_weight: Annotated[float, Field(gt=0)]


class OrpoParams(Section):
    """Odds ratio preference optimisation (arXiv 2403.07691) on the sampled pairs, without a
    reference: fine-tuning on the chosen episodes, and `beta` times the loss of the odds."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5}"
    type: Literal["orpo"]
    max_steps: Count
    batch_size: SmallCount
    beta: Annotated[float, Field(gt=0)]


class AlarmParams(Section):
    """The limit of each rule in `tracking/alarms.py`; null turns a rule off."""

    steps: SmallCount
    start_steps: SmallCount
    zero_std: Annotated[float, Field(ge=0, lt=1)] | None
    no_signal: Annotated[float, Field(ge=0, lt=1)] | None
    turns_collapse: Below | None
    short_turns: Below | None
    entropy_collapse: Below | None
    entropy_eruption: Above | None
    kl: Annotated[float, Field(gt=0)] | None
    reward_hacking: Below | None
    engine_mismatch: Annotated[float, Field(gt=0)] | None
    forgetting: Above | None


class TrainPolicyParams(Section):
    algorithm: Annotated[OnlineParams | DpoParams | KtoParams | OrpoParams, Field(discriminator="type")]
    lr: Rate
    optimizer: OptimizerKind
    reward_model_weight: Annotated[float, Field(ge=0)]
    checkpoint_every_steps: Count
    on_alarm: Literal["warn", "stop"]
    alarms: AlarmParams

    @model_validator(mode="after")
    def _agrees_with_the_algorithm(self) -> Self:
        _refuse_no_checkpoint(self.checkpoint_every_steps, self.algorithm.max_steps, "algorithm.max_steps")
        if isinstance(self.algorithm, DpoParams | KtoParams | OrpoParams) and self.reward_model_weight:
            raise ValueError(
                f"reward_model_weight is {self.reward_model_weight:g} and algorithm.type {self.algorithm.type}, which "
                "learns from pairs and earns no reward, so the weight would change nothing; set it to 0.0"
            )
        if isinstance(self.algorithm, OnlineParams) and not self.algorithm.measures_kl and self.alarms.kl is not None:
            raise ValueError(
                f"alarms.kl is {self.alarms.kl:g} and algorithm.kl.is_measured false: it would never be raised; set "
                "it to null, or measure"
            )
        return self


class ExpertTeacher(Section):
    type: Literal["expert"]


class OpenAiTeacher(Section):
    """A model behind an OpenAI-compatible endpoint; endpoint and key are the environment's."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, max_new_tokens: 512}"
    type: Literal["openai"]
    model: str
    max_new_tokens: Count


class EvaluateParams(Section):
    by: list[str]
    teacher: Annotated[ExpertTeacher | OpenAiTeacher, Field(discriminator="type")]
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=SLIP)]  # for pass^4


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
    generate_data: GenerateDataParams
    validate_data: ValidateDataParams
    prepare_model: PrepareModelParams
    resample_data: ResampleDataParams
    train_sft: TrainSftParams
    sample_preferences: SamplePreferencesParams
    train_reward_model: TrainRewardModelParams
    train_policy: TrainPolicyParams
    evaluate: EvaluateParams
    report: ReportParams


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check the whole file. Raises ParamsError naming every bad key at once, with its
    value and what is accepted."""
    try:
        content, problems = _read(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise ParamsError(f"{path} is not here; run from the root of the repository") from error
    return _checked(content, problems, str(path))


def read_knobs(text: str | bytes, *, source: str) -> Any:
    """The content of a YAML file of knobs that need not be a whole `params.yaml`. Raises
    ParamsError where it is no YAML, a key stands twice, or a number is not in plain decimal
    digits."""
    content, problems = _read(text, source)
    if problems:
        raise refusal(problems, source)
    return content


def parse_params(content: Any, *, source: str) -> Params:
    """As `load_params`, for content already read; `source` is named in the message."""
    return _checked(content, [], source)


def refusal(problems: Sequence[str], source: str) -> ParamsError:
    """One error of a line for each problem."""
    lines = "\n".join(f"  - {visible(line)}" for line in problems)
    return ParamsError(f"{source} has {len(problems)} problem(s), nothing was run:\n{lines}")


def target_problem(targets: Sequence[str], num_layers: int) -> str | None:
    """What is wrong with LoRA's `target_modules` on a model with `LINEAR_LAYERS`; None where each
    names a layer, by its name or the end of it."""
    names = [f".model.layers.{index}.{name}" for index in range(num_layers) for name in LINEAR_LAYERS]
    unknown = [target for target in targets if not any(name.endswith(f".{target}") for name in names)]
    if not unknown:
        return None
    ends = [name.rpartition(".")[2] for name in LINEAR_LAYERS]
    meant = "".join(nearest(target.rpartition(".")[2], ends) for target in unknown)
    return (
        f"adapter.target_modules has {', '.join(unknown)}, but the linear layers that the policy and the reward model "
        f"have are {', '.join(ends)}: an adapter that attaches to nothing trains nothing.{meant} Correct the names"
    )


def _read(text: str | bytes, source: str) -> tuple[Any, list[str]]:
    try:
        content, odd_numbers, double_keys = read_plain(text)
    except ValueError as error:
        raise ParamsError(f"{source} cannot be read as YAML: {error}") from error
    return content, odd_numbers + double_keys


def _checked(content: Any, problems: Sequence[str], source: str) -> Params:
    try:
        params = Params.model_validate(content)
    except ValidationError as error:
        raise refusal([*problems, *explain(error, Params, content)], source) from error
    if found := [*problems, *_contradictions(params)]:
        raise refusal(found, source)
    return params


def _contradictions(params: Params) -> Iterator[str]:
    """Between sections; those within one are the section's own to refuse."""
    world, algorithm, preferences = params.world, params.train_policy.algorithm, params.sample_preferences
    if preferences.num_tasks > world.num_rl_tasks:
        yield (
            f"sample_preferences.num_tasks is {preferences.num_tasks} but world.num_rl_tasks only "
            f"{world.num_rl_tasks}; preferences are sampled on the rl split: raise the split or lower the number"
        )
    if isinstance(algorithm, OnlineParams) and algorithm.tasks_per_step > world.num_rl_tasks:
        yield (
            f"train_policy.algorithm.tasks_per_step is {algorithm.tasks_per_step} but world.num_rl_tasks only "
            f"{world.num_rl_tasks}; one step would play a task as two groups: raise the split or lower the number"
        )
    if isinstance(algorithm, OnlineParams):
        most = _most_to_earn(params)
        for key, best in algorithm.virtual_bests.items():
            if best < most:
                yield (
                    f"train_policy.algorithm.credit.{key}.best is {best:g} and an episode can earn {most:g}: what is "
                    f"better than the best would be pushed down; raise it to {most:g}"
                )
    if params.validate_data.max_tokens > params.agent.max_context_tokens:
        yield (
            f"validate_data.max_tokens is {params.validate_data.max_tokens} and agent.max_context_tokens "
            f"{params.agent.max_context_tokens}: demonstrations would be validated that no episode could hold, and "
            "that the quality filter drops; lower the first or raise the second"
        )
    num_held_out = round(params.train_reward_model.holdout_frac * preferences.num_tasks)
    if not 0 < num_held_out < preferences.num_tasks:
        yield (
            f"train_reward_model.holdout_frac is {params.train_reward_model.holdout_frac:g} and "
            f"sample_preferences.num_tasks {preferences.num_tasks}: {num_held_out} tasks would be held out and "
            f"{preferences.num_tasks - num_held_out} trained on, and both are needed; change either"
        )
    if params.agent.max_new_tokens < (needed := getattr(world, "num_answer_tokens", 1)):
        yield (
            f"agent.max_new_tokens is {params.agent.max_new_tokens}, and the world {world.type} asks for messages of "
            f"{needed} tokens, which would be cut off: raise it to {needed}"
        )


def _most_to_earn(params: Params) -> float:
    """By rules and by a reward model, of scores that are all 1."""
    own = sum(params.reward.weights.values()) + sum(max(extra.weight, 0.0) for extra in params.reward.extra)
    return round(own + params.train_policy.reward_model_weight, 9)


def _refuse_no_checkpoint(every_steps: int, max_steps: int, knob: str) -> None:
    if every_steps > max_steps:
        raise ValueError(
            f"checkpoint_every_steps is {every_steps} and {knob} {max_steps}: a killed run would begin anew, for want "
            f"of any checkpoint; lower it to {knob} or less"
        )
