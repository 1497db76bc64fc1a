"""Runs stages one after the other in the working folder, each in a process forked from this one.

Importing torch, transformers and TRL is half of a small stage's time, and is done here once. It is
`python -m stages.NAME ITEM` for each: DVC neither caches nor records the results.

    python -m posttrain.pipeline.forked_stages NAME [NAME@ITEM …]
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

from posttrain.runtime.plain_yaml import load_yaml

LIBRARIES = ("torch", "transformers", "datasets", "peft", "trl", "sklearn", "pyarrow.parquet")


def run_forked(stage: str) -> int:
    """The stage's exit code. Nothing has been computed here, so the fork has no threads to lose."""
    name, _, item = stage.partition("@")
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.argv = [name, *filter(None, [item])]
    runpy.run_module(f"stages.{name}", run_name="__main__")
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Says of each stage what it does; exits with the code of the first that fails."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    sys.path.insert(0, os.getcwd())
    for library in LIBRARIES:
        importlib.import_module(library)
    stages = load_yaml(Path("dvc.yaml").read_text(encoding="utf-8"), "dvc.yaml")["stages"]
    for stage in sys.argv[1:]:
        entry = stages[stage.partition("@")[0]]
        print(f"\n{stage}: {entry.get('do', entry)['desc']}", file=sys.stderr, flush=True)
        if code := run_forked(stage):
            sys.exit(code)


if __name__ == "__main__":
    main()
