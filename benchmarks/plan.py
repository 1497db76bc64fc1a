"""Holds `posttrain plan` against what `dvc repro` then runs, and its times against the clock, for
five kinds of edits.

In a copy of the working tree with small knobs, where everything has run once: no edit, a learning
rate, the type of oversampling, a comment, a file of code, and each taken back. Exits with 1 where
the plan left out a stage that ran, or was certain of one that did not. A stage that the plan was
not certain of counts in its time.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.arms import environment_of, make_small_copy
from posttrain.pipeline.plan import Fate, read_plan

MORE_PAIRS = {
    "sample_preferences.num_tasks": 16,
    "sample_preferences.num_samples": 8,
}  # of a model that learns less, too
EDITS = {
    "none": ("params.yaml", "", ""),
    "lr": ("params.yaml", "lr: 0.006", "lr: 0.003"),
    "oversample type": ("params.yaml", "type: smote", "type: duplicate"),
    "a comment": ("params.yaml", "seed: 1", "seed: 1  # of every draw"),
    "a code file": ("posttrain/rewards/agent_actions.py", '"""', '"""Edited. '),
}
SAID = {
    r"Running stage '(.*)':": Fate.RUNS,
    r"Stage '(.*)' is cached - skip": Fate.CACHED,
    r"Stage '(.*)' didn't change": Fate.CURRENT,
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="posttrain-plan-") as folder:
        root = make_small_copy(Path(folder), MORE_PAIRS)
        repro(root)
        print(f"{'edit':28} {'planned':>9} {'took':>7}  stages", flush=True)
        are_right = []
        for name, (file, old, new) in EDITS.items():
            are_right.append(compare(root, name, file, old, new))
            are_right.append(compare(root, f"{name}, taken back", file, new, old))
    sys.exit(0 if all(are_right) else 1)


def compare(root: Path, name: str, file: str, old: str, new: str) -> bool:
    """Make the edit, plan, and run; whether the plan was right."""
    text = (root / file).read_text(encoding="utf-8")
    assert old in text, f"{file} has no {old!r} any more"
    (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    environment = environment_of(root)
    plan = read_plan(root)
    told = subprocess.run(["posttrain", "plan"], cwd=root, env=environment, check=True, capture_output=True, text=True)
    about = re.search(r"stages? \((?:over )?(.+?)\)", told.stdout)
    started_s = time.monotonic()
    did = repro(root)
    took_s = time.monotonic() - started_s
    wrong = [stage.name for stage in plan if stage.fate not in (did[stage.name], Fate.MAYBE)]
    unsure = [f"{stage.name} ({did[stage.name]})" for stage in plan if stage.fate is Fate.MAYBE]
    certain = [f"{stage.name} ({stage.fate})" for stage in plan if stage.fate not in (Fate.CURRENT, Fate.MAYBE)]
    fates = f"certain: {', '.join(certain) or 'none'}; maybe: {', '.join(unsure) or 'none'}"
    planned = about[1] if about else "nothing"
    print(f"{name:28} {planned:>9} {took_s:5.1f} s  {fates}{f'; WRONG: {wrong}' * bool(wrong)}", flush=True)
    return not wrong


def repro(root: Path) -> dict[str, Fate]:
    """What `dvc repro` says that it does, by stage."""
    environment = {**environment_of(root), "WANDB_MODE": "disabled"}
    done = subprocess.run(["dvc", "repro"], cwd=root, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return {name: fate for pattern, fate in SAID.items() for name in re.findall(pattern, done.stdout)}


if __name__ == "__main__":
    main()
