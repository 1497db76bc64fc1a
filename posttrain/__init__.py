"""Post-train a tool-using LLM agent, and know whether it got better."""

import logging
import os

# Read once, when torch is loaded: how long a thread that waits for another one spins before it
# sleeps. By default long enough to take a core away from other programs for good; this is just
# enough for two threads on two idle cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# TRL and PEFT import it whether or not anything is quantised, and on some processors it then warns
# that an optional package with faster kernels is missing
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
