"""One line that says how far a stage is: rewritten in its place on a terminal, a new one every few
seconds elsewhere.

Flows read the lines of a job's log by the form `[train_sft] 120/800  …`
(`posttrain/pipeline/run_status.py`).
"""

import os
import sys
import time

from posttrain.provenance.eta import WholeRun, read_whole_run

_TERMINAL_EVERY_S, _LOG_EVERY_S = 0.5, 5.0
_CLEAR = "\x1b[2K"  # the line that the cursor stands in


class Progress:
    """Of one stage, which may count several loops one after the other; the furthest is its share of
    the whole run."""

    def __init__(self, run: WholeRun | None = None) -> None:
        self._run = run or read_whole_run()
        self._is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_s: float | None = None
        self._begun, self._began_s = 0, 0.0  # of this loop: one that is gone on with does not begin at 0
        self._last, self._share = (0, 0), 0.0

    def show(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Print `[stage] done/total  rate  time left  the run's share and time left  note`.

        Not more often than a reader needs, and always at the end of a loop."""
        now_s = time.monotonic()
        if self._last[1] != total or done < self._last[0]:
            self._begun, self._began_s = done, now_s
        elif done == self._last[0] == total:
            return  # told
        self._last, self._share = (done, total), max(self._share, done / total if total else 0.0)
        every_s = _TERMINAL_EVERY_S if self._is_terminal else _LOG_EVERY_S
        if done < total and self._shown_s is not None and now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        rate = (done - self._begun) / max(now_s - self._began_s, 1e-9)
        left_s = (total - done) / rate if rate > 0 else None
        left = "…" if left_s is None else f"{left_s:.0f} s left"
        told = [f"[{stage}] {done}/{total}", f"{rate:.1f}/s", left, self._run.words(stage, self._share, left_s), note]
        self._print("  ".join(filter(None, told)))

    def end(self) -> None:
        """Leave a terminal's line empty for what comes after."""
        if self._is_terminal and self._shown_s is not None:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _print(self, line: str) -> None:
        if self._is_terminal:  # cut, because a line that is broken in two cannot be rewritten
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print(f"{_CLEAR}{line[: width - 1]}", end="\r", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
