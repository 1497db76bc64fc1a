"""Opens model folders as strangers could leave them, and shows what is said of each, in how many
seconds, with how much memory.

    python -m benchmarks.hostile_models [--only PART_OF_A_NAME]

Exits with 1 where one is opened, takes 20 seconds or 2 GiB, or ends with more than a sentence.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from posttrain.models.loading import load_pretrained
from posttrain.models.params import FullAdapter, PretrainedModel
from posttrain.runtime.exits import StageError
from tests.models.conftest import write_qwen_folder
from tests.models.hostile_folders import HOSTILE, hostile_folder

MAX_S, MAX_MIB = 20.0, 2_048.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    chosen = [name for name in HOSTILE if parser.parse_args().only in name]
    with tempfile.TemporaryDirectory() as scratch:
        good = write_qwen_folder(Path(scratch) / "good")
        started_s = time.monotonic()
        _open(good)
        print(f"a good folder: {time.monotonic() - started_s:.2f} s\n")
        faults, slowest_s = 0, 0.0
        for number, name in enumerate(chosen):
            folder = hostile_folder(name, good, Path(scratch) / f"model-{number}")
            started_s = time.monotonic()
            said = _open(folder)
            seconds = time.monotonic() - started_s
            faults += not (said and "\n" not in said and seconds < MAX_S)
            slowest_s = max(slowest_s, seconds)
            print(f"{name}: {seconds:.1f} s, {_peak_mib():.0f} MiB so far: {said or 'OPENED'}", flush=True)
    print(f"\n{len(chosen)} folders, {faults} faults, slowest {slowest_s:.1f} s, peak {_peak_mib():.0f} MiB")
    return 1 if faults or _peak_mib() > MAX_MIB else 0


def _open(folder: Path) -> str:
    params = PretrainedModel(
        type="pretrained",
        name=str(folder),
        adapter=FullAdapter(type="full"),
        gradient_checkpointing=False,
        dtype="float32",
    )
    try:
        load_pretrained(params)
    except StageError as error:
        return str(error)
    return ""


def _peak_mib() -> float:
    """Memory of this process and of each of its children."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


if __name__ == "__main__":
    sys.exit(main())
