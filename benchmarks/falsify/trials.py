"""Commands under trial, and the printing of a trial."""

import json
import sys
from typing import Any

COMMANDS = {
    "repro": [sys.executable, "-m", "dvc", "repro"],
    "flow": [sys.executable, "-m", "benchmarks.falsify.run_graph"],
}
POLL_S = 0.0005


def show(number: int, trial: dict[str, Any]) -> None:
    print(f"{number}: {json.dumps({name: value for name, value in trial.items() if name != 'said'})}", flush=True)
    if trial.get("said"):
        print(trial["said"], flush=True)
