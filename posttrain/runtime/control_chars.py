"""Escapes characters that a reader cannot see or that act on a terminal: ESC becomes `⟨U+001B⟩`.

A transcript is what a model and a world wrote, not what we wrote: with control characters it could
steer a terminal, with those that turn the direction of writing around dress up as the page that
shows it, and with invisible ones say something to a model that a person does not read.
"""

import re
from typing import Any

# C0 but tab and newline, DEL, C1; soft hyphen; Arabic letter mark; Mongolian vowel separator; zero
# width and direction marks; line and paragraph separators, embeddings and overrides; invisible
# operators and isolates; byte order mark; annotations; no characters; tags; halves of pairs
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f\ud800-\udfff]"
)


def escape_control_chars(text: str) -> str:
    """Tabs and newlines stay; Windows' line ends become newlines."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """The text escaped and in one line: a name with a newline could pass for the line after it."""
    return escape_control_chars(text).replace("\n", "⟨U+000A⟩")


def visible_on_page(value: Any) -> Any:
    """For jinja2's `finalize`: every text that a template is given; markup, which a template or a
    chart of ours made, stays."""
    return escape_control_chars(value) if type(value) is str else value
