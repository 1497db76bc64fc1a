"""Repeats the pipeline over seeds, to tell learning from luck: the default pipeline over three
seeds and three world seeds never used in tuning, and the control arms.

Writes `reports/seeds.json`: for each run its knobs and the held-out success of every policy with
its interval; prints the verdict over seeds.
`sft_filtered` is the control for "the demonstrations were simply bad": the same SFT on successful
demonstrations only, same steps. `python -m benchmarks.seeds [--jobs N] [ARM …]` runs only those.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY, Arm, read_report, run_arms
from posttrain.evals.significance import difference
from posttrain.report.knobs import parse_knobs
from posttrain.report.outcomes import packed, read_outcomes, unpacked
from posttrain.report.table import points

SEEDS_JSON = REPOSITORY / "reports" / "seeds.json"
POLICIES = ("teacher", "base", "sft", "policy")
PLAIN = ("success_rate", "ci_low", "ci_high", "pass_hat_4")
FIELDS = (*(f"strict_{name}" for name in PLAIN), *PLAIN, "num_tasks")
DPO = {  # chosen on dev and rl tasks; pairs from all rl tasks, GRPO plays them all too
    "train_policy.algorithm": {"type": "dpo", "max_steps": 80, "batch_size": 32, "beta": 0.5, "loss": "sigmoid"},
    "train_policy.lr": 4.0e-4,
    "sample_preferences.num_tasks": 640,
}

ARMS = (
    *(Arm(f"seed_{seed}", {"seed": seed}) for seed in (1, 2, 3)),
    *(Arm(f"world_seed_{seed}", {"world.seed": seed}) for seed in (2002, 2003, 2004)),
    Arm("sft_filtered", {"resample_data.success_filter": True}, ("evaluate@sft",)),
    Arm("dpo", DPO, ("evaluate@policy",)),
)


def main() -> None:
    results = run_arms(ARMS, _figures, SEEDS_JSON)
    for name, result in results.items():
        row = "  ".join(f"{policy} {figures['success_rate']:.3f}" for policy, figures in result["policies"].items())
        print(f"{name:18} {row}")
    print(verdict(results))


def verdict(results: Mapping[str, Any]) -> str:
    """On the policy after reinforcement learning against the one before it, over seeds."""
    arms = [arm["policies"] for arm in results.values() if set(arm["overrides"]) == {"seed"}]
    before, after = ([won for arm in arms if (won := unpacked(arm[policy]))] for policy in ("sft", "policy"))
    if not after:
        return "no seed has its plays of each task on record: run them again for a verdict"
    found = difference(before, after)
    return f"policy less sft, over {len(after)} seeds: {points(found.estimate, found.low, found.high)}: {found.advice}"


def _figures(copy: Path, arm: Arm) -> dict[str, Any]:
    policies = [target.removeprefix("evaluate@") for target in arm.targets] or POLICIES
    reports = {policy: read_report(copy, f"evaluate/{policy}.json") for policy in policies}
    figures = {policy: {name: report[name] for name in FIELDS} for policy, report in reports.items()}
    for policy in {"sft", "policy"} & figures.keys():
        figures[policy] |= packed(read_outcomes(copy, policy))
    return {"policies": figures, "knobs": parse_knobs((copy / "params.yaml").read_bytes())}


if __name__ == "__main__":
    main()
