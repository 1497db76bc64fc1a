"""Environments of a process that decide which code of torch, MKL, oneDNN, OpenBLAS, numpy and the C
library computes, and so in which order sums are added.

Each must stand before the libraries are loaded. All but `none` ask every library for what a
processor with AVX2 has; they differ in what they ask of MKL, which chooses by maker as well.
"""

from dataclasses import dataclass, field

Environment = dict[str, str]

AVX2: Environment = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's matrix products, on a processor of any maker
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",  # numpy's own loops: what is left is X86_V3, which is AVX2 and FMA
}


@dataclass(frozen=True, slots=True)
class Setting:
    """`takes_intel_branch`: MKL is made to take every processor for one of Intel's."""

    environment: Environment = field(default_factory=dict)
    takes_intel_branch: bool = False


def settings(cpu_name: str) -> dict[str, Setting]:
    """By name; `stages` is what a stage asks for today on a processor of that name.

    `avx2` makes one order of MKL on every processor of Intel's and another on AMD's, where MKL has
    no such branch and keeps its own. `compatible` makes one on both, with SSE2 and without FMA, but
    neither for any number of threads nor for square roots: those begin with `rsqrtps`, whose bits
    are the maker's own. `intel_branch` makes Intel's on both.
    """
    strict = AVX2 | {"MKL_CBWR": "AVX2,STRICT"}
    return {
        "none": Setting(),
        "stages": Setting({"MKL_CBWR": "AUTO,STRICT"} if "Intel" in cpu_name else {}),
        "avx2": Setting(strict),
        "compatible": Setting(AVX2 | {"MKL_CBWR": "COMPATIBLE"}),
        "intel_branch": Setting(strict, takes_intel_branch=True),
    }
