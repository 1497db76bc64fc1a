"""Repeats the pipeline over seeds, to tell learning from luck: the default pipeline over three
seeds and three world seeds never used in tuning, and the control arms.

Writes `reports/seeds.json`: for each run the held-out success of every policy with its interval.
`sft_filtered` is the control for "the demonstrations were simply bad": the same SFT on successful
demonstrations only, same steps. `python -m benchmarks.seeds [--jobs N] [ARM …]` runs only those.
"""

from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY, Arm, read_report, run_arms

SEEDS_JSON = REPOSITORY / "reports" / "seeds.json"
POLICIES = ("teacher", "base", "sft", "policy")
FIELDS = ("success_rate", "ci_low", "ci_high", "num_tasks", "pass_hat_4")
DPO = {  # chosen on dev and rl tasks; pairs from all rl tasks, GRPO plays them all too
    "train_policy.algorithm": {"type": "dpo", "max_steps": 80, "batch_size": 32, "beta": 0.5},
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
    for name, result in run_arms(ARMS, _figures, SEEDS_JSON).items():
        row = "  ".join(f"{policy} {figures['success_rate']:.3f}" for policy, figures in result["policies"].items())
        print(f"{name:18} {row}")


def _figures(copy: Path, arm: Arm) -> dict[str, Any]:
    policies = [target.removeprefix("evaluate@") for target in arm.targets] or POLICIES
    reports = {policy: read_report(copy, f"evaluate/{policy}.json") for policy in policies}
    return {"policies": {policy: {name: report[name] for name in FIELDS} for policy, report in reports.items()}}


if __name__ == "__main__":
    main()
