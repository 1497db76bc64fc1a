"""What one process computes under the environment that it was started in: a JSON object in its last
line of output."""

import argparse
import json
import sys
import time
from typing import Any

import torch

from benchmarks.bytes.intel_branch import take_intel_branch
from benchmarks.bytes.operations import digest_operations
from benchmarks.bytes.trainings import FULL, QUICK, digest_trainings
from posttrain.config.params import load_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["processor", "operations", "trainings"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--intel-branch", action="store_true")
    arguments = parser.parse_args()
    if arguments.intel_branch:
        take_intel_branch()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = {}
    match arguments.part:
        case "processor":
            result = _processor()
        case "operations":
            started_s = time.perf_counter()
            result = {"digests": digest_operations()}
            result["seconds"] = {"operations": time.perf_counter() - started_s}
        case "trainings":
            result = {"digests": {}, "seconds": {}}
            for name, weights, seconds in digest_trainings(load_params(), QUICK if arguments.quick else FULL):
                result["digests"][name], result["seconds"][name] = weights, seconds
                print(f"{name}: {weights}, {seconds:.1f} s", file=sys.stderr, flush=True)
    print(json.dumps(result))


def _processor() -> dict[str, Any]:
    """As the `cpuid` instruction has it, which an emulator answers and `/proc/cpuinfo` does not."""
    capabilities = torch.cpu.get_capabilities()
    sets = [name for name in ("avx2", "fma3", "avx512_f", "avx512_bf16", "amx_tile") if capabilities.get(name)]
    return {"cpu_name": capabilities["cpu_name"], "instruction_sets": sets}


if __name__ == "__main__":
    main()
