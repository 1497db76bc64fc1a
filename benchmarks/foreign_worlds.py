"""Holds our graders of other people's worlds against theirs: every gold play, and thousands of
plays with something changed in them.

    python -m benchmarks.foreign_worlds            a table, and each play on which they differ
    python -m benchmarks.foreign_worlds --json     {"bfcl": {"num_gold": 800, "gold_ok": 800, …}, …}

A world whose package is not installed is left out and said so on stderr. The exit code is 1 where a
gold play fails or a verdict differs.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Mapping

from benchmarks.foreign.agreement import Agreement
from posttrain.runtime.exits import ConfigurationError

# name of the world: the module whose `measure(per_entry)` plays it
WORLDS: Mapping[str, str] = {
    "bfcl": "benchmarks.foreign.bfcl",
    "tau2": "benchmarks.foreign.tau2",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--world", choices=sorted(WORLDS), action="append", help="only this one; may be repeated")
    parser.add_argument("--per-entry", type=int, default=5, help="mutated plays of each entry, of different kinds")
    arguments = parser.parse_args()
    found: dict[str, Agreement] = {}
    for name in arguments.world or sorted(WORLDS):
        try:
            found[name] = importlib.import_module(WORLDS[name]).measure(arguments.per_entry)
        except ConfigurationError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    if arguments.json:
        keys = ("num_gold", "gold_ok", "num_mutated", "agree", "accepted")
        print(json.dumps({name: {key: getattr(one, key) for key in keys} for name, one in found.items()}))
    else:
        for name, one in found.items():
            _print_table(name, one)
    is_same = all(one.gold_ok == one.num_gold and one.agree == one.num_mutated for one in found.values())
    return 0 if found and is_same else 1


def _print_table(name: str, one: Agreement) -> None:
    print(f"{name}: {one.gold_ok} of {one.num_gold} gold plays are a success to both;")
    print(f"verdicts agree on {one.agree} of {one.num_mutated} mutated plays, {one.accepted} of which are a success")
    for kind, counted in sorted(one.by_kind.items()):
        print(f"  {kind:16} {counted['plays']:5} plays {counted['accepted']:5} a success {counted['agree']:5} agree")
    for line in one.differences:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
