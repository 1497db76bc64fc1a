"""Runs stages one after the other in the working folder, each in a process forked from this one.

Importing torch, transformers and TRL is half of a small stage's time, and is done here once. It is
`python -m stages.NAME ITEM` for each: DVC neither caches nor records the results.

    python -m posttrain.pipeline.forked_stages NAME [NAME@ITEM …]
"""

import importlib
import os
import runpy
import sys

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
    """Exits with the code of the first stage that fails."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    sys.path.insert(0, os.getcwd())
    for library in LIBRARIES:
        importlib.import_module(library)
    for stage in sys.argv[1:]:
        if code := run_forked(stage):
            sys.exit(code)


if __name__ == "__main__":
    main()
