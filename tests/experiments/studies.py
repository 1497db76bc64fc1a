"""A small study and planted outcomes of its runs."""

from typing import Any

from posttrain.experiments.arms import Laptop, Method, Regime, Study, arms_of_seed
from posttrain.experiments.record import ArmRecord, Training, wanted_params

BUDGET = {"max_generated_tokens": 1000, "max_steps": 60, "tasks_per_step": 8, "group_size": 8}
NUM_TASKS = 200
PARAMS = "seed: 1\ntrain_policy: {algorithm: {type: online}, lr: 2.0e-3}\n"


def study_of(names: list[str], *, oracles: tuple[str, ...] = (), controls: tuple[str, ...] = ()) -> Study:
    """The first is the baseline."""
    methods = {
        name: Method.model_validate(
            {"about": f"what {name} does", "set": {}, "is_oracle": name in oracles, "is_control": name in controls}
        )
        for name in names
    }
    regime = Regime.model_validate({"about": "a regime of tests", "set": {}, "budget": BUDGET})
    laptop = Laptop(regime="hard", methods=names, seeds=[1])
    return Study(names[0], laptop, {"type": "online"}, methods, {"hard": regime})


def training(**figures: Any) -> Training:
    return Training(
        **{
            "steps": 20,
            "generated_tokens": 60_000,
            "rollouts": 1280,
            "groups": 160,
            "means": {"kl": 0.25},
            "last": {"kl": 0.5},
            "dev_first": {},
            "dev_last": {},
            "seconds": 30.0,
            **figures,
        }
    )


def run_of(method: str, seed: int, won: str, **figures: Any) -> ArmRecord:
    """`won` has a digit for each task."""
    plain = {
        "params": "p",
        "code": "c",
        "sft": f"sft{seed}",
        "commit": "abc1234",
        "tasks": "t",
        "strict_won": won,
        "sampled_won": " ".join(won),
    }
    return ArmRecord(method=method, seed=seed, won=won, **{**plain, "training": training(), **figures})


def digits(num: int) -> str:
    """The first `num` tasks are won."""
    return "1" * num + "0" * (NUM_TASKS - num)


def on_record(study: Study, runs: list[ArmRecord]) -> dict[str, ArmRecord]:
    """By name, each with the knobs of its method, but for those that have some already."""
    found = {}
    for run in runs:
        digest = run.params
        if digest == "p" and run.method in study.methods:
            [arm] = arms_of_seed(study, "hard", [run.method], run.seed)
            digest = wanted_params(arm, PARAMS)
        found[f"hard-{run.method}-seed{run.seed}"] = run.model_copy(update={"params": digest})
    return found
