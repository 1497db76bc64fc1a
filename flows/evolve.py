"""Flow of self-improvement in rounds: the policy plays, learns from its own successes, is judged,
and plays again.

`python -m flows.evolve FILE` with, for example,

    name: evolve
    rounds: 4
    seeds: [1]
    round:
      train_policy.replay_buffer: {size: 4096, keep: uniform}
      train_policy.algorithm: {type: rejection_sampling, ...}

runs each round as an experiment: the whole graph on a branch `exp/evolve-round1-seed1` and so on,
of which only what the round changes is run. A killed run is begun again by the same command: what
was done comes from DVC's cache, and a training goes on from its checkpoint. The record and a table
of all rounds are written to `reports/experiments`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State

from flows.exit_codes import exit_with
from flows.experiments import folder_of, is_done, record, run_variants, total_state
from flows.local_server import with_server
from posttrain.experiments.branches import PARAMS, check_branches
from posttrain.experiments.evolution import DEV, Curve, Evolution, dev_curve, read_evolution, rounds_markdown
from posttrain.experiments.plan import Variant
from posttrain.experiments.record import read_arm, record_file
from posttrain.pipeline.git import file_at
from posttrain.report.arms import Arm
from posttrain.tracking.metrics_log import read_metrics

METRICS = Path("reports/train_policy/metrics.jsonl")


@flow(log_prints=False, validate_parameters=False)
def evolve(file: str, seeds: list[int] | None = None, num_beside: int = 2) -> State[Any]:
    """Run the rounds of a file, `num_beside` seeds at a time."""
    root, evolution = Path.cwd(), read_evolution(Path(file))
    plan, chosen = evolution.chosen(file_at(root, "HEAD", PARAMS) or "", seeds or ())
    check_branches(root, chosen)
    by_override: dict[str, dict[int, Variant]] = {}
    for one in chosen:
        by_override.setdefault(one.override, {})[one.knobs["seed"]] = one
    ended: dict[str, State[Any]] = {}

    def run(names: Sequence[str], going: Sequence[int]) -> State[Any]:
        """Run these arms with these seeds; the state of everything so far."""
        under_way, states = run_variants(
            root, [by_override[name][seed] for name in names for seed in going], num_beside, plan.targets
        )
        ended.update(states)
        return total_state(under_way, ended)

    going = list(by_override["round1"])
    came_out = run([one.name for one in evolution.beside], going)
    rounds: list[list[Arm]] = []
    while came_out.is_completed() and going:
        name = f"round{len(rounds) + 1}"
        came_out = run([name], going)
        if not came_out.is_completed():
            break
        rounds.append(
            [read_arm(folder_of(root, one), plan, one) for one in (by_override[name][seed] for seed in going)]
        )
        going = [seed for seed in going if _goes_on(evolution, rounds, seed)]
    done = [one for one in chosen if is_done(ended.get(one.name))]
    text = record(root, plan, done) + "\n" + rounds_markdown(rounds, _curves(root, evolution, by_override, ended))
    record_file(root, plan).with_suffix(".md").write_text(text, encoding="utf-8")
    get_run_logger().info("%s", text)
    create_markdown_artifact(text, key="rounds", description="what each round came to")
    return came_out


def _goes_on(evolution: Evolution, rounds: Sequence[Sequence[Arm]], seed: int) -> bool:
    trainings = [arm.training for arms in rounds for arm in arms if arm.seed == seed and arm.training]
    return evolution.goes_on(
        [one.dev_last.get(DEV, 0.0) for one in trainings], [one.generated_tokens for one in trainings]
    )


def _curves(
    root: Path,
    evolution: Evolution,
    by_override: Mapping[str, Mapping[int, Variant]],
    ended: Mapping[str, State[Any]],
) -> dict[str, list[Curve]]:
    return {
        one.name: [
            dev_curve(read_metrics(folder_of(root, variant) / METRICS))
            for variant in by_override[one.name].values()
            if is_done(ended.get(variant.name))
        ]
        for one in evolution.beside
    }


def main() -> None:
    """Refuses a wrong file before a server is started for it."""
    parser = argparse.ArgumentParser("flows.evolve", description="Rounds of learning from own successes.")
    parser.add_argument("file", help="YAML: rounds, the knobs of a round, and seeds")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="instead of the file's")
    parser.add_argument("--beside", type=int, default=2, help="seeds at a time")
    given = parser.parse_args()

    def run() -> None:
        _, chosen = read_evolution(Path(given.file)).chosen(file_at(Path.cwd(), "HEAD", PARAMS) or "", given.seeds)
        check_branches(Path.cwd(), chosen)
        with_server(lambda: evolve(given.file, given.seeds, given.beside))

    exit_with(run)


if __name__ == "__main__":
    main()
