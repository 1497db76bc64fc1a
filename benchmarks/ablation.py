"""Runs methods of learning online x seeds in a regime, each in a clone of the last commit, into
`reports/ablation/<regime>.json` and `.md`.

Of each seed one SFT model is made first, and every method of that seed begins with what was done
there: they differ in nothing but the lines of `infra/ablation/methods.yaml`. A run that is on
record with the same knobs and code is not run again; one that fails is named at the end, and the
others go on. On a pool: `python -m flows.ablation`.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.arms import REPOSITORY, keep_done, run_arm
from benchmarks.arms import Arm as Clone
from posttrain.experiments.arms import Arm, Study, arms, parse_methods, parse_seeds, read_study
from posttrain.experiments.markdown import table_markdown
from posttrain.experiments.record import ArmRecord, code_digest, missing, read_arm, read_arms, record_file, write_arms
from posttrain.experiments.verdicts import make_table
from posttrain.pipeline.git import edited_files, file_at
from posttrain.runtime.exits import DataError, StageError
from posttrain.runtime.state import STATE_DIR

SHARED, OWN = ("train_reward_model",), ("evaluate@policy",)  # the former is all that the policy's training needs

Play = Callable[[Clone, Path, Path | None], Path]
Read = Callable[[Path, Arm], ArmRecord]


@dataclass(slots=True)
class Progress:
    """What came out, by the name of the arm: a record, or why there is none."""

    records: dict[str, ArmRecord]
    failed: dict[str, str] = field(default_factory=dict)


def run_ablation(
    wanted: Sequence[Arm],
    known: dict[str, ArmRecord],
    *,
    jobs: int,
    done: Path,
    play: Play = run_arm,
    read: Read = read_arm,
    keep: Callable[[dict[str, ArmRecord]], None] = lambda _: None,
) -> Progress:
    """Run arms, `jobs` at a time; `keep` gets all records after each. `play` brings a clone's
    targets up to date, beginning with what a third argument's tree has done, and gives its folder,
    or raises CalledProcessError. In `done` stays what the next call need not do again."""
    progress = Progress(dict(known))
    by_seed = {arm.seed: [one for one in wanted if one.seed == arm.seed] for arm in wanted}
    seeds, ready = deque(by_seed), deque[tuple[Arm, Path]]()
    with tempfile.TemporaryDirectory(prefix="posttrain-ablation-") as folder, ThreadPoolExecutor(jobs) as pool:

        def begin(name: str, arm: Arm, targets: tuple[str, ...], start: Path | None) -> Future[Path]:
            return pool.submit(play, Clone(name, arm.variant.knobs, targets), Path(folder), start)

        shared: dict[Future[Path], str] = {}
        running: dict[Future[Path], Arm] = {}
        names = {seed: shared_name(own[0]) for seed, own in by_seed.items()}
        own_of = {names[seed]: own for seed, own in by_seed.items()}
        while seeds or ready or shared or running:
            while len(shared) + len(running) < jobs and (seeds or ready):
                if seeds and len(ready) < 2 * jobs:  # a model takes as long as two methods: begun before these run out
                    name = names[seeds.popleft()]
                    kept = done / name if (done / name / "dvc.lock").exists() else None
                    shared[begin(name, own_of[name][0], SHARED, kept)] = name
                else:
                    arm, start = ready.popleft()
                    running[begin(arm.variant.name, arm, OWN, start)] = arm
            ended, _ = wait([*shared, *running], return_when=FIRST_COMPLETED)
            for future in ended:
                if (name := shared.pop(future, "")) and future.exception() is None:
                    keep_done(future.result(), done / name)
                    ready.extend((arm, done / name) for arm in own_of[name])
                    shutil.rmtree(future.result(), ignore_errors=True)
                elif name:
                    progress.failed |= {
                        arm.variant.name: f"its SFT model: {future.exception()}" for arm in own_of[name]
                    }
                else:
                    _take(future, running.pop(future), progress, read)
                    keep(progress.records)
    return progress


def shared_name(arm: Arm) -> str:
    """Of what is done before the policy's training: one of all methods of a seed, and of regimes
    that differ in nothing but the budget."""
    knobs = {
        key: value for key, value in arm.variant.knobs.items() if key.partition(".")[0] not in ("train_policy", "seed")
    }
    digest = hashlib.sha256(json.dumps(knobs, sort_keys=True).encode()).hexdigest()[:8]
    return f"shared-{digest}-seed{arm.seed}"


def _take(future: Future[Path], arm: Arm, progress: Progress, read: Read) -> None:
    name = arm.variant.name
    try:
        copy = future.result()
        progress.records[name] = read(copy, arm)
    except (subprocess.CalledProcessError, DataError) as error:
        progress.failed[name] = str(error)
        print(f"{name}: failed: {error}", flush=True)
        return
    shutil.rmtree(copy, ignore_errors=True)
    print(f"{name}: {progress.records[name].told()}", flush=True)


def main() -> None:
    study = read_study(REPOSITORY)
    parser = argparse.ArgumentParser("benchmarks.ablation", description="Methods x seeds in a regime, and their table.")
    parser.add_argument("--regime", default=study.laptop.regime, help=f"of {', '.join(study.regimes)}")
    parser.add_argument("--methods", default=",".join(study.laptop.methods), help="names with commas between, or all")
    parser.add_argument("--seeds", default=",".join(map(str, study.laptop.seeds)), help="1,2,3 or 1-3")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each uses one core and up to 1.5 GiB")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what is on record")
    given = parser.parse_args()
    try:
        raise SystemExit(_run(study, given))
    except StageError as error:
        print(error)
        raise SystemExit(error.code) from error


def _run(study: Study, given: argparse.Namespace) -> int:
    params = file_at(REPOSITORY, "HEAD", "params.yaml") or ""
    methods = parse_methods(study, given.methods)
    wanted = arms(study, given.regime, methods, parse_seeds(given.seeds), params)
    file = record_file(REPOSITORY, given.regime)
    known, code = read_arms(file), code_digest(REPOSITORY)
    if given.table:
        _tell(study, given.regime, known, params)
        return 0
    if edited := edited_files(REPOSITORY, "posttrain", "stages", "dvc.yaml", "params.yaml"):
        print(f"the last commit is run, without your edits of {', '.join(edited[:10])}", flush=True)
    todo = missing(wanted, known, params=params, code=code)
    print(f"{len(wanted)} runs, of which {len(wanted) - len(todo)} are on record", flush=True)
    done = REPOSITORY / STATE_DIR / "ablation"
    progress = run_ablation(todo, known, jobs=given.jobs, done=done, keep=lambda records: write_arms(file, records))
    for name, why in progress.failed.items():
        print(f"{name} failed, see .posttrain/arms: {why}", flush=True)
    _tell(study, given.regime, progress.records, params)
    return 1 if progress.failed else 0


def _tell(study: Study, regime: str, records: dict[str, ArmRecord], params: str) -> None:
    text = table_markdown(make_table(study, regime, records, params=params), study)
    page = record_file(REPOSITORY, regime).with_suffix(".md")
    page.write_text(text, encoding="utf-8")
    print(f"\n{text}\n{page.relative_to(REPOSITORY)}", flush=True)


if __name__ == "__main__":
    main()
