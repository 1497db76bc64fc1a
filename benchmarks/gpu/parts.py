"""The parts in order of their worth, and how long each may take."""

from dataclasses import dataclass

FOUND = "FOUND "  # begins a line that a part prints of what it found, as JSON


@dataclass(frozen=True, slots=True)
class Part:
    """A module of this package with `find(ground)`, which yields what it found, and the seconds
    after which it is ended; what it had found by then counts."""

    name: str
    seconds: int
    shows: str


PARTS = (
    Part("tokens", 150, "a small model learnt here writes what it writes on the processor: tokens and log-probs"),
    Part("memory", 180, "the memory plan against the measured peak of each stage"),
    Part("pretrained", 180, "SmolLM2 through SFT and learning online to evaluation in both phrasings"),
    Part("speed", 120, "SFT, play and a whole step online against TRL"),
    Part("shapes", 100, "0.5B and 1.5B with random weights: memory, tokens a second"),
    Part("rounding", 50, "log-probs of an engine in bfloat16 against the trainer's"),
    Part("processes", 100, "one process under NCCL, FSDP with offload, ZeRO-2"),
)
