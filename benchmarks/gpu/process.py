"""Process that `processes` launches: runs a few steps of SFT and prints their losses."""

import json
import sys
from pathlib import Path

from benchmarks.gpu.ground import Ground
from benchmarks.gpu.processes import LOSSES, backend, losses

if __name__ == "__main__":
    found = losses(Ground(Path(sys.argv[1]), is_small="--small" in sys.argv))
    print(LOSSES + json.dumps({"losses": found, "backend": backend()}), flush=True)
