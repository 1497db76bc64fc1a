"""`tiny_stage` in a folder of its own, in one process or in several, as DVC would start it."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def prepare(root: Path, **what):
    """The folder with what the stage reads."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    (root / "dvc.yaml").write_text(
        "stages: {tiny_stage: {cmd: python -m tiny_stage, deps: [inputs], params: [seed]}}\n"
    )
    (root / "inputs").touch()
    (root / "what.json").write_text(
        json.dumps(what)
    )  # no dep: a run that is to die has the checkpoints of one that is not
    (root / "step").unlink(missing_ok=True)
    return root


def start(root: Path, config: str | None = None, *, nodes: int = 1, num: int = 2, url: str = "", sync="disk", **what):
    """The frame. `config` names a file of infra/accelerate/, for `num` processes. Of several
    `nodes` each has one process, and a follower on all but the first (`follow`)."""
    prepare(root, **what)
    environment = environment_of(config) | ({"POSTTRAIN_PROCESSES": str(num)} if config else {})
    if url:
        environment |= {"POSTTRAIN_ENGINE": "vllm", "POSTTRAIN_VLLM_URLS": url, "POSTTRAIN_VLLM_SYNC": sync}
    if nodes > 1:
        environment |= {"POSTTRAIN_NODES": str(nodes), "POSTTRAIN_PROCESSES": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tiny_stage"], cwd=root, env=environment, stderr=subprocess.PIPE, text=True
    )


def follow(root: Path):
    """A further node, which is this machine too."""
    (root / ".posttrain").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "posttrain.provenance.follower"]
    return subprocess.Popen(command, cwd=root, env=environment_of(), stderr=subprocess.PIPE, text=True)


def environment_of(config: str | None = None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("POSTTRAIN_", "PYTEST_"))}
    environment |= {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{HERE}", "POSTTRAIN_THREADS": "1"}
    if config:
        environment["POSTTRAIN_LAUNCH"] = str(REPOSITORY / "infra" / "accelerate" / f"{config}.yaml")
    return environment


def finish(process):
    """Exit code and what it said."""
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def run(root: Path, config: str | None = None, **what):
    """The result of a run that ends well."""
    code, errors = finish(start(root, config, **what))
    assert code == 0, errors
    return json.loads((root / "result.json").read_text())


def episodes(root: Path, step: int):
    """Those of a step, in the order of the step."""
    lines = [json.loads(line) for line in (root / "episodes.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"] == step]


def first_steps(root: Path):
    """The first step of each launch, in their order."""
    firsts = {}
    for line in (root / "steps").read_text().splitlines():
        pid, step = line.split()
        firsts.setdefault(pid, int(step))
    return list(firsts.values())
