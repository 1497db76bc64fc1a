"""Checks that a demonstration shares nothing with held-out tasks: their ids, their users' first
words, their entities.

Texts are compared after Unicode NFKC, lower case and removal of white space, punctuation, emoji and
characters without a shape (zero-width spaces, controls), so that neither a full-width letter nor a
trailing full stop hides a copy. A greeting around a question, or before it in a message of its own,
does not make it another one: near duplicates are texts of which one contains the other and the
inner one is most of the outer one, or too long to be written twice by chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.flat import bool_array

# besides what Unicode calls controls: selectors and fillers that have no shape of their own
_IGNORED = r"[\s\pP\pZ\pC\p{So}\p{Sk}\x{034F}\x{115F}\x{1160}\x{3164}\x{FE00}-\x{FE0F}]+"
HELD_OUT_SPLITS = ("dev", "test", "test_paraphrase", "dev_paraphrase", "test_noisy")
TASK_COLUMNS = ("task_id", "split", "messages", "entities")
MIN_BYTES = 12  # of UTF-8, four Han characters or twelve letters; shorter texts must be equal
MIN_FRAC = 0.5  # of the outer text
LONG_BYTES = 96  # an inner text this long counts in an outer one of any length


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Ids and entities of held-out tasks, Arrow arrays, and their users' normalised first texts."""

    task_ids: Any
    texts: "NearDuplicates"
    entities: Any


def held_out_of(tasks: Iterable[pa.Table]) -> HeldOut:
    """`tasks` have TASK_COLUMNS; only those of HELD_OUT_SPLITS count."""
    held_out = [batch.filter(pc.is_in(batch["split"], pa.array(HELD_OUT_SPLITS))) for batch in tasks]
    texts = (text for batch in held_out for text in _first_user_texts(batch).to_pylist())
    ids = {task_id for batch in held_out for task_id in batch["task_id"].to_pylist()}
    entities = {one for batch in held_out for those in batch["entities"].to_pylist() for one in those or ()}
    return HeldOut(
        pa.array(ids - {None}, pa.string()),
        NearDuplicates(text for text in texts if text),
        pa.array(entities - {None}, pa.string()),
    )


def check_leaks(rows: pa.Table, held_out: HeldOut) -> dict[str, NDArray[np.bool_]]:
    """Columns of the table of trajectories, shape (N,), True where nothing is shared; `rows` have
    task_id, messages and entities."""
    shared = bool_array(pc.is_in(pc.list_flatten(rows["entities"]), held_out.entities))
    parents = pc.list_parent_indices(rows["entities"]).to_numpy()
    return {
        "is_new_task": ~bool_array(pc.is_in(rows["task_id"], held_out.task_ids)),
        "is_new_text": _has_new_texts(rows, held_out.texts),
        "has_new_entities": np.bincount(parents[shared], minlength=rows.num_rows) == 0,
    }


class NearDuplicates:
    """Index of normalised texts that finds near duplicates without comparing all pairs.

    Each text is cut into its pieces of MIN_BYTES bytes. A text that contains a known one has the
    known one's rarest piece; one that is contained in a known text has only pieces of that text.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        distinct = sorted({text.encode() for text in texts})
        self._exact = frozenset(distinct)
        self._by_piece: dict[bytes, list[bytes]] = {}
        for text in distinct:
            for piece in dict.fromkeys(_pieces(text)):
                self._by_piece.setdefault(piece, []).append(text)
        self._by_rarest: dict[bytes, list[bytes]] = {}
        for text in distinct:
            if pieces := _pieces(text):
                self._by_rarest.setdefault(min(pieces, key=self._num_texts), []).append(text)

    def has(self, text: str) -> bool:
        """True if a known text equals this one or nearly does, as one contains the other."""
        own = text.encode()
        pieces = _pieces(own)
        if own in self._exact or not pieces:
            return own in self._exact
        inner = (known for piece in dict.fromkeys(pieces) for known in self._by_rarest.get(piece, ()))
        outer = self._by_piece.get(min(pieces, key=self._num_texts), ())
        return any(_contains(own, known) for known in inner) or any(_contains(known, own) for known in outer)

    def _num_texts(self, piece: bytes) -> int:
        return len(self._by_piece.get(piece, ()))


def _pieces(text: bytes) -> list[bytes]:
    return [text[start : start + MIN_BYTES] for start in range(len(text) - MIN_BYTES + 1)]


def _contains(outer: bytes, inner: bytes) -> bool:
    return (len(inner) >= MIN_FRAC * len(outer) or len(inner) >= LONG_BYTES) and inner in outer


def _first_user_texts(rows: pa.Table) -> Any:
    """The first user message of each row, normalised; null where nothing is left of it."""
    texts, parents = _user_texts(rows)
    found, first = np.unique(parents, return_index=True)
    position = np.full(rows.num_rows, -1)
    position[found] = first
    return texts.take(pa.array(position, mask=position < 0))


def _has_new_texts(rows: pa.Table, held_out: NearDuplicates) -> NDArray[np.bool_]:
    """Shape (N,). A user's later messages count where they are long enough to be a question."""
    texts, parents = _user_texts(rows)
    is_first = np.diff(parents, prepend=-1) != 0
    encoded = texts.dictionary_encode()
    distinct = [text or "" for text in encoded.dictionary.to_pylist()]
    is_known = np.array([held_out.has(text) for text in distinct], bool)
    is_long = np.array([len(text.encode()) >= MIN_BYTES for text in distinct], bool)
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    is_text = bool_array(texts.is_valid())
    shared = is_text & is_known[codes] & (is_first | is_long[codes]) if distinct else np.zeros(len(texts), bool)
    is_new: NDArray[np.bool_] = np.bincount(parents[shared], minlength=rows.num_rows) == 0
    return is_new


def _user_texts(rows: pa.Table) -> tuple[Any, NDArray[np.int64]]:
    """Every user message, normalised, null where nothing is left of it; and the row of each."""
    lists = rows["messages"].combine_chunks()
    structs = pc.list_flatten(lists)
    is_user = bool_array(pc.fill_null(pc.equal(structs.field("role"), "user"), False))
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[is_user]
    texts = structs.field("content").filter(pa.array(is_user))
    plain = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC")), _IGNORED, "")
    return pc.if_else(pc.equal(plain, ""), None, plain), parents
