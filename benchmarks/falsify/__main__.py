"""Tries to falsify `dvc.lock`: an entry must never bind a result to inputs that it was not made
from.

`python -m benchmarks.falsify edits|reaches|kills|together|flips [--num N] [--seed S]
[--jobs J] [--json FILE]`. All but kills are of the toy tree in `benchmarks/toy_tree.py`, run by
`dvc repro` and by the `StageExecutor` of flows; kills are of the whole graph of this repository
with knobs so small that it takes a minute. `reaches` are edits of what lies outside of the inputs:
the copy, a shared cache, dvc.lock. `together` kills DVC, its watchdog and the stage in one moment.
Ends with 1 where anything false survived.

`edits --no-receipts` tests the trials themselves: nobody compares receipts with `dvc.lock`, so
false entries must be found.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from benchmarks.falsify.edits import try_edits
from benchmarks.falsify.flips import try_flips
from benchmarks.falsify.kills import try_kills
from benchmarks.falsify.reaches import try_reaches
from benchmarks.falsify.together import try_together


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.falsify", description=__doc__)
    parser.add_argument("what", choices=["edits", "reaches", "kills", "together", "flips"])
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="of edits, beside each other")
    parser.add_argument(
        "--no-receipts", action="store_true", help="of edits: nobody corrects dvc.lock, so false entries must be found"
    )
    parser.add_argument("--json", type=Path, help="the trials, a list")
    given = parser.parse_args()
    match given.what:
        case "edits":
            trials = try_edits(given.num, given.seed, given.jobs, has_receipts=not given.no_receipts)
            false = [one for one in trials if one["false_after_next"]]
            bad = not false if given.no_receipts else false or [one for one in trials if one["again"][-1]]
            counted = ("in_time", "corrected", "refused", "false_after_first", "false_after_next")
            print(
                f"{len(trials)} edits: "
                + ", ".join(f"{sum(bool(one[word]) for one in trials)} {word}" for word in counted)
            )
        case "reaches":
            trials = try_reaches(given.num, given.seed)
            bad = [one for one in trials if one["false"]]
            print(
                f"{len(trials)} reaches: {sum(one['seen'] for one in trials)} seen, {len(bad)} false; "
                f"{dict(Counter(one['kind'] for one in trials))}"
            )
        case "kills":
            trials = try_kills(given.num, given.seed)
            bad = [one for one in trials if not one["same"]]
            print(
                f"{len(trials)} kills: {len(trials) - len(bad)} reached the same bytes; "
                f"{dict(Counter(one['moment'] for one in trials))}"
            )
        case "together":
            trials = try_together(given.num, given.seed)
            bad = [one for one in trials if one["false"] or one["again"] or one["left"]]
            num_mended = sum(one["is_mended"] for one in trials)
            print(f"{len(trials)} kills of all at once: {num_mended} mended, {len(bad)} needed more")
        case _:
            trials = try_flips(given.num, given.seed)
            bad = [one for one in trials if one["used"] or one["codes"][-1]]
            print(f"{len(trials)} damaged objects: {sum(one['used'] for one in trials)} used")
    if given.json:
        given.json.write_text(json.dumps(trials, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
