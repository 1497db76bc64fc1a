"""The one reader of `params.yaml`: every knob, its range, and the rules between knobs.

No knob has a default here: a default is a hyper-parameter that DVC cannot see. Unknown keys are refused. `load_params` raises `ParamsError` with one
line per problem (key, value, what is accepted); `stages/check_params.py` runs it on the whole file before any other stage. One file, however long:
it is `params.yaml` with its types, read from top to bottom beside it.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from posttrain.exits import ConfigurationError

Frac = Annotated[float, Field(ge=0, le=1)]
PositiveFrac = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, lt=1)]  # a learning rate
Temperature = Annotated[float, Field(gt=0, le=5)]
LEVEL_3_TOKENS = 112  # of the longest answer that the stock market's third level asks for, by the small model's tokenizer


class ParamsError(ConfigurationError):
    """`params.yaml` is wrong: exit code 78."""


class Section(BaseModel):
    """One section of `params.yaml`: immutable, no unknown keys, no silent conversion of a string to a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class WorldParams(Section):
    """A world of the library, or a user's own: `module:function`, which makes a Domain of this section."""

    type: str
    seed: int
    max_difficulty: Annotated[int, Field(ge=1, le=3)]
    num_sft_tasks: Count
    num_rl_tasks: Count
    num_dev_tasks: Count
    num_test_tasks: Count

    @field_validator("type")
    @classmethod
    def _is_a_world(cls, name: str) -> str:
        if name not in ("stocks", "toy") and ":" not in name:
            raise ValueError("no such world; there are stocks and toy, and one of your own is written module:function")
        return name


class AgentParams(Section):
    max_turns: Count
    max_new_tokens: Count
    max_context_tokens: Count
    max_seconds: Annotated[float, Field(gt=0)]
    tool_timeout_s: Annotated[float, Field(gt=0)]
    tool_retries: Annotated[int, Field(ge=0)]
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

    type: Literal["lora"]
    r: Count
    alpha: Count
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: list[str]


Adapter = Annotated[FullAdapter | LoraAdapter, Field(discriminator="type")]


class ScratchModel(Section):
    """A Qwen3-architecture decoder with random weights and a byte-level BPE tokenizer of its own."""

    type: Literal["scratch"]
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    mlp_size: Count
    vocab_size: Annotated[int, Field(ge=400)]
    adapter: Adapter
    gradient_checkpointing: bool
    dtype: Literal["float32", "bfloat16"]

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}; each KV head serves whole query heads"
            )
        return self


class PretrainedModel(Section):
    """Any causal LM in Hugging Face format: a hub name or a folder."""

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
    """One more score by name (`accuracy`, `length_penalty`, `step`) or a user's function as `module:function`; weight of either sign."""

    name: str
    weight: float


class RewardParams(Section):
    weights: RewardWeights
    penalties: RewardPenalties
    extra: list[ExtraScore]


class ScriptedSource(Section):
    type: Literal["scripted"]


class ImportSource(Section):
    """Trajectories that a team already has. `path` is relative to the repository and lies under a dep of the stage, such as `data/imported`."""

    type: Literal["import"]
    format: Literal["openai", "tau_bench"]
    path: str


class OpenAiSource(Section):
    """Episodes that a model behind an OpenAI-compatible endpoint plays; endpoint and key are the environment's."""

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
    warmup_steps: Annotated[int, Field(ge=0)]
    warmup_batch_size: Count
    lr: Rate


class CoresetParams(Section):
    strategy: Literal["loss_topk", "diversity", "hybrid", "random"]
    keep_frac: PositiveFrac


class OversampleParams(Section):
    type: Literal["smote", "duplicate", "none"]
    target_frac: PositiveFrac
    num_neighbors: Count
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
    batch_size: Count
    lr: Rate
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)]
    optimizer: Literal["muon", "adamw"]
    kind_weights: KindWeights
    eval_every_steps: Count  # a checkpoint each time: the best evaluation needs one to return to
    early_stopping_patience: Count


class SamplePreferencesParams(Section):
    num_tasks: Count
    num_samples: Annotated[int, Field(ge=2)]
    temperature: Temperature


class TrainRewardModelParams(Section):
    max_steps: Count
    batch_size: Count
    lr: Rate
    holdout_frac: Annotated[float, Field(gt=0, lt=1)]
    checkpoint_every_steps: Count


class GrpoParams(Section):
    """Group-relative policy optimisation (arXiv 2402.03300); `group_mean` leaves out the division by the std (Dr.GRPO, arXiv 2503.20783)."""

    type: Literal["grpo"]
    max_steps: Count
    tasks_per_step: Count
    group_size: Annotated[int, Field(ge=2)]
    temperature: Temperature
    beta: Annotated[float, Field(ge=0)]
    epsilon: Annotated[float, Field(gt=0, lt=1)]
    advantage: Literal["group_std", "group_mean"]
    importance_cap: Annotated[float, Field(ge=1)]
    max_staleness: Literal[0, 1]


class DpoParams(Section):
    """Direct preference optimisation (arXiv 2305.18290) on the sampled pairs."""

    type: Literal["dpo"]
    max_steps: Count
    batch_size: Count
    beta: Annotated[float, Field(gt=0)]


class TrainPolicyParams(Section):
    algorithm: Annotated[GrpoParams | DpoParams, Field(discriminator="type")]
    lr: Rate
    optimizer: Literal["muon", "adamw"]
    reward_model_weight: Annotated[float, Field(ge=0)]
    checkpoint_every_steps: Count


class ExpertTeacher(Section):
    type: Literal["expert"]


class OpenAiTeacher(Section):
    """A model behind an OpenAI-compatible endpoint; endpoint and key are the environment's."""

    type: Literal["openai"]
    model: str
    max_new_tokens: Count


class EvaluateParams(Section):
    teacher: Annotated[ExpertTeacher | OpenAiTeacher, Field(discriminator="type")]
    num_samples: Annotated[int, Field(ge=4)]
    ci_level: Annotated[float, Field(gt=0.5, lt=1)]
    num_bootstrap: Annotated[int, Field(ge=100)]


class ReportParams(Section):
    num_failures_shown: Annotated[int, Field(ge=0)]


class Params(Section):
    """The whole of `params.yaml`. A stage uses only the sections that it lists under `params:` in `dvc.yaml`; a test compares the two."""

    seed: int
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

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.sample_preferences.num_tasks > self.world.num_rl_tasks:
            raise ValueError(
                f"sample_preferences.num_tasks is {self.sample_preferences.num_tasks} but world.num_rl_tasks only {self.world.num_rl_tasks}; "
                "preferences are sampled on the rl split: raise the split or lower the number"
            )
        if self.world.type == "stocks" and self.world.max_difficulty == 3 and self.agent.max_new_tokens < LEVEL_3_TOKENS:
            raise ValueError(
                f"world.max_difficulty is 3 and agent.max_new_tokens {self.agent.max_new_tokens}; an answer that compares five shares takes "
                f"{LEVEL_3_TOKENS} tokens and would be cut off: raise agent.max_new_tokens to {LEVEL_3_TOKENS}"
            )
        return self


def load_params(path: Path = Path("params.yaml")) -> Params:
    """Read and check the whole file. Raises ParamsError naming every bad key at once, with its value and what is accepted."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError as error:
        raise ParamsError(f"{path} is not here; run from the root of the repository") from error
    except yaml.YAMLError as error:
        raise ParamsError(f"{path} is not valid YAML: {error}") from error
    return parse_params(content, source=str(path))


def parse_params(content: Any, *, source: str) -> Params:
    """As `load_params`, for content already read; `source` is named in the message."""
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        lines = [_explain(problem) for problem in error.errors()]
        raise ParamsError(f"{source} has {len(lines)} problem(s), nothing was run:\n" + "\n".join(f"  - {line}" for line in lines)) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word: the knob that a person edited may be the other one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.value[index][0].start_mark)
        return super().construct_mapping(node, deep=deep)


def _explain(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "(whole file)"
    match problem["type"]:
        case "extra_forbidden":
            return (
                f"{key}: unknown key; no stage reads it, so it would change nothing.{_did_you_mean(problem['loc'])} Check the spelling or remove it"
            )
        case "missing":
            return f"{key}: missing; every knob is written out, there are no defaults"
        case "float_type" if isinstance(problem["input"], str):
            return f"{key} = {problem['input']!r}: a string, not a number; YAML reads 1e-5 as text, write 1.0e-5"
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{key}: {reason}" if isinstance(problem["input"], dict) else f"{key} = {problem['input']!r}: {reason}"


def _did_you_mean(location: tuple[str | int, ...]) -> str:
    """The known key of the same section that is spelt most alike, for the top level and sections that are not a choice."""
    model: Any = Params
    for part in location[:-1]:
        annotation = model.model_fields[part].annotation if isinstance(part, str) and part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, Section)):
            return ""
        model = annotation
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
