"""Measures whether verified edits teach: `python -m benchmarks.edits_teach [--hard]`.

The world's expert edits in place of a person: the right message at the first wrong turn of a failed
episode of the SFT model, nothing else, verified by 8 plays with and without it. From the same SFT
model every arm learns with the same number of optimizer steps and rows, and is judged by strict
success on the test tasks. `--hard` is the regime in which GRPO stalls: SFT is stopped at step 150,
and the reward is success alone.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from posttrain.api import World, demonstrate, load_world, sft
from posttrain.data.edits import VerifiedEdit
from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.debug.player import model_player
from posttrain.debug.suggest import expert_edits
from posttrain.debug.verify import verify
from posttrain.evals.significance import difference
from posttrain.models.loading import load_codec, load_model
from posttrain.rollout.episode_sampler import sample_groups
from posttrain.rollout.episodes import demonstrate as demonstrated
from posttrain.runtime.threads import choose_num_threads, limit_threads
from posttrain.traces.values import traced
from posttrain.tracking.alarms import Alarms
from posttrain.train.edit_pairs import edit_pairs
from posttrain.train.on_pairs import learn_from_pairs
from posttrain.train.online.learning import PolicyInputs
from posttrain.train.policy import learn_policy
from posttrain.train.preference_pairs import Pair, pairs_of
from posttrain.train.resumable_trainer import open_run
from posttrain.train.sft import fine_tune
from posttrain.train.trainable import load_trainable
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import require_expert

STEPS, NUM_SAMPLES = 60, 8
HARD = {
    "train_sft.max_steps": 150,
    "train_sft.eval_every_steps": 150,
    "reward": {"weights": {"completion": 1.0}, "penalties": {}, "extra": []},
}
# chosen on dev tasks of seed 1
ROWS = {"max_steps": STEPS, "batch_size": 16, "lr": 1e-3, "lr_warmup_frac": 0.1, "label_weights": {}}
DPO = {"type": "dpo", "max_steps": STEPS, "batch_size": 32, "beta": 0.5, "loss": "sigmoid"}
GRPO_STEPS = 24
Arm = Mapping[str, float]  # strict success by test task


class Experiment:
    """One seed: the SFT model, its edits, and what the controls learn from."""

    def __init__(self, world: World, folder: Path, num_edits: int) -> None:
        self.world, self.params = world, world.params
        self.demonstrations = demonstrate(world)
        self.sft = sft(self.demonstrations, world, to=folder / "sft")
        self.dev, self.tasks = self._demonstrated(world.tasks("dev")), world.tasks("rl")
        codec, scored = load_codec(self.sft), world.scored
        sampler = scored.sampler(load_model(self.sft).eval(), codec, temperature=1.0)
        played, plays = sample_groups(sampler, self.tasks, num_samples=NUM_SAMPLES, seed=self.params.seed)
        expert = require_expert(scored.domain, needed_by="edits in place of a person's")
        player = model_player(self.sft, scored.domain, scored.limits)
        forks, self.edits, self.num_tried = expert_edits(traced(played, plays), expert), list[VerifiedEdit](), 0
        while batch := list(islice(forks, num_edits - len(self.edits))):
            found = verify(batch, player, who="expert")
            self.edits += [one for one in found if isinstance(one, VerifiedEdit)]
            self.num_tried += len(batch)
        rows = [trajectory_row(one, task, scored.domain.tools) for one, task in zip(played, plays, strict=True)]
        self.sampled_pairs = pairs_of(rows, "best_worst")
        firsts = {row.trajectory.task_id: row for row in reversed(rows) if row.trajectory.is_strict_success}
        self.own = list(firsts.values())

    def sft_rows(self, num: int) -> list[TrajectoryRow]:
        return [edit.sft_row(self.world.scored.domain.tools) for edit in self.edits[:num]]

    def expert_rows(self, num: int) -> list[TrajectoryRow]:
        return self._demonstrated([edit.task for edit in self.edits[:num]])

    def pairs(self, num: int) -> list[Pair]:
        return edit_pairs(self.edits[:num], self.world.scored)

    def on_rows(self, rows: Sequence[TrajectoryRow]) -> Arm:
        knobs = self.params.train_sft.model_copy(update={**ROWS, "eval_every_steps": STEPS})

        def train(model: Any, codec: Any, run: Any) -> None:
            fine_tune(model, codec, rows, self.dev, params=knobs, seed=self.params.seed, run=run)

        return self._learnt(train)

    def on_pairs(self, pairs: Sequence[Pair]) -> Arm:
        knobs = self._policy_params(algorithm=DPO, lr=1e-3, checkpoint_every_steps=STEPS)

        def train(model: Any, codec: Any, run: Any) -> None:
            learn_from_pairs(model, codec, pairs, knobs.algorithm, params=knobs, seed=self.params.seed, run=run)

        return self._learnt(train)

    def online(self, join: Mapping[str, Any]) -> Arm:
        """GRPO on the tasks that have an edit."""
        dumped = self.params.train_policy.algorithm.model_dump()
        dev = {"every_steps": GRPO_STEPS, "num_tasks": 16, "keep": "last"}
        algorithm = {**dumped, "max_steps": GRPO_STEPS, "join": join, "temperature": 1.0, "dev": dev}
        knobs = self._policy_params(algorithm=algorithm, checkpoint_every_steps=GRPO_STEPS)
        tasks = [edit.task for edit in self.edits]

        def train(model: Any, codec: Any, run: Any) -> None:
            inputs = PolicyInputs(
                world=self.world.scored,
                tasks=tasks,
                dev_tasks=self.world.tasks("dev"),
                demonstrations=self.dev,
                reasoning_frac=self.params.generate_data.reasoning_frac,
                edits=self.edits,
            )
            learn_policy(model, codec, inputs, params=knobs, seed=self.params.seed, run=run)

        return self._learnt(train)

    def untrained(self) -> Arm:
        return self._judged(load_model(self.sft), load_codec(self.sft))

    def _learnt(self, train: Callable[[Any, Any, Any], None]) -> Arm:
        codec, model = load_codec(self.sft), load_trainable(self.sft, self.params.model, seed=self.params.seed)
        alarms = Alarms(self.params.train_policy.alarms, on_alarm="warn")
        with tempfile.TemporaryDirectory() as folder, open_run(Path(folder), alarms=alarms) as run:
            train(model, codec, run)
        return self._judged(model, codec)

    def _judged(self, model: Any, codec: Any) -> Arm:
        player = self.world.scored.player(model.eval(), codec, seed=self.params.seed)
        played: Sequence[Trajectory] = player(self.world.tasks("test"), 0.0)
        return {one.task_id: float(one.is_strict_success) for one in played if not one.is_aborted}

    def _demonstrated(self, tasks: Sequence[Task]) -> list[TrajectoryRow]:
        expert = require_expert(self.world.scored.domain, needed_by="the control of whole demonstrations")
        frac = self.params.generate_data.reasoning_frac
        limits, seed = self.world.scored.limits, self.params.seed
        return demonstrated(expert, tasks, limits=limits, seed=seed, is_flawless=True, reasoning_frac=frac)

    def _policy_params(self, **changes: Any) -> Any:
        params = self.params.train_policy
        return type(params).model_validate({**params.model_dump(), **changes})


def arms_of(seed: int, *, is_hard: bool, num_edits: int, folder: Path) -> dict[str, Arm]:
    """Every arm of one seed, each told as it ends."""
    world = load_world("stocks", {"seed": seed, **(HARD if is_hard else {})}, quick=False)
    one, found = Experiment(world, folder, num_edits), dict[str, Arm]()
    few, many = min(50, len(one.edits)), len(one.edits)
    print(f"seed {seed}: {many} edits of {one.num_tried} help; {len(one.own)} tasks with own successes", flush=True)
    # as many of each as there are edits
    todo: dict[str, Callable[[], Arm]] = {
        "SFT": one.untrained,
        "rows: the demonstrations again": lambda: one.on_rows(one.demonstrations),
        "rows: few edits": lambda: one.on_rows(one.sft_rows(few)),
        "rows: all edits": lambda: one.on_rows(one.sft_rows(many)),
        "rows: few expert demonstrations": lambda: one.on_rows(one.expert_rows(few)),
        "rows: all expert demonstrations": lambda: one.on_rows(one.expert_rows(many)),
        "rows: few own successes": lambda: one.on_rows(one.own[:few]),
        "rows: all own successes": lambda: one.on_rows(one.own[:many]),
        "DPO: few edits": lambda: one.on_pairs(one.pairs(few)),
        "DPO: all edits": lambda: one.on_pairs(one.pairs(many)),
        "DPO: sampled pairs": lambda: one.on_pairs(one.sampled_pairs[:many]),
        "GRPO": lambda: one.online({"type": "none"}),
        "GRPO: edits are members": lambda: one.online({"type": "edits", "gamma": 0.1}),
    }
    for name, learn in todo.items():
        found[name] = learn()
        print(f"  {name}: {100 * mean(found[name].values()):.1f} %", flush=True)
    return found


CONTROLS = {"DPO: ": "DPO: sampled pairs", "GRPO: ": "GRPO", "rows: ": "rows: the demonstrations again"}


def table(seeds: Sequence[Mapping[str, Arm]]) -> list[str]:
    """Mean and standard deviation over the seeds, and the difference to the arm's control with its
    95 % interval."""
    lines = ["| arm | strict success | over its control |", "| --- | --- | --- |"]
    for name in seeds[0]:
        rates = [100 * mean(one[name].values()) for one in seeds]
        control = next((other for start, other in CONTROLS.items() if name.startswith(start) and name != other), "SFT")
        gain = ""
        if name != control and len(seeds) > 1:
            found = difference([one[control] for one in seeds], [one[name] for one in seeds])
            gain = f"{100 * found.estimate:+.1f} ({100 * found.low:+.1f} … {100 * found.high:+.1f}), {control}"
        spread = f" ± {stdev(rates):.1f}" if len(rates) > 1 else ""
        lines.append(f"| {name} | {mean(rates):.1f}{spread} | {gain} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.edits_teach", description=__doc__)
    parser.add_argument("--hard", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--num", type=int, default=200, help="edits")
    parser.add_argument("--to", type=Path, help="write the arms of each seed to this file")
    given = parser.parse_args()
    limit_threads(choose_num_threads())
    seeds = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            seeds.append(arms_of(seed, is_hard=given.hard, num_edits=given.num, folder=Path(folder)))
        if given.to:
            given.to.write_text(json.dumps(dict(zip(map(str, given.seeds), seeds, strict=False)), indent=1))
    print("\n".join(table(seeds)))


if __name__ == "__main__":
    main()
