"""transformers says of a head that is new by design what it says of a damaged checkpoint: that is
left out, all else of its report of loaded weights stays."""

import logging
import re

_NEW_HEAD = ("score.weight", "MISSING")  # of a reward model that begins as a causal LM; set to zero once it is loaded
_OLD_HEAD = ("lm_head.weight", "UNEXPECTED")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def leave_out_new_heads() -> None:
    """From what this process logs from now on."""
    logging.getLogger("transformers.modeling_utils").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = _COLORS.sub("", record.getMessage())
    if "LOAD REPORT" not in text:
        return True
    rows = [tuple(cell.strip() for cell in line.split("|")[:2]) for line in text.splitlines() if "|" in line]
    return set(rows) - {("Key", "Status"), _OLD_HEAD} != {_NEW_HEAD}
