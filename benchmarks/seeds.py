"""Repeats the pipeline over seeds, to tell learning from luck: the default pipeline over five seeds
and three world seeds never used in tuning, and the control arms.

Writes `reports/seeds.json`: for each run its knobs, the held-out success of the policies with its
interval, how many tasks without a tool they do in other phrasing, and the training's signal; prints
the verdict over seeds.
`sft_filtered` is the control for "the demonstrations were simply bad": the same SFT on successful
demonstrations only, same steps. `python -m benchmarks.seeds [--jobs N] [ARM …]` runs only those.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.arms import REPOSITORY, Arm, read_report, run_arms
from posttrain.data.files import read_jsonl
from posttrain.data.schemas import read_tasks
from posttrain.evals.significance import difference
from posttrain.report.knobs import parse_knobs
from posttrain.report.outcomes import packed, read_outcomes, unpacked
from posttrain.report.table import points
from posttrain.worlds.lookups.gold import Answer, Gold, gold_of

SEEDS_JSON = REPOSITORY / "reports" / "seeds.json"
POLICIES = ("teacher", "base", "sft", "policy")
PLAIN = ("success_rate", "ci_low", "ci_high", "pass_hat_4")
BEFORE_AND_AFTER = ("evaluate@sft", "evaluate@policy")
NUM_LAST_STEPS, OF_LAST_STEPS = 20, ("frac_tokens_nonzero_advantage", "frac_reward_zero_std")
DONE = Answer("choice", "done")
FIELDS = (*(f"strict_{name}" for name in PLAIN), *PLAIN, "num_tasks")
DPO = {  # chosen on dev and rl tasks; pairs from all rl tasks, GRPO plays them all too
    "train_policy.algorithm": {"type": "dpo", "max_steps": 80, "batch_size": 32, "beta": 0.5, "loss": "sigmoid"},
    "train_policy.lr": 4.0e-4,
    "sample_preferences.num_tasks": 640,
}

ARMS = (
    Arm("seed_1", {"seed": 1}),
    *(Arm(f"seed_{seed}", {"seed": seed}, BEFORE_AND_AFTER) for seed in (2, 3, 4, 5)),
    *(Arm(f"world_seed_{seed}", {"world.seed": seed}, BEFORE_AND_AFTER) for seed in (3001, 3002, 3003)),
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
        figures[policy] |= packed(read_outcomes(copy, policy)) | _without_tool(copy, policy)
    signal = _signal(copy) if "policy" in policies and arm.name != "dpo" else {}
    return {"policies": figures, "signal": signal, "knobs": parse_knobs((copy / "params.yaml").read_bytes())}


def _without_tool(copy: Path, policy: str) -> dict[str, int]:
    """Of the tasks in other phrasing that want nothing looked up nor worked out: how many there
    are, and were done."""
    asked = read_tasks(copy / "data/raw/tasks.parquet", "test_paraphrase")
    wanting_none = {task.task_id for task in asked if gold_of(task) == Gold(DONE)}
    played = read_jsonl(copy / f"reports/evaluate/{policy}.tasks.jsonl")
    done = [one["success"] for one in played if one["task_id"] in wanting_none]
    return {"num_without_tool": len(done), "num_without_tool_done": sum(done)}


def _signal(copy: Path) -> dict[str, float]:
    """What was played in all, and of the last steps the share of the agent's tokens with an
    advantage and of groups of equal rewards, means over the steps."""
    steps = read_jsonl(copy / "reports/train_policy/metrics.jsonl")
    return {
        "groups_played": sum(step["groups_played"] for step in steps),
        "generated_tokens": steps[-1]["generated_tokens"],
        **{name: mean(step[name] for step in steps[-NUM_LAST_STEPS:]) for name in OF_LAST_STEPS},
    }


if __name__ == "__main__":
    main()
