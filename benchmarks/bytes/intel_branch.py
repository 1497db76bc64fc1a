"""MKL's branch for Intel's processors, on a processor of another maker.

MKL asks the processor for its maker before it asks for AVX2, and no variable of the environment
changes the answer: `MKL_CBWR=AVX2` holds on Intel's alone. The function that answers is an exported
one of torch's library, and its first bytes are overwritten here, in this process's memory only. Not
documented by Intel, so it stands in a benchmark, which shows what it would give.
"""

import ctypes
import mmap
from pathlib import Path

import torch

_ASKED = ("mkl_serv_intel_cpu_true", "mkl_serv_intel_cpu")
_RETURN_ONE = bytes.fromhex("b801000000c3")  # mov eax, 1; ret
_PAGE = mmap.PAGESIZE


def take_intel_branch() -> None:
    """Before the first operation of this process that MKL computes. Linux on x86-64 with AVX2."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for name in _ASKED:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        page = address - address % _PAGE
        size = address + len(_RETURN_ONE) - page
        assert protect(page, size, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) == 0, ctypes.get_errno()
        ctypes.memmove(address, _RETURN_ONE, len(_RETURN_ONE))
        assert protect(page, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0, ctypes.get_errno()
