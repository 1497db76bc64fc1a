"""Plays against MCP servers and environment servers that misbehave, each in a process of its own:
what is said of it, how long that takes and how much memory.

    python -m benchmarks.hostile_servers              all of them
    python -m benchmarks.hostile_servers mcp.silent   these alone

The exit code is 1 where one is not told as it should be, takes 20 s or more, or 2 GiB.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

from tests.worlds.hostile_plays import WANTED, sentence_of

MAX_S, MAX_MIB = 20.0, 2048.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of servers; all by default")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return _play(arguments.names[0])
    num_wrong = sum(not _is_held(name) for name in arguments.names or WANTED)
    print(f"{num_wrong} of {len(arguments.names or WANTED)} are not held")
    return int(num_wrong > 0)


def _is_held(name: str) -> bool:
    """In another process, whose peak of memory is this play's."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile_servers", "--one", name],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    try:
        said, seconds, mib = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said, seconds, mib = f"(exit code {done.returncode}) {done.stderr[-400:]}", 0.0, 0.0
        print(f"CRASH {name:24} {said}")
        return False
    is_held = WANTED[name] in said and seconds < MAX_S and mib < MAX_MIB
    print(
        f"{'held ' if is_held else 'WRONG'} {name:24} {seconds:5.1f} s {mib:6.0f} MiB  {' '.join(said.split())[:300]}"
    )
    return is_held


def _play(name: str) -> int:
    start_s = time.perf_counter()
    said = sentence_of(name)
    seconds = time.perf_counter() - start_s
    print(json.dumps([said, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
