"""The one reader of `params.yaml`: every knob, its range, and the rules between knobs.

No knob has a default here: a default is a hyper-parameter that DVC cannot see. Unknown keys are
refused. `load_params` raises `ParamsError` with one line per problem (key, value, what is
accepted); `stages/check_params.py` runs it on the whole file before any other stage, and looks up
the names in it that lead to code or files. One file, however long: it is `params.yaml` with its
types, read from top to bottom beside it.

A section that is one of a choice has an `example`, the knobs besides its type as they might stand
in the file: shown to who changed the type, and never read in place of a knob.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from posttrain.exits import ConfigurationError
from posttrain.knob_problems import explain, nearest
from posttrain.plain_yaml import read_plain

_SLIP = "a number as large as that is taken for a slip of the hand"
Frac = Annotated[float, Field(ge=0, le=1)]
PositiveFrac = Annotated[float, Field(gt=0, le=1)]
# of steps, tasks, tokens, characters
Count = Annotated[int, Field(ge=1, le=10_000_000, description=_SLIP)]
# of what one step, one model or one task has
SmallCount = Annotated[int, Field(ge=1, le=100_000, description=_SLIP)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1, description="a generator takes seeds of 32 bits")]
Rate = Annotated[float, Field(gt=0, lt=1)]  # a learning rate
Below = Annotated[float, Field(gt=0, lt=1)]  # a share of what it was at first that is taken for a collapse
Above = Annotated[float, Field(gt=1)]  # so many times what it was at first
Temperature = Annotated[float, Field(gt=0, le=5)]
LEVEL_3_TOKENS = (
    112  # of the longest answer that the stock market's third level asks for, by the small model's tokenizer
)
WORLDS = ("stocks", "toy")  # of posttrain/worlds/domains.py
EXTRA_SCORES = ("accuracy", "length_penalty", "step")  # of posttrain/rewards/total.py
# of each layer of a Qwen3, a model from scratch above all, and of its likes; a test builds them and
# compares
LINEAR_LAYERS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


class ParamsError(ConfigurationError):
    """`params.yaml` is wrong: exit code 78."""


class Section(BaseModel):
    """One section of `params.yaml`: immutable, no unknown keys, no silent conversion of a string to
    a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class WorldParams(Section):
    """A world of the library, or a user's own: `module:function`, which makes a Domain of this
    section."""

    type: str
    seed: Seed
    max_difficulty: Annotated[int, Field(ge=1, le=3)]
    num_sft_tasks: Count
    num_rl_tasks: Count
    num_dev_tasks: Count
    num_test_tasks: Count

    @field_validator("type")
    @classmethod
    def _is_a_world(cls, name: str) -> str:
        return _known_or_own(name, WORLDS, "world")


class AgentParams(Section):
    max_turns: SmallCount
    max_new_tokens: Count
    max_context_tokens: Count
    max_seconds: Annotated[float, Field(gt=0)]
    tool_timeout_s: Annotated[float, Field(gt=0)]
    tool_retries: Annotated[int, Field(ge=0, le=1000, description=_SLIP)]
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


class LoraAdapter(Section):
    """Low-rank adapters (arXiv 2106.09685): W + (alpha / r) B A on the named linear layers."""

    example: ClassVar[str] = "{r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}"
    type: Literal["lora"]
    r: SmallCount
    alpha: SmallCount
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]


Adapter = Annotated[FullAdapter | LoraAdapter, Field(discriminator="type")]


class ScratchModel(Section):
    """A Qwen3-architecture decoder with random weights and a byte-level BPE tokenizer of its
    own."""

    example: ClassVar[str] = (
        "{hidden_size: 96, num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 64, mlp_size: 256, "
        "vocab_size: 900, adapter: {type: full}, gradient_checkpointing: false, dtype: float32}"
    )
    type: Literal["scratch"]
    hidden_size: SmallCount
    num_layers: Annotated[int, Field(ge=1, le=1000, description=_SLIP)]
    num_heads: Annotated[int, Field(ge=1, le=1000, description=_SLIP)]
    num_kv_heads: Annotated[int, Field(ge=1, le=1000, description=_SLIP)]
    head_dim: Annotated[int, Field(ge=2, le=1000, multiple_of=2, description=_SLIP)]
    mlp_size: SmallCount
    vocab_size: Annotated[int, Field(ge=400, le=10_000_000, description=_SLIP)]
    adapter: Adapter
    gradient_checkpointing: bool
    dtype: Literal["float32", "bfloat16"]

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
    """Any causal LM in Hugging Face format: a hub name or a folder."""

    example: ClassVar[str] = (
        "{name: Qwen/Qwen2.5-7B-Instruct, "
        "adapter: {type: lora, r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}, "
        "gradient_checkpointing: true, dtype: bfloat16}"
    )
    type: Literal["pretrained"]
    name: str
    revision: str | None = None
    adapter: Adapter
    gradient_checkpointing: bool
    dtype: Literal["float32", "bfloat16"]


class RewardWeights(Section):
    completion: Frac
    tool_accuracy: Frac
    efficiency: Frac
    timing: Frac
    format: Frac

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = sum(self.model_dump().values())
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the weights sum to {total:g}, not 1; a perfect episode would not earn 1")
        return self


class RewardPenalties(Section):
    wrong_tool: Annotated[float, Field(le=0)]
    redundant_call: Annotated[float, Field(le=0)]
    format_error: Annotated[float, Field(le=0)]
    timeout: Annotated[float, Field(le=0)]


class ExtraScore(Section):
    """One more score by name (`accuracy`, `length_penalty`, `step`) or a user's function as
    `module:function`; weight of either sign."""

    name: str
    weight: float

    @field_validator("name")
    @classmethod
    def _is_a_score(cls, name: str) -> str:
        own = {*RewardWeights.model_fields, *RewardPenalties.model_fields}
        if name in own:
            raise ValueError("the reward already has this score, and a score counts once: change its weight instead")
        return _known_or_own(name, EXTRA_SCORES, "score")


class RewardParams(Section):
    weights: RewardWeights
    penalties: RewardPenalties
    extra: list[ExtraScore]

    @model_validator(mode="after")
    def _each_score_once(self) -> Self:
        names = [extra.name for extra in self.extra]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"extra has {', '.join(twice)} twice, and a score counts once: add up the weights")
        return self


class ScriptedSource(Section):
    type: Literal["scripted"]


class ImportSource(Section):
    """Trajectories that a team already has. `path` is relative to the repository and lies under a
    dep of the stage, such as `data/imported`."""

    example: ClassVar[str] = "{format: openai, path: data/imported/ours.jsonl}"
    type: Literal["import"]
    format: Literal["openai", "tau_bench"]
    path: str


class OpenAiSource(Section):
    """Episodes that a model behind an OpenAI-compatible endpoint plays; endpoint and key are the
    environment's."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, temperature: 0.7, max_new_tokens: 512}"
    type: Literal["openai"]
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_new_tokens: Count


class FlawRates(Section):
    wrong_market: Frac
    give_up: Frac
    indicator_mixup: Frac
    redundant_call: Frac
    malformed_json: Frac
    market_flip: Frac
    repeated_ask: Frac


class GenerateDataParams(Section):
    source: Annotated[ScriptedSource | ImportSource | OpenAiSource, Field(discriminator="type")]
    flaw_rates: FlawRates
    reasoning_frac: Frac


class ValidateDataParams(Section):
    max_quarantine_frac: Frac
    max_tokens: Count


class PrepareModelParams(Section):
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000, description=_SLIP)]
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
    quality_filter: bool
    success_filter: bool
    coreset: CoresetParams
    oversample: OversampleParams


class KindWeights(Section):
    tool_selection: Frac
    multi_step_planning: Frac
    timing_decision: Frac
    tool_retrieval: Frac

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = sum(self.model_dump().values())
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the kind weights sum to {total:g}, not 1; they are shares of the training rows")
        return self


class TrainSftParams(Section):
    max_steps: Count
    batch_size: SmallCount
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    optimizer: Literal["muon", "adamw"]
    kind_weights: KindWeights
    eval_every_steps: Count  # a checkpoint each time: the best evaluation needs one to return to
    early_stopping_patience: Count

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
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=_SLIP)]
    temperature: Temperature


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


class GrpoParams(Section):
    """Group-relative policy optimisation (arXiv 2402.03300); `group_mean` leaves out the division
    by the std (Dr.GRPO, arXiv 2503.20783)."""

    example: ClassVar[str] = (
        "{max_steps: 88, tasks_per_step: 16, group_size: 8, temperature: 1.0, beta: 0.0, epsilon: 0.2, "
        "advantage: group_std, importance_cap: 2.0, max_staleness: 0}"
    )
    type: Literal["grpo"]
    max_steps: Count
    tasks_per_step: SmallCount
    group_size: Annotated[int, Field(ge=2, le=100_000, description=_SLIP)]
    temperature: Temperature
    beta: Annotated[float, Field(ge=0)]
    epsilon: Annotated[float, Field(gt=0, lt=1)]
    advantage: Literal["group_std", "group_mean"]
    importance_cap: Annotated[float, Field(ge=1)]
    max_staleness: Literal[0, 1]


class DpoParams(Section):
    """Direct preference optimisation (arXiv 2305.18290) on the sampled pairs. The example is the
    one that README has figures of."""

    example: ClassVar[str] = "{max_steps: 80, batch_size: 32, beta: 0.5}"
    type: Literal["dpo"]
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
    algorithm: Annotated[GrpoParams | DpoParams, Field(discriminator="type")]
    lr: Rate
    optimizer: Literal["muon", "adamw"]
    reward_model_weight: Annotated[float, Field(ge=0)]
    checkpoint_every_steps: Count
    on_alarm: Literal["warn", "stop"]
    alarms: AlarmParams

    @model_validator(mode="after")
    def _agrees_with_the_algorithm(self) -> Self:
        _refuse_no_checkpoint(self.checkpoint_every_steps, self.algorithm.max_steps, "algorithm.max_steps")
        if isinstance(self.algorithm, DpoParams) and self.reward_model_weight:
            raise ValueError(
                f"reward_model_weight is {self.reward_model_weight:g} and algorithm.type dpo, which learns from pairs "
                "and earns no reward, so the weight would change nothing; set it to 0.0"
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
    teacher: Annotated[ExpertTeacher | OpenAiTeacher, Field(discriminator="type")]
    num_samples: Annotated[int, Field(ge=4, le=100_000, description=_SLIP)]  # for pass^4


class ReportParams(Section):
    num_failures_shown: Annotated[int, Field(ge=0, le=100_000, description=_SLIP)]


class Params(Section):
    """The whole of `params.yaml`. A stage uses only the sections that it lists under `params:` in
    `dvc.yaml`; a test compares the two."""

    seed: Seed
    world: WorldParams
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
    lines = "\n".join(f"  - {line}" for line in problems)
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
        return read_plain(text if isinstance(text, str) else text.decode())
    except (yaml.YAMLError, ValueError) as error:
        raise ParamsError(f"{source} is not valid YAML: {error}") from error


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
    if isinstance(algorithm, GrpoParams) and algorithm.tasks_per_step > world.num_rl_tasks:
        yield (
            f"train_policy.algorithm.tasks_per_step is {algorithm.tasks_per_step} but world.num_rl_tasks only "
            f"{world.num_rl_tasks}; one step would play a task as two groups: raise the split or lower the number"
        )
    num_held_out = round(params.train_reward_model.holdout_frac * preferences.num_tasks)
    if not 0 < num_held_out < preferences.num_tasks:
        yield (
            f"train_reward_model.holdout_frac is {params.train_reward_model.holdout_frac:g} and "
            f"sample_preferences.num_tasks {preferences.num_tasks}: {num_held_out} tasks would be held out and "
            f"{preferences.num_tasks - num_held_out} trained on, and both are needed; change either"
        )
    if world.type == "stocks" and world.max_difficulty == 3 and params.agent.max_new_tokens < LEVEL_3_TOKENS:
        yield (
            f"world.max_difficulty is 3 and agent.max_new_tokens {params.agent.max_new_tokens}; an answer that "
            f"compares five shares takes {LEVEL_3_TOKENS} tokens and would be cut off: raise agent.max_new_tokens to "
            f"{LEVEL_3_TOKENS}"
        )


def _known_or_own(name: str, known: Sequence[str], what: str) -> str:
    """The name, which is the library's or leads to code of one's own; whether that is there is not
    looked at. Raises ValueError where it is neither."""
    module, colon, function = name.partition(":")
    if name in known or (colon and all(part.isidentifier() for part in (*module.split("."), function))):
        return name
    meant = "" if colon else nearest(name, known)
    raise ValueError(f"no such {what}; there are {', '.join(known)}, and your own is written module:function.{meant}")


def _refuse_no_checkpoint(every_steps: int, max_steps: int, knob: str) -> None:
    if every_steps > max_steps:
        raise ValueError(
            f"checkpoint_every_steps is {every_steps} and {knob} {max_steps}: a killed run would begin anew, for want "
            f"of any checkpoint; lower it to {knob} or less"
        )
