"""Methods of learning online x seeds in a regime, each an experiment on a branch of its own, and
one table of what came out.

`python -m flows.ablation --regime hard --methods grpo,ngrpo --seeds 1-5` runs what `python -m
benchmarks.ablation` with the same words does, on a pool: both read `infra/ablation` and write
`reports/ablation/<regime>.json`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State

from flows.exit_codes import exit_with
from flows.experiments import came_to, folder_of, is_done, run_variants
from flows.local_server import with_server
from posttrain.experiments.arms import Arm, Study, arms, parse_seeds, read_study
from posttrain.experiments.branches import PARAMS, check_branches
from posttrain.experiments.markdown import table_markdown
from posttrain.experiments.record import read_arm, read_arms, record_file, write_arms
from posttrain.experiments.verdicts import make_table
from posttrain.pipeline.git import file_at
from posttrain.runtime.exits import ConfigurationError, DataError


@flow(log_prints=False, validate_parameters=False)
def ablation(
    regime: str = "", methods: list[str] | None = None, seeds: list[int] | None = None, num_beside: int = 2
) -> State[Any]:
    """Run methods x seeds in a regime, `num_beside` at a time; what is not given is as `laptop` of
    methods.yaml has it. Failed where one did; the table is of those that ended well, and of what is
    on record."""
    root = Path.cwd()
    study, chosen = chosen_arms(root, regime, methods or (), seeds or ())
    under_way, ended = run_variants(root, [arm.variant for arm in chosen], num_beside)
    done = [arm for arm in chosen if is_done(ended.get(arm.variant.name))]
    if done:
        text = record_arms(root, study, done)
        get_run_logger().info("%s", text)
        create_markdown_artifact(text, key="ablation", description="each method against the baseline, over seeds")
    return came_to(under_way, ended)


def chosen_arms(root: Path, regime: str, methods: Sequence[str], seeds: Sequence[int]) -> tuple[Study, list[Arm]]:
    """What is to be run, checked. Raises ConfigurationError, before anything was run."""
    params = file_at(root, "HEAD", PARAMS)
    if params is None:
        raise ConfigurationError(f"{root} has no commit with a {PARAMS}: experiments start from the last commit")
    study = read_study(root)
    laptop = study.laptop
    chosen = arms(study, regime or laptop.regime, methods or laptop.methods, seeds or laptop.seeds, params)
    check_branches(root, [arm.variant for arm in chosen])
    return study, chosen


def record_arms(root: Path, study: Study, done: Sequence[Arm]) -> str:
    """Take over what is in their worktrees, beside what is on record; the table as Markdown, which
    stands in `reports/ablation`, too, or a sentence why there is none."""
    regime = done[0].regime
    file = record_file(root, regime)
    records = read_arms(file) | {arm.variant.name: read_arm(folder_of(root, arm.variant), arm) for arm in done}
    write_arms(file, records)
    try:
        table = make_table(study, regime, records, params=file_at(root, "HEAD", PARAMS) or "")
    except DataError as error:
        return str(error)
    text = table_markdown(table, study)
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    """Refuses a wrong plan before a server is started for it."""
    parser = argparse.ArgumentParser(
        "flows.ablation", description="Methods x seeds in a regime, each on a branch exp/REGIME-METHOD-seedN."
    )
    parser.add_argument("--regime", default="", help="of infra/ablation/regimes.yaml")
    parser.add_argument("--methods", default="", help="of infra/ablation/methods.yaml, with commas between, or all")
    parser.add_argument("--seeds", default="", help="1,2,3 or 1-3")
    parser.add_argument("--beside", type=int, default=2, help="experiments at a time")
    given = parser.parse_args()

    def run() -> None:
        root = Path.cwd()
        named = (
            list(read_study(root).methods) if given.methods == "all" else list(filter(None, given.methods.split(",")))
        )
        seeds = parse_seeds(given.seeds) if given.seeds else []
        chosen_arms(root, given.regime, named, seeds)
        with_server(lambda: ablation(regime=given.regime, methods=named, seeds=seeds, num_beside=given.beside))

    exit_with(run)


if __name__ == "__main__":
    main()
