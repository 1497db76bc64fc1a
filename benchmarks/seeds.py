"""Does the agent really learn? The default pipeline over three seeds and three world seeds never used in tuning, and the control arms.

Writes `reports/seeds.json`: for each run the held-out success of every policy with its interval. `sft_filtered` is the control for "the
demonstrations were simply bad": the same SFT on successful demonstrations only, same steps. `python -m benchmarks.seeds [arm ...]` runs only those.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY, Arm, read_report, run_arm

SEEDS_JSON = REPOSITORY / "reports" / "seeds.json"
POLICIES = ("teacher", "base", "sft", "policy")
FIELDS = ("success_rate", "ci_low", "ci_high", "num_tasks", "pass_hat_4")
DPO = {"type": "dpo", "max_steps": 100, "batch_size": 32, "beta": 0.1}

ARMS = (
    *(Arm(f"seed_{seed}", {"seed": seed}) for seed in (1, 2, 3)),
    *(Arm(f"world_seed_{seed}", {"world.seed": seed}) for seed in (1001, 1002, 1003)),
    Arm("sft_filtered", {"resample_data.success_filter": True}, ("evaluate@sft",)),
    Arm("dpo", {"train_policy.algorithm": DPO}, ("evaluate@policy",)),
)


def main() -> None:
    wanted = sys.argv[1:] or [arm.name for arm in ARMS]
    results: dict[str, Any] = json.loads(SEEDS_JSON.read_text(encoding="utf-8")) if SEEDS_JSON.exists() else {}
    with tempfile.TemporaryDirectory(prefix="posttrain-seeds-") as folder:
        for arm in ARMS:
            if arm.name in wanted:
                results[arm.name] = _figures(run_arm(arm, Path(folder)), arm)
                SEEDS_JSON.write_text(json.dumps(results, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, result in results.items():
        row = "  ".join(f"{policy} {figures['success_rate']:.3f}" for policy, figures in result["policies"].items())
        print(f"{name:18} {row}")


def _figures(copy: Path, arm: Arm) -> dict[str, Any]:
    policies = [target.removeprefix("evaluate@") for target in arm.targets] or POLICIES
    reports = {policy: read_report(copy, f"evaluate/{policy}.json") for policy in policies}
    return {
        "overrides": dict(arm.overrides),
        "policies": {policy: {name: report[name] for name in FIELDS} for policy, report in reports.items()},
    }


if __name__ == "__main__":
    main()
