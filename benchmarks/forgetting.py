"""Measures what is forgotten and what holds it: `python -m benchmarks.forgetting [--seeds 1 2 3]`.

From the prepared model SFT learns demonstrations of one kind of task (A), then every arm those of
another (B), with as many optimizer steps and rows: as they are, with a share of A's among them
(replay), under elastic weight consolidation (EWC), or with results of tools as targets. Per arm:
success on test tasks of A and B before and after, and the forward KL of the policy before to the
one after, in nats per token of B's dev demonstrations, which RL's Razor (arXiv 2509.04259) says
forgetting follows.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from posttrain.config.params import load_params
from posttrain.data.schemas import TrajectoryRow, read_tasks, read_trajectories
from posttrain.models.codec import TokenRow
from posttrain.models.loading import load_codec
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.rollout.episodes import demonstrate
from posttrain.runtime.threads import choose_num_threads, limit_threads
from posttrain.train.ewc import ewc_of
from posttrain.train.params import TrainSftParams
from posttrain.train.resumable_trainer import open_run
from posttrain.train.sft import train_sft
from posttrain.train.trainable import load_trainable
from posttrain.types import Task
from posttrain.worlds.catalog import require_expert

BASE = Path("data/models/base")
A_STEPS = 300
EWC = [1e2, 1e3]
CHOSEN_ON = 1  # seed
MEASURES = {"a_before": "A before", "a": "A after", "b_before": "B before", "b": "B after", "kl": "KL on B"}


class Experiment:
    """One seed: the policy that has learnt A, and what it is judged on."""

    def __init__(self, kinds: Sequence[str], seed: int, *, lr: float, num_steps: int) -> None:
        self.params, self.seed, self.of_b = load_params(Path("params.yaml")), seed, {"max_steps": num_steps, "lr": lr}
        self.world = ScoredWorld.of(self.params.world, self.params.reward, self.params.agent)
        self.codec = load_codec(BASE)
        rows = read_trajectories(Path("data/resampled/demonstrations.parquet"))
        self.rows = [self._encoded([row for row in rows if row.labels["kind"] == kind]) for kind in kinds]
        self.tests = [self._tasks("test", kind) for kind in kinds]
        expert, dev = (
            require_expert(self.world.domain, needed_by="B's dev demonstrations"),
            self._tasks("dev", kinds[1]),
        )
        how = {"limits": self.params.agent, "reasoning_frac": self.params.generate_data.reasoning_frac}
        self.dev = self._encoded(demonstrate(expert, dev, seed=seed, is_flawless=True, **how))
        self.first = load_trainable(BASE, self.params.model, seed=seed)
        self._learn(self.first, {"A": 1.0}, max_steps=A_STEPS, lr=self.params.train_sft.lr)
        self.before = self._successes(self.first)

    def arm(self, *, replay_frac: float = 0.0, ewc_weight: float = 0.0, **knobs: float) -> dict[str, float]:
        model = self._copy(self.first)
        ewc = ewc_of(model, self.rows[0], ewc_weight, seed=self.seed) if ewc_weight else None
        shares = {"A": replay_frac, "B": 1 - replay_frac}
        self._learn(model, shares, ewc, **self.of_b, **knobs)
        (a_before, b_before), (a, b) = self.before, self._successes(model)
        kl = forward_kl(self.first, model, self.dev)
        return {"a_before": a_before, "a": a, "b_before": b_before, "b": b, "kl": kl}

    def _learn(self, model: Any, shares: Mapping[str, float], ewc: Any = None, **changes: Any) -> None:
        knobs = {**self.params.train_sft.model_dump(), "label_weights": {}, **changes}
        params = TrainSftParams.model_validate({**knobs, "eval_every_steps": changes["max_steps"]})
        with tempfile.TemporaryDirectory() as folder, open_run(Path(folder)) as run:
            train_sft(
                model,
                self.codec.tokenizer,
                rows=[row for of_kind in self.rows for row in of_kind],
                values=["A"] * len(self.rows[0]) + ["B"] * len(self.rows[1]),
                shares=shares,
                dev_rows=[],
                params=params,
                seed=self.seed,
                run=run,
                ewc=ewc,
            )
        model.eval()

    def _successes(self, model: Any) -> list[float]:
        """Share of the test tasks of A and of B in percent, greedily."""
        player = self.world.player(self._copy(model), self.codec, seed=self.seed)
        return [100 * mean(one.is_success for one in player(tasks, 0.0)) for tasks in self.tests]

    def _copy(self, model: Any) -> Any:
        """Weights alone: a trainer gives a model a `forward` that a deep copy would share."""
        copied = load_trainable(BASE, self.params.model, seed=self.seed).eval()
        copied.load_state_dict(model.state_dict())
        return copied

    def _tasks(self, split: str, kind: str) -> list[Task]:
        return [task for task in read_tasks(Path("data/raw/tasks.parquet"), split) if task.labels["kind"] == kind]

    def _encoded(self, rows: Sequence[TrajectoryRow]) -> list[TokenRow]:
        return self.codec.encode_rows(row.conversation for row in rows)


@torch.no_grad()
def forward_kl(first: Any, model: Any, rows: Sequence[TokenRow]) -> float:
    """KL(first || model), the mean over the agent's tokens of all rows of its exact value."""
    found = []
    for row in rows:
        ids, is_agents = torch.tensor([row.input_ids]), torch.tensor(row.mask[1:], dtype=torch.bool)
        old, new = (one(ids, use_cache=False).logits[0, :-1][is_agents].log_softmax(-1) for one in (first, model))
        found.append((old.exp() * (old - new)).sum(-1))
    return float(torch.cat(found).mean())


def table(seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Mean and standard deviation over the seeds."""
    lines = [f"| arm | {' | '.join(MEASURES.values())} |", "| --- " * (len(MEASURES) + 1) + "|"]
    for name in seeds[0]:
        cells = []
        for measure in MEASURES:
            values, digits = [one[name][measure] for one in seeds], 3 if measure == "kl" else 1
            spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.{digits}f}{spread}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.forgetting", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--kinds", nargs=2, default=["tool_selection", "timing_decision"], metavar=("A", "B"))
    parser.add_argument("--lr", type=float, default=2e-3, help="of learning B")
    parser.add_argument("--steps", type=int, default=100, help="of learning B")
    parser.add_argument("--ewc", type=float, nargs="*", default=EWC, help="weights")
    given = parser.parse_args()
    limit_threads(choose_num_threads())
    arms: dict[str, dict[str, float]] = {
        "B alone": {},
        "replay of A, 0.3": {"replay_frac": 0.3},
        **{f"EWC, {weight:g}": {"ewc_weight": weight} for weight in given.ewc},
        "observations, 0.1": {"observation_weight": 0.1},
    }
    seeds: dict[int, dict[str, dict[str, float]]] = {}
    for seed in given.seeds:
        one, seeds[seed] = Experiment(given.kinds, seed, lr=given.lr, num_steps=given.steps), {}
        for name, knobs in arms.items():
            seeds[seed][name] = one.arm(**knobs)
            print(json.dumps({"seed": seed, "arm": name, **seeds[seed][name]}), flush=True)
    for title, is_chosen_on in ((f"seed {CHOSEN_ON}, on which weights were chosen", True), ("other seeds", False)):
        if found := [own for seed, own in seeds.items() if (seed == CHOSEN_ON) is is_chosen_on]:
            print("\n".join([f"\n{title} ({len(found)})", *table(found)]))


if __name__ == "__main__":
    main()
