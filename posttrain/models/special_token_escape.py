"""Keeps what users, tools and system texts say from becoming control tokens.

A tokenizer turns `<|im_end|>` into the token that ends a message wherever it stands, also in a
user's words, and whoever can write it could forge a turn. A template is rendered as text, in which
nobody can tell the two apart any more; so such a mark gets a break put into it before it is
rendered, and the text is cut at the breaks before it is tokenised. Text without marks is not
touched and has the tokens that it always had; text with one reads as it was written, in ordinary
tokens. What an agent says, or a program in its name, has marks of its own (`<think>`,
`<tool_call>`) and is kept from all others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posttrain.models.call_formats.format import ToolCallFormat
from posttrain.models.chat_template import THOUGHT

# comes out of any template and of JSON as it went in; no end of it is a beginning of it, so that
# breaking a text that has it makes no further one
BREAK = "break7d2a9c"
_BRACKETED = re.compile(r"\s*[^\w\s].*[^\w\s]\s*", re.DOTALL)


class ControlMarks:
    """The texts that one tokenizer with its template gives a meaning: its special tokens, and of
    its other added ones those in brackets that the template writes or that an agent's message is
    made of. The name of a tool may be an added token and is none."""

    def __init__(self, tokenizer: Any, form: ToolCallFormat, thought: tuple[str, str] = THOUGHT) -> None:
        agents = {*thought, *form.marks}
        known = set(tokenizer.all_special_tokens)
        written = str(tokenizer.chat_template)
        folded = set()
        for added in tokenizer.added_tokens_decoder.values():
            text = added.content
            if added.special or (_BRACKETED.fullmatch(text) and (text in written or text in agents)):
                known.add(text)
                folded |= {text} if added.normalized else set()
        self._marks = _any_of(known)
        self._not_agents = _any_of(known - agents)
        # of tokens that are looked for in normalised text (full-width letters, capitals)
        self._folded = re.compile("|".join(map(re.escape, sorted(folded)))) if folded else None
        self._normalizer = tokenizer.backend_tokenizer.normalizer

    def broken(self, text: str) -> str:
        """`text` with a BREAK in each mark; the same object where it has none."""
        if self._folded and self._normalizer and self._folded.search(normal := self._normalizer.normalize_str(text)):
            text = normal
        return self._marks.sub(_broken, text)

    def broken_in_own(self, text: str) -> str:
        """The same for what an agent says: only the marks of a thought and of a call are its."""
        return self._not_agents.sub(_broken, text)

    def broken_in(self, value: Any) -> Any:
        """The same of every text in a JSON value, keys included."""
        if isinstance(value, str):
            return self.broken(value)
        if isinstance(value, Mapping):
            return {self.broken_in(key): self.broken_in(inner) for key, inner in value.items()}
        return [self.broken_in(inner) for inner in value] if isinstance(value, Sequence) else value


def _any_of(marks: Collection[str]) -> re.Pattern[str]:
    """Longer ones first; a text that speaks of BREAK is broken as well, so that cutting it there
    gives it back."""
    listed = sorted((mark for mark in marks if mark.strip()), key=lambda mark: (-len(mark), mark))
    return re.compile("|".join(map(re.escape, [*listed, BREAK])))


def _broken(mark: re.Match[str]) -> str:
    return mark[0][:1] + BREAK + mark[0][1:]
