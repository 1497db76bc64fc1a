"""Escapes special tokens in texts of users, tools and system messages.

A tokenizer turns `<|im_end|>` into the token that ends a message wherever it stands, so a user who
writes it could forge a turn. So BREAK is put into such a text before a template renders it, and the
rendered text is cut at every BREAK before it is tokenised: what was written comes out in ordinary
tokens. An agent's message may contain the special tokens of reasoning and calls, and no others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posttrain.models.call_formats.format import ToolCallFormat
from posttrain.models.chat_template import THOUGHT

# Comes out of any template and of JSON as it went in. No end of it is a beginning of it, so that
# escaping a text that contains it makes no further one.
BREAK = "break7d2a9c"
_BRACKETED = re.compile(r"\s*[^\w\s].*[^\w\s]\s*", re.DOTALL)


class SpecialTokenEscape:
    """Escapes a tokenizer's special tokens, and those other added ones in brackets that its
    template or an agent's message contains. An added token may be a tool's name, which is not
    escaped."""

    def __init__(self, tokenizer: Any, call_format: ToolCallFormat, thought: tuple[str, str] = THOUGHT) -> None:
        agents = {*thought, *call_format.markers}
        special = set(tokenizer.all_special_tokens)
        template = str(tokenizer.chat_template)
        for added in tokenizer.added_tokens_decoder.values():
            text = added.content
            if added.special or (_BRACKETED.fullmatch(text) and (text in template or text in agents)):
                special.add(text)
        self._tokens = _any_of(special)
        self._not_agents = _any_of(special - agents)

    def escape(self, text: str) -> str:
        """`text` with a BREAK in each special token."""
        return self._tokens.sub(_break_token, text)

    def escape_agent(self, text: str) -> str:
        """The same but for the tokens of reasoning and calls."""
        return self._not_agents.sub(_break_token, text)

    def escape_json(self, value: Any) -> Any:
        """Escapes every text in a JSON value, keys included."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self.escape_json(key): self.escape_json(inner) for key, inner in value.items()}
        return [self.escape_json(inner) for inner in value] if isinstance(value, Sequence) else value


def _any_of(tokens: Collection[str]) -> re.Pattern[str]:
    """A pattern of these tokens, longer ones first, and of BREAK, so that cutting gives back a
    text that contains it."""
    ordered = sorted((token for token in tokens if token.strip()), key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, [*ordered, BREAK])))


def _break_token(token: re.Match[str]) -> str:
    return token[0][:1] + BREAK + token[0][1:]
