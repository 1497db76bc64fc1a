"""Measures a process reward model: `python -m benchmarks.process_model [--data data]`.

Runs the stage `train_process_model` on the SFT model and the tasks of a finished run, whatever
credit its policy has, in a folder of its own. Prints calibration, both AUCs (value, interval over
tasks) beside their baselines, and the tokens that labels took.
"""

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path

from posttrain.config.params import Params, parse_params, read_knobs, set_knobs
from posttrain.provenance.runner import StageRun
from posttrain.train.advantages.process_model import ProcessModelCredit
from stages.train_process_model import SUMMARY, train_process_model


def asked(path: Path, changes: dict[str, object]) -> Params:
    """The knobs of a file with credit by the process model and `changes` of its own section."""
    content = read_knobs(path.read_bytes(), source=str(path))
    credit = {"type": "process_model", **read_knobs(ProcessModelCredit.example, source="the example")}
    knobs = {f"train_process_model.{key}": value for key, value in changes.items()}
    list(
        set_knobs(
            content,
            {"train_policy.begin_with": None, "train_policy.algorithm.credit": credit, **knobs},
            source="the benchmark",
        )
    )
    return parse_params(content, source=str(path))


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.process_model", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="of a finished run")
    parser.add_argument("--set", nargs="*", default=[], metavar="KNOB=VALUE", help="of train_process_model")
    given = parser.parse_args()
    changes = {key: json.loads(value) for key, _, value in (one.partition("=") for one in given.set)}
    params, begun = asked(Path("params.yaml"), changes), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        (data / "models").mkdir(parents=True)
        for name in ("raw", "models/sft"):
            (data / name).symlink_to(given.data.resolve() / name)
        with contextlib.chdir(folder):
            train_process_model(StageRun("train_process_model", "", params, Path(folder) / "checkpoints"))
            summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    for name, value in summary.items():
        print(name, json.dumps(value))
    print("seconds", round(time.monotonic() - begun))


if __name__ == "__main__":
    main()
