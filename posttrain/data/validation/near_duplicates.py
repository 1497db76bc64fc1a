"""Whether one question is another with something around it, looked up among thousands.

Two texts are alike where one contains the other and the inner one is most of the outer one, or is
so long that no two people write it by chance.
"""

from collections.abc import Iterable

MIN_BYTES = 12  # of UTF-8, four Han characters or twelve letters; shorter texts are compared whole
MIN_FRAC = 0.5  # of the outer text
LONG_BYTES = 96  # of an inner text that counts in an outer one of any length


class HeldOutTexts:
    """Texts without white space and punctuation, by their pieces of MIN_BYTES bytes: what contains
    a text has its rarest piece, and what it contains has none that is not one of its pieces."""

    def __init__(self, texts: Iterable[str]) -> None:
        distinct = sorted({text.encode() for text in texts})
        self._whole = frozenset(distinct)
        self._having: dict[bytes, list[bytes]] = {}
        for text in distinct:
            for piece in dict.fromkeys(_pieces(text)):
                self._having.setdefault(piece, []).append(text)
        self._by_rarest: dict[bytes, list[bytes]] = {}
        for text in distinct:
            if pieces := _pieces(text):
                self._by_rarest.setdefault(min(pieces, key=self._num_having), []).append(text)

    def has(self, text: str) -> bool:
        """Whether one of them is alike."""
        own = text.encode()
        pieces = _pieces(own)
        if own in self._whole or not pieces:
            return own in self._whole
        inner = (held for piece in dict.fromkeys(pieces) for held in self._by_rarest.get(piece, ()))
        outer = self._having.get(min(pieces, key=self._num_having), ())
        return any(_contains(own, held) for held in inner) or any(_contains(held, own) for held in outer)

    def _num_having(self, piece: bytes) -> int:
        return len(self._having.get(piece, ()))


def _pieces(text: bytes) -> list[bytes]:
    return [text[start : start + MIN_BYTES] for start in range(len(text) - MIN_BYTES + 1)]


def _contains(outer: bytes, inner: bytes) -> bool:
    return (len(inner) >= MIN_FRAC * len(outer) or len(inner) >= LONG_BYTES) and inner in outer
