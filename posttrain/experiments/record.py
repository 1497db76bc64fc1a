"""Records of experiments: reads what an arm came to from its tree, and keeps it in
`reports/experiments/NAME.json`."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from posttrain.data.files import write_json
from posttrain.experiments.plan import Plan, Variant, variant_of, with_knobs
from posttrain.pipeline.git import git
from posttrain.provenance.fingerprint import PARAMS_FILE, read_all_inputs
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import read_records
from posttrain.report.arms import DIGEST_CHARS, Arm, Arms, PolicyResult, Training, packed, setting_digest
from posttrain.report.knobs import parse_knobs
from posttrain.report.run_reader import Measure, held_out_outcomes, parse_results, read_object
from posttrain.runtime.exits import DataError
from posttrain.runtime.knob_errors import why_unread
from posttrain.tracking.metrics_log import MetricValue, read_metrics
from posttrain.train.policy_inputs import EARLIER_RUN

RECORDS = Path("reports/experiments")
NUM_LAST = 20  # steps
SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD = (
    "frac_tokens_nonzero_advantage",
    "frac_trained_tokens_nonzero_advantage",
    "frac_reward_zero_std_all_bad",
    "frac_reward_zero_std_all_good",
)
AVERAGED = (SIGNAL, TRAINED_SIGNAL, ALL_BAD, ALL_GOOD, "kl", "entropy")
POLICIES = ("teacher", "base", "sft", "policy")
_MODEL, _TRAINING, _REPORT = "data/models/sft", "train_policy", "report"
_ALGORITHMS = (f"{_TRAINING}.begin_with", f"{_TRAINING}.algorithm")


def record_file(root: Path, plan: Plan) -> Path:
    """Its table stands beside it, as `.md`."""
    return root / RECORDS / f"{plan.name}.json"


def read_arm(tree: Path, plan: Plan, variant: Variant) -> Arm:
    """Reads an arm from its tree, with each policy that the plan's targets evaluate.

    Raises DataError where its files do not say so.
    """
    entries, costs = lock_entries(tree), read_records(tree)
    evaluated = [name for name in POLICIES if not plan.targets or f"evaluate@{name}" in plan.targets]
    try:
        knobs = parse_knobs((tree / "params.yaml").read_bytes())
        policies = {name: _policy_result(tree / "reports" / "evaluate", name) for name in evaluated}
    except (OSError, ValueError) as error:
        raise DataError(f"{variant.name}: what came out of it cannot be read: {error}") from error
    sft = {out["path"]: out["md5"] for out in entries.get("train_sft", {}).get("outs", ())}.get(_MODEL)
    if sft is None:
        raise DataError(f"{variant.name}: dvc.lock does not say which SFT model it began from")
    training = None
    types = {knobs.get(f"{section}.type") for section in _ALGORITHMS}
    if "policy" in evaluated and types & {"online", "rejection_sampling"}:
        metrics = read_metrics(tree / "reports" / _TRAINING / "metrics.jsonl")
        seconds = costs[_TRAINING].all_s if _TRAINING in costs else None
        training = training_of(metrics, group_size=_group_size(knobs), seconds=seconds)
    return Arm(
        override=variant.override,
        seed=int(knobs["seed"]),
        overrides={key: value for key, value in variant.knobs.items() if key != "seed"},
        setting=setting_digest(knobs),
        code=code_digest(tree),
        sft=sft,
        commit=git(tree, "rev-parse", "--short", "HEAD"),
        policies=policies,
        training=training,
    )


def code_digest(root: Path) -> str:
    """Digest of all files of the last commit that a stage before the report declares as deps,
    without the knobs and what an earlier run left, which a branch has its own of."""
    stages = read_all_inputs(root / "dvc.yaml")
    deps = {dep for name, stage in stages.items() if name != _REPORT for dep in stage.deps if "$" not in dep}
    own = {dep for dep in deps if dep == PARAMS_FILE or Path(dep).is_relative_to(EARLIER_RUN)}
    listed = git(root, "ls-tree", "-r", "HEAD", "--", *sorted(deps - own))
    return hashlib.sha256(listed.encode()).hexdigest()[:DIGEST_CHARS]


def read_arms(file: Path) -> dict[str, Arm]:
    """Read the arms by name; none without a file. Raises DataError where it is damaged."""
    try:
        return Arms.model_validate_json(file.read_bytes()).arms
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise DataError(
            f"{file} holds no records of an experiment; take it from git, or delete it to begin anew: "
            f"{why_unread(error, Arms)}"
        ) from error


def write_arms(file: Path, arms: Mapping[str, Arm]) -> None:
    write_json(file, {"arms": {name: arm.model_dump(exclude_defaults=True) for name, arm in arms.items()}})


def of_today(plan: Plan, known: Mapping[str, Arm], *, params: str) -> dict[str, Arm]:
    """Records that have the knobs that their override has today; `params` is the text of
    `params.yaml`. An override that is none any more has none."""
    settings: dict[str, str] = {}
    for one in plan.overrides:
        text = with_knobs(params, variant_of(plan, one, 1))
        settings[one.name] = setting_digest(parse_knobs(text.encode()))
    return {name: arm for name, arm in known.items() if settings.get(arm.override) == arm.setting}


def _policy_result(folder: Path, policy: str) -> PolicyResult:
    results, _ = parse_results((folder / f"{policy}.tasks.jsonl").read_bytes())
    plain, strict, sampled = (
        held_out_outcomes(results, one) for one in (Measure.PLAIN, Measure.STRICT, Measure.SAMPLED)
    )
    if not plain or not plain.keys() == strict.keys() == sampled.keys():
        raise ValueError(
            f"{folder} has no held-out task of {policy}, or not of every one both kinds of success and a sample"
        )
    figures = read_object(folder / f"{policy}.json", PolicyResult)
    shares = " ".join(f"{sampled[name]:.4g}" for name in sorted(sampled))
    return figures.model_copy(update={**packed(plain), "strict_won": packed(strict)["won"], "sampled_won": shares})


def training_of(
    metrics: Sequence[Mapping[str, MetricValue]], *, group_size: int = 0, seconds: float | None = None
) -> Training:
    """Figures of a training from the lines of its `metrics.jsonl`.

    Two steps of 2 and 3 groups of 4, with 10 and 20 tokens an episode, of the latter a quarter
    lost: 20 rollouts, and 2 x 4 x 10 + 3 x 4 x 3/4 x 20 = 260 tokens. Raises DataError where there
    is no such step.
    """
    steps = [line for line in metrics if "groups_played" in line]  # others are of dev tasks
    rounds = [line for line in metrics if "played" in line]  # of rejection sampling, with the counts so far
    if not steps and not rounds:
        raise DataError("its metrics.jsonl has no step in which episodes were played: it learnt nothing of its own")
    of_rounds = {key: int(_number(rounds[-1], key) or 0) if rounds else 0 for key in ("generated_tokens", "played")}
    groups = [int(_number(line, "groups_played") or 0) for line in steps]
    kept = [1 - (_number(line, "lost") or 0.0) for line in steps]
    lengths = [_number(line, "length") or 0.0 for line in steps]
    dev = {
        key: _values(metrics, key)
        for key in sorted({key for line in metrics for key in line if key.startswith("dev_")})
    }
    found = {name: values for name in AVERAGED if (values := _values(metrics, name))}
    return Training(
        steps=len(steps) + len([line for line in metrics if "loss" in line]) * bool(rounds),
        generated_tokens=of_rounds["generated_tokens"]
        + round(
            sum(num * group_size * share * length for num, share, length in zip(groups, kept, lengths, strict=True))
        ),
        rollouts=of_rounds["played"] + sum(groups) * group_size,
        groups=sum(groups),
        means={name: round(fmean(values), 6) for name, values in found.items()},
        last={name: round(fmean(values[-NUM_LAST:]), 6) for name, values in found.items()},
        dev_first={key: values[0] for key, values in dev.items() if values},
        dev_last={key: values[-1] for key, values in dev.items() if values},
        seconds=round(seconds, 1) if seconds is not None else None,
    )


def _group_size(knobs: Mapping[str, Any]) -> int:
    """Episodes of a group of online training; 0 where there is none."""
    return max(int(knobs.get(f"{section}.group_size", 0)) for section in _ALGORITHMS)


def _number(line: Mapping[str, Any], key: str) -> float | None:
    value = line.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _values(metrics: Sequence[Mapping[str, MetricValue]], key: str) -> list[float]:
    return [value for line in metrics if (value := _number(line, key)) is not None]
