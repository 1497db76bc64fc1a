"""Knobs of the sections `generate_data`, `validate_data` and `resample_data`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from posttrain.runtime.knobs import Count, Frac, PositiveFrac, Section, SmallCount

# names in posttrain/data/importing/importer.py; a test compares
_Logs = Literal["otel", "atif", "swe_agent", "openhands"]
_Chats = Literal["xlam", "agentgym", "sharegpt", "openai", "trl", "alpaca", "bfcl"]
ImportFormat = Literal["tau_bench", "tau2", _Chats, "react", _Logs]


class ScriptedSource(Section):
    type: Literal["scripted"]


class ImportSource(Section):
    """A file of trajectories. `path` is relative to the repository, under a dep of the stage such
    as `data/imported`; without `format` it is detected. Calls of `stop_tools` end an episode.
    `dev_frac` of the tasks become the dev split, on which the checkpoint is chosen; with 0 the
    world's expert must play dev tasks."""

    example: ClassVar[str] = "{path: data/imported/ours.jsonl, stop_tools: [], dev_frac: 0.1}"
    type: Literal["import"]
    format: ImportFormat | None = None
    path: str
    stop_tools: list[str]
    dev_frac: Annotated[float, Field(ge=0, lt=1)]


class OpenAiSource(Section):
    """Episodes played by a model behind an OpenAI-compatible endpoint; endpoint and key come from
    the environment."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, temperature: 0.7, max_new_tokens: 512}"
    type: Literal["openai"]
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)]
    max_new_tokens: Count


class ParaphraseParams(Section):
    """`frac` of the demonstrations are about questions in other words, by a model behind an
    OpenAI-compatible endpoint; endpoint and key come from the environment."""

    example: ClassVar[str] = "{model: Qwen/Qwen2.5-7B-Instruct, frac: 0.5, temperature: 1.0}"
    model: str
    frac: PositiveFrac
    temperature: Annotated[float, Field(ge=0, le=2)]


class GenerateDataParams(Section):
    source: Annotated[ScriptedSource | ImportSource | OpenAiSource, Field(discriminator="type")]
    reasoning_frac: Frac
    paraphrase: ParaphraseParams | None = None


class DriftParams(Section):
    """Limits of `posttrain drift`. `max_rows` and `max_length` are relative changes of the number
    and of the lengths of demonstrations, `max_share` is the share of rows with another value of a
    label, or of calls of another tool."""

    max_rows: PositiveFrac = 0.2
    max_length: PositiveFrac = 0.2
    max_share: PositiveFrac = 0.1


class ValidateDataParams(Section):
    max_quarantine_frac: Frac
    max_tokens: Count
    drift: DriftParams = DriftParams()


class KeepParams(Section):
    """Further demands on a demonstration; null makes none. `min_reward` and `min_percentile` (of
    all rewards, 0 to 100) are of its reward, and pass one without; `max_steps` is of the agent's
    messages; `function` is `module:function`, which takes the TrajectoryRow and tells."""

    min_reward: float | None = None
    min_percentile: Annotated[float, Field(ge=0, le=100)] | None = None
    max_steps: Count | None = None
    function: str | None = None


class CoresetParams(Section):
    """`rank_by`: the number that `loss_topk` and `hybrid` prefer when it is high: the loss of the
    base model, a demonstration's tokens, the share of distinct tokens among the agent's, or a label
    of the demonstration that is a number, by its name (a loss of your own)."""

    strategy: Literal["loss_topk", "diversity", "hybrid", "random"]
    keep_frac: PositiveFrac
    rank_by: str = "loss"


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
    keep: KeepParams = KeepParams()
    coreset: CoresetParams
    oversample: OversampleParams
