"""Post-train a tool-using LLM agent, and know whether it got better."""

import importlib
import logging
import os
from typing import Any

# Read once, when torch is loaded: how long a thread that waits for another one spins before it
# sleeps. By default long enough to take a core away from other programs for good; this is just
# enough for two threads on two idle cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# TRL and PEFT import it whether or not anything is quantised, and on some processors it then warns
# that an optional package with faster kernels is missing
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

# The Python API, loaded when one of these is asked for: it needs torch, and most commands do not.
__all__ = ["demonstrate", "evaluate", "load_world", "play", "sft", "train_policy"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("posttrain.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
