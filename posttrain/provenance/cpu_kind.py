"""Names the kind of processor that computes: on one kind results are the same bytes, and another
kind rounds some sums otherwise."""

import platform
import re
from pathlib import Path

_CPUS = Path("/proc/cpuinfo")  # absent outside Linux
_MAKERS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
# The libraries choose their code by these, the first that is there.
_INSTRUCTIONS = {
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


def processor_kind(cpus: Path = _CPUS) -> str:
    """Maker and instruction set, such as `AMD, AVX-512 with bfloat16`; the architecture's name
    where there is no such list of processors."""
    text = cpus.read_text(encoding="utf-8") if cpus.exists() else ""
    maker = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)", text, re.MULTILINE)
    if maker is None or flags is None:
        return platform.machine()
    has = set(flags[1].split())
    instructions = next((name for flag, name in _INSTRUCTIONS.items() if flag in has), platform.machine())
    return f"{_MAKERS.get(maker[1], maker[1])}, {instructions}"
