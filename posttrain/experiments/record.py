"""What is kept of a run: who won which task, how its training went, and what tells whether it would
come out the same today.

`reports/ablation/<regime>.json`, committed: a line of digits for each run, so that a verdict can be
made again of any of them without a model.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from posttrain.config.params import read_knobs
from posttrain.data.files import write_json
from posttrain.experiments.arms import Arm, Study, arms_of_seed
from posttrain.pipeline.git import git
from posttrain.provenance.fingerprint import PARAMS_FILE, read_all_inputs
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import read_records
from posttrain.report.knobs import Knobs, flat_knobs, parse_knobs
from posttrain.report.outcomes import packed, read_outcomes, read_samples
from posttrain.report.sources import Source
from posttrain.report.table import percent
from posttrain.runtime.exits import DataError
from posttrain.tracking.metrics_log import MetricValue, read_metrics

NUM_LAST = 20  # steps
SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD = (
    "frac_tokens_nonzero_advantage",
    "frac_trained_tokens_nonzero_advantage",
    "frac_reward_zero_std_all_bad",
    "frac_reward_zero_std_all_good",
)
AVERAGED = (SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD, "kl", "entropy")
_DIGITS = 16
_MODEL, _TRAINING, _REPORT = "data/models/sft", "train_policy", "report"


class Training(Source):
    """`means` over all steps and `last` over the last `NUM_LAST`, of each of AVERAGED that its
    metrics have; `dev_first` and `dev_last` what was measured on dev tasks, by its name, empty
    where nothing was. `seconds` is None where no record of it came along."""

    steps: int
    generated_tokens: int
    rollouts: int
    groups: int
    means: dict[str, float]
    last: dict[str, float]
    dev_first: dict[str, float]
    dev_last: dict[str, float]
    seconds: float | None


class Measure(Enum):
    """What a run is judged by: strict success and success of the greedy plays, success of the
    sampled ones."""

    STRICT = "strict success"
    PLAIN = "success"
    SAMPLED = "sampled"


class ArmRecord(Source):
    """A run. `params` and `code` are digests of the knobs that it had and of all code that led to
    its figures; `sft` is the MD5 of the model that it began from, `commit` the last commit of its
    tree. `won` and `strict_won`, of greedy plays, have a digit for each held-out task of `tasks`,
    `sampled_won` the share of its sampled plays that succeeded, with blanks between."""

    method: str
    seed: int
    params: str
    code: str
    sft: str
    commit: str
    tasks: str
    won: str
    strict_won: str
    sampled_won: str
    training: Training

    def told(self) -> str:
        """In a line."""
        strict, plain, sampled = (percent(fmean(self.outcomes(measure).values())) for measure in Measure)
        return (
            f"strict success {strict}, success {plain}, of sampled plays {sampled}, after {self.training.steps} steps "
            f"and {self.training.generated_tokens:,} tokens"
        )

    def outcomes(self, measure: Measure) -> dict[str, float]:
        """By task."""
        match measure:
            case Measure.STRICT:
                won: Sequence[str] = self.strict_won
            case Measure.PLAIN:
                won = self.won
            case Measure.SAMPLED:
                won = self.sampled_won.split()
        return {f"{self.tasks}-{place}": float(share) for place, share in enumerate(won)}


def record_file(root: Path, regime: str) -> Path:
    """Its table stands beside it, as `.md`."""
    return root / "reports" / "ablation" / f"{regime}.json"


def read_arm(tree: Path, arm: Arm) -> ArmRecord:
    """Of a tree in which the policy was trained and evaluated. Raises DataError where its files do
    not say so."""
    try:
        knobs = parse_knobs((tree / "params.yaml").read_bytes())
        strict, plain = (packed(read_outcomes(tree, "policy", is_strict=is_strict)) for is_strict in (True, False))
        sampled = read_samples(tree, "policy")
    except (OSError, ValueError) as error:
        raise DataError(f"{arm.variant.name}: what came out of it cannot be read: {error}") from error
    if not plain["won"] or not strict["tasks"] == plain["tasks"] == packed(sampled)["tasks"]:
        raise DataError(
            f"{arm.variant.name}: {tree}/reports/evaluate has no held-out task, or not of every one both kinds of "
            "success and a sampled play"
        )
    entries, costs = lock_entries(tree), read_records(tree)
    sft = {out["path"]: out["md5"] for out in entries.get("train_sft", {}).get("outs", ())}.get(_MODEL)
    if sft is None:
        raise DataError(f"{arm.variant.name}: dvc.lock does not say which SFT model it began from")
    metrics = read_metrics(tree / "reports" / _TRAINING / "metrics.jsonl")
    group_size = int(knobs[f"{_TRAINING}.algorithm.group_size"])
    seconds = costs[_TRAINING].all_s if _TRAINING in costs else None
    return ArmRecord(
        method=arm.method,
        seed=arm.seed,
        params=params_digest(knobs),
        code=code_digest(tree),
        sft=sft,
        commit=git(tree, "rev-parse", "--short", "HEAD"),
        **plain,
        strict_won=strict["won"],
        sampled_won=" ".join(f"{sampled[name]:.4g}" for name in sorted(sampled)),
        training=training_of(metrics, group_size=group_size, seconds=seconds),
    )


def training_of(
    metrics: Sequence[Mapping[str, MetricValue]], *, group_size: int, seconds: float | None = None
) -> Training:
    """Of the lines of its `metrics.jsonl`.

    Two steps of 2 and 3 groups of 4, with 10 and 20 tokens an episode, of the latter a quarter
    lost: 20 rollouts, and 2 x 4 x 10 + 3 x 4 x 3/4 x 20 = 260 tokens. Raises DataError where there
    is no such step."""
    steps = [line for line in metrics if "groups_played" in line]  # others are of dev tasks
    if not steps:
        raise DataError("its metrics.jsonl has no step in which groups were played: it learnt nothing online")
    groups = [int(_number(line, "groups_played") or 0) for line in steps]
    kept = [1 - (_number(line, "lost") or 0.0) for line in steps]
    lengths = [_number(line, "length") or 0.0 for line in steps]
    dev = {key: _values(metrics, key) for key in sorted({key for line in metrics for key in line}) if _is_dev(key)}
    found = {name: values for name in AVERAGED if (values := _values(metrics, name))}
    return Training(
        steps=len(steps),
        generated_tokens=round(
            sum(num * group_size * share * length for num, share, length in zip(groups, kept, lengths, strict=True))
        ),
        rollouts=sum(groups) * group_size,
        groups=sum(groups),
        means={name: round(fmean(values), 6) for name, values in found.items()},
        last={name: round(fmean(values[-NUM_LAST:]), 6) for name, values in found.items()},
        dev_first={key: values[0] for key, values in dev.items() if values},
        dev_last={key: values[-1] for key, values in dev.items() if values},
        seconds=round(seconds, 1) if seconds is not None else None,
    )


def wanted_params(arm: Arm, params: str) -> str:
    """The digest that a run of the arm would have. `params` is the text of `params.yaml`."""
    content = read_knobs(params, source="params.yaml")
    for key, value in arm.variant.knobs.items():
        *path, last = key.split(".")
        section = content
        for part in path:
            section = section[part]
        section[last] = value
    return params_digest(flat_knobs(content))


def params_digest(knobs: Knobs) -> str:
    """Of all knobs but those that only the report reads."""
    kept = {name: value for name, value in knobs.items() if not name.startswith(f"{_REPORT}.")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def code_digest(root: Path) -> str:
    """Of all files of the last commit that a stage before the report declares as its deps, without
    the knobs, which a branch has its own of."""
    stages = read_all_inputs(root / "dvc.yaml")
    deps = {dep for name, stage in stages.items() if name != _REPORT for dep in stage.deps if "$" not in dep}
    listed = git(root, "ls-tree", "-r", "HEAD", "--", *sorted(deps - {PARAMS_FILE}))
    return hashlib.sha256(listed.encode()).hexdigest()[:_DIGITS]


def read_arms(file: Path) -> dict[str, ArmRecord]:
    """By name; none where there is no file yet. Raises DataError where it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return {name: ArmRecord.model_validate(arm) for name, arm in content["arms"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise DataError(
            f"{file} holds no runs of an ablation ({error}): take it from git, or delete it to begin anew"
        ) from error


def write_arms(file: Path, arms: Mapping[str, ArmRecord]) -> None:
    write_json(file, {"arms": {name: arm.model_dump() for name, arm in arms.items()}})


def missing(arms: Iterable[Arm], known: Mapping[str, ArmRecord], *, params: str, code: str) -> list[Arm]:
    """Those that are not on record with the knobs and the code that they would have now."""
    return [
        arm
        for arm in arms
        if (found := known.get(arm.variant.name)) is None
        or (found.params, found.code) != (wanted_params(arm, params), code)
    ]


def with_these_knobs(study: Study, regime: str, known: Mapping[str, ArmRecord], *, params: str) -> dict[str, ArmRecord]:
    """Those that had the knobs that their method has today: the lines of a method may have been
    edited since, or the regime's. A method that is none any more has none."""
    kept = {}
    for name, one in known.items():
        if one.method in study.methods:
            [arm] = arms_of_seed(study, regime, [one.method], one.seed)
            if one.params == wanted_params(arm, params):
                kept[name] = one
    return kept


def _number(line: Mapping[str, Any], key: str) -> float | None:
    value = line.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _values(metrics: Sequence[Mapping[str, MetricValue]], key: str) -> list[float]:
    """Of the steps that have it."""
    return [value for line in metrics if (value := _number(line, key)) is not None]


def _is_dev(key: str) -> bool:
    return key.startswith("dev_")
