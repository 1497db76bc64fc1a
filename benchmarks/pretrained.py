"""Takes SmolLM2-135M-Instruct, a pretrained chat model without tools, through the whole graph on a
CPU: LoRA SFT on a few hundred English demonstrations, two steps online, evaluation in the wording
of the demonstrations and in other phrasing.

`python -m benchmarks.pretrained` works in `.posttrain/pretrained`, a clone of the last commit with
the knobs below, where models, traces and `reports/index.html` stay; stopped, it goes on. Writes
`reports/pretrained.json`. What the default run's policy, a 0.4M model from scratch, does in English
in other phrasing stands beside it, from the reports of this checkout.

`--seed N` trains once more, by another seed and as far as SFT, in a clone of its own, and adds what
that model does to the report: with `--wordings 6` from as many demonstrations that say each thing
in up to six ways, with `--dtype bfloat16` in less time on a processor that multiplies in it.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.arms import REPOSITORY, apply_overrides, clone_checkout, environment_of
from posttrain.config.params import Params, load_params
from posttrain.data.files import read_jsonl
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.evals.significance import share_interval
from posttrain.models.gguf import get_model
from posttrain.models.loading import load_codec, load_model
from posttrain.pipeline.git import git
from posttrain.provenance.costs import processor_kind
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.types import Task
from posttrain.worlds.catalog import make_domain, score_names
from posttrain.worlds.protocol import Domain
from posttrain.worlds.tools import ToolError

TREE = REPOSITORY / ".posttrain" / "pretrained"
RESULT = REPOSITORY / "reports" / "pretrained.json"
MODEL = Path("data/pretrained/smollm2")
TRAINED = ("sft", "policy")
POLICIES = ("base", *TRAINED)
SPLITS = ("test", "test_paraphrase")
NUM_PHRASED = 240  # in other phrasing, played greedily by the trained models besides: 64 tell little
FLAWS = "wrong_market", "give_up", "indicator_mixup", "redundant_call", "malformed_json", "market_flip", "repeated_ask"
KNOBS: dict[str, Any] = {
    "world.languages": ["en"],  # the model reads no other
    "world.num_sft_tasks": 500,
    "world.num_rl_tasks": 32,
    "world.num_dev_tasks": 32,
    "world.num_test_tasks": 64,
    "world.flaw_rates": dict.fromkeys(FLAWS, 0.0),
    "agent.max_new_tokens": 96,
    "model": {
        "type": "pretrained",
        "name": str(MODEL),
        "chat_template": "bare",  # half the tokens of `compact`
        "adapter": {
            "type": "lora",
            "r": 16,
            "alpha": 32,
            "dropout": 0.0,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        },
        "gradient_checkpointing": False,
        "dtype": "float32",
        "tokens_at_once": 2048,  # rows of like length together: two thirds of the time of a padded batch
    },
    "generate_data.reasoning_frac": 0.0,
    "resample_data.coreset": {"strategy": "random", "keep_frac": 1.0},
    "resample_data.oversample.type": "none",
    "train_sft.max_steps": 128,
    "train_sft.batch_size": 8,
    "train_sft.lr": 1.0e-3,
    "train_sft.optimizer": "adamw",
    "train_sft.eval_every_steps": 64,
    "sample_preferences.num_tasks": 16,
    "sample_preferences.num_samples": 4,
    "train_reward_model.max_steps": 4,
    "train_reward_model.batch_size": 4,
    "train_reward_model.lr": 1.0e-4,
    "train_reward_model.checkpoint_every_steps": 4,
    "train_policy.begin_with": None,
    "train_policy.algorithm.max_steps": 2,
    "train_policy.algorithm.tasks_per_step": 8,
    "train_policy.algorithm.group_size": 4,
    "train_policy.algorithm.temperature": 1.0,
    "train_policy.algorithm.dev": {"every_steps": 2, "num_tasks": 16, "keep": "last"},
    "train_policy.lr": 1.0e-4,
    "train_policy.optimizer": "adamw",
    "train_policy.checkpoint_every_steps": 2,
    "evaluate.num_samples": 4,
}


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.pretrained", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--wordings", type=int, default=1, help="world.num_wordings, with --seed")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="model.dtype, with --seed")
    parser.add_argument("--steps", type=int, default=KNOBS["train_sft.max_steps"], help="of SFT, with --seed")
    given = parser.parse_args()
    own: dict[str, Any] = {"num_wordings": given.wordings, "dtype": given.dtype, "num_steps": given.steps}
    if given.seed is not None:
        add_seed(given.seed, **own)
        return
    if any(parser.get_default(name) != getattr(given, name) for name in ("wordings", "dtype", "steps")):
        parser.error("--wordings, --dtype and --steps come with --seed: the whole graph is run with the defaults")
    commit = _prepared(TREE, KNOBS)
    began = time.time()
    subprocess.run(["dvc", "repro"], cwd=TREE, env=environment_of(TREE), check=True)
    result = {"commit": commit, "processor": processor_kind(), **figures(TREE)}
    result["minutes"] = round((time.time() - began) / 60, 1)
    _write(result)
    for line in lines(result):
        print(line)
    print(f"models and traces: {TREE.relative_to(REPOSITORY)}; reports/pretrained.json")


def add_seed(seed: int, *, num_wordings: int, dtype: str, num_steps: int) -> None:
    """The SFT model by another `seed` of all that is drawn (demonstrations, order, adapters), on
    the tasks of the first."""
    name = f"{seed}, wordings {num_wordings}, {num_steps} steps, {dtype}"
    tree = TREE.with_name(f"{TREE.name}-{seed}-{num_wordings}-{num_steps}-{dtype}")
    own = {
        "seed": seed,
        "world.num_wordings": num_wordings,
        "model": KNOBS["model"] | {"dtype": dtype},
        "train_sft.max_steps": num_steps,
    }
    commit = _prepared(tree, KNOBS | own)
    subprocess.run(["dvc", "repro", "train_sft"], cwd=tree, env=environment_of(tree), check=True)
    params = load_params(tree / "params.yaml")
    domain = make_domain(params.world.model_copy(update={"num_wordings": 1}))  # one test for all
    found = {
        "commit": commit,
        "test": _played(tree, "sft", params, domain, split="test", num_tasks=params.world.num_test_tasks),
        "paraphrase": _phrased(tree, "sft", params, domain),
    }
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    result.setdefault("seeds", {})[name] = found
    _write(result)
    print(f"seed {name}: {_share(found['test'])} held out, {_share(found['paraphrase'])} in other phrasing")


def _write(result: Mapping[str, Any]) -> None:
    RESULT.write_text(json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _prepared(tree: Path, knobs: Mapping[str, Any]) -> str:
    """`tree` as a clone with the knobs and the model; its commit. One of another commit is made
    anew."""
    commit = git(REPOSITORY, "rev-parse", "HEAD")
    if not (tree / ".git").exists() or git(tree, "rev-parse", "HEAD") != commit:
        clone_checkout(tree)
        apply_overrides(tree / "params.yaml", knobs)
        _depend_on_model(tree / "dvc.yaml")
    if not (REPOSITORY / MODEL).exists():
        get_model("smollm2", REPOSITORY / MODEL)
    if not (tree / MODEL).exists():
        shutil.copytree(REPOSITORY / MODEL, tree / MODEL, copy_function=os.link)
    return commit


def _depend_on_model(dvc_yaml: Path) -> None:
    graph = read_yaml(dvc_yaml)
    graph["stages"]["prepare_model"]["deps"].append(str(MODEL))
    dvc_yaml.write_text(yaml.safe_dump(graph, sort_keys=False, allow_unicode=True), encoding="utf-8")


def figures(tree: Path) -> dict[str, Any]:
    """Figures of a tree whose graph was run: success of the policies, seconds of each stage,
    and the scratch model's success in other phrasing from this checkout's reports."""
    params = load_params(tree / "params.yaml")
    domain = make_domain(params.world)
    rows = read_trajectories(tree / "data/resampled/demonstrations.parquet")
    return {
        "num_demonstrations": len(rows),
        "seconds": {run["stage"]: run["whole_s"] for run in read_jsonl(tree / "reports/runs.jsonl")},
        "policies": {policy: _of_policy(tree, policy, domain) for policy in POLICIES},
        "phrased": {policy: _phrased(tree, policy, params, domain) for policy in TRAINED},
        "scratch": _scratch(),
        "knobs": KNOBS,
    }


def _phrased(tree: Path, policy: str, params: Params, domain: Domain) -> dict[str, Any]:
    """Success on more tasks in other phrasing than are evaluated, which are the first of them."""
    return _played(tree, policy, params, domain, split="test_paraphrase", num_tasks=NUM_PHRASED)


def _played(tree: Path, policy: str, params: Params, domain: Domain, *, split: str, num_tasks: int) -> dict[str, Any]:
    folder = tree / "data/models" / policy
    reward = load_reward(params.reward, score_names(domain))
    sampler = EpisodeSampler(
        load_model(folder), load_codec(folder), domain=domain, reward=reward, limits=params.agent, temperature=0.0
    )
    return success_on(domain.tasks(split, num_tasks), sampler, seed=params.seed)


def success_on(tasks: Sequence[Task], sampler: EpisodeSampler, *, seed: int) -> dict[str, Any]:
    """Success of one episode of each task."""
    played = sampler.sample(tasks, episode_seeds(Stream.EVALUATION, seed, count=len(tasks)))
    return _share_of([one.is_success for one in played])


def _scratch() -> dict[str, Any]:
    """The default run's policy on the tasks in other phrasing of these languages."""
    done = [
        record["success"]
        for record in read_jsonl(REPOSITORY / "reports/evaluate/policy.tasks.jsonl")
        if record["split"] == "test_paraphrase" and set(record["cell"].split("/")) & set(KNOBS["world.languages"])
    ]
    return _share_of(done)


def _share_of(done: Sequence[bool]) -> dict[str, Any]:
    low, high = share_interval(sum(done), len(done))
    return {"success_rate": sum(done) / len(done), "ci_low": low, "ci_high": high, "num_tasks": len(done)}


def _of_policy(tree: Path, policy: str, domain: Domain) -> dict[str, Any]:
    """Success with its interval in both phrasings, and how many calls of the greedy plays were
    valid."""
    report = json.loads((tree / "reports" / f"evaluate/{policy}.json").read_text(encoding="utf-8"))
    tasks = {task.task_id: task for task in read_tasks(tree / "data/raw/tasks.parquet", *SPLITS)}
    calls = [
        verdict
        for record in read_jsonl(tree / f"reports/evaluate/{policy}.tasks.jsonl")
        for message in record["transcript"]
        for verdict in verdicts_on(message, tasks[record["task_id"]], domain)
    ]
    fields = ("success_rate", "ci_low", "ci_high", "strict_success_rate", "num_tasks")
    found = {
        "test": {name: report[name] for name in fields},
        "paraphrase": {name: report["paraphrase"][name] for name in fields},
        "pass_hat_4": report["pass_hat_4"],
        "failures": report["failures"],
        "num_calls": len(calls),
        "num_valid_calls": sum(calls),
    }
    if calls:
        found["valid_calls"], found["valid_calls_low"], found["valid_calls_high"] = (
            round(sum(calls) / len(calls), 6),
            *(round(end, 6) for end in share_interval(sum(calls), len(calls))),
        )
    return found


def verdicts_on(message: Mapping[str, Any], task: Task, domain: Domain) -> list[bool]:
    """One a call; where the agent began one that nothing could be read from, that is an invalid
    one."""
    calls = message.get("calls", ())
    is_broken = message["role"] == "assistant" and not calls and "<tool_call" in message.get("content", "")
    return [False] if is_broken else [is_valid(call, task, domain) for call in calls]


def is_valid(call: Sequence[str], task: Task, domain: Domain) -> bool:
    """True where a call names a tool that the task offers, with arguments that fit its schema."""
    name, arguments = call
    if name not in task.tools:
        return False
    try:
        domain.tools[name].parse(arguments)
    except ToolError:
        return False
    return True


def lines(result: Mapping[str, Any]) -> list[str]:
    """The result for people, a line each policy."""
    told = [
        f"{result['minutes']} minutes on {result['processor']}, {result['num_demonstrations']} demonstrations",
        f"{'':8} {'held out':>22} {'in other phrasing':>22} {'of ' + str(NUM_PHRASED):>22} {'valid calls':>14}",
    ]
    for policy, one in result["policies"].items():
        valid = f"{one['num_valid_calls']} of {one['num_calls']}"
        phrased = _share(result["phrased"][policy]) if policy in result["phrased"] else ""
        told.append(f"{policy:8} {_share(one['test']):>22} {_share(one['paraphrase']):>22} {phrased:>22} {valid:>14}")
    for seed, one in result.get("seeds", {}).items():
        told.append(f"{'sft, ' + seed:8} {_share(one['test']):>22} {'':>22} {_share(one['paraphrase']):>22}")
    return [*told, f"{'scratch':8} {'':>45} {_share(result['scratch']):>22}   (the default run's policy)"]


def _share(one: Mapping[str, float]) -> str:
    return f"{one['success_rate']:.1%} ({one['ci_low']:.1%} … {one['ci_high']:.1%})"


if __name__ == "__main__":
    main()
