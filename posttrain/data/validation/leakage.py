"""What a demonstration may not share with the tasks that it will be measured on: their ids, their
user's words, what they are about.

Words are compared after Unicode NFKC, lower case and removal of white space, punctuation, emoji
and characters without a shape (zero-width spaces, controls), so that neither a full-width letter
nor a trailing full stop hides anything. A greeting around a question, or before it in a message of
its own, does not make it another one (`spoken_alike.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.near_duplicates import MIN_BYTES, HeldOutTexts

# besides what Unicode calls controls: selectors and fillers that have no shape of their own
_UNSPOKEN = r"[\s\pP\pZ\pC\p{So}\p{Sk}\x{034F}\x{115F}\x{1160}\x{3164}\x{FE00}-\x{FE0F}]+"
HELD_OUT_SPLITS = ("dev", "test", "test_paraphrase")
TASK_COLUMNS = ("task_id", "split", "messages", "entities")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What held-out tasks have: their ids and entities, Arrow arrays, and their users' first words
    as `first_user_texts` has them."""

    task_ids: Any
    texts: HeldOutTexts
    entities: Any


@dataclass(frozen=True, slots=True)
class LeakVerdicts:
    """One entry per trajectory, shape (N,): True where nothing is shared."""

    is_new_task: NDArray[np.bool_]
    is_new_text: NDArray[np.bool_]
    has_new_entities: NDArray[np.bool_]


def held_out_of(tasks: Iterable[pa.Table], *, splits: Sequence[str] = HELD_OUT_SPLITS) -> HeldOut:
    """`tasks` have TASK_COLUMNS; only those of `splits` count."""
    held_out = [batch.filter(pc.is_in(batch["split"], pa.array(splits))) for batch in tasks]
    texts = (text for batch in held_out for text in first_user_texts(batch).to_pylist())
    return HeldOut(
        _set(batch["task_id"] for batch in held_out),
        HeldOutTexts(text for text in texts if text),
        _set(pc.list_flatten(batch["entities"]) for batch in held_out),
    )


def judge_leaks(rows: pa.Table, held_out: HeldOut) -> LeakVerdicts:
    """`rows` have the columns task_id, messages and entities."""
    is_new_task = ~_mask(pc.is_in(rows["task_id"], held_out.task_ids))
    is_new_text = _has_new_texts(rows, held_out.texts)
    shared = _mask(pc.is_in(pc.list_flatten(rows["entities"]), held_out.entities))
    parents = pc.list_parent_indices(rows["entities"]).to_numpy()
    has_new_entities = np.bincount(parents[shared], minlength=rows.num_rows) == 0
    return LeakVerdicts(is_new_task, is_new_text, has_new_entities)


def first_user_texts(rows: pa.Table) -> Any:
    """The first user message of each row, normalised for comparison; null where there is none or
    nothing but punctuation."""
    texts, parents = _user_texts(rows)
    found, first = np.unique(parents, return_index=True)
    position = np.full(rows.num_rows, -1)
    position[found] = first
    return texts.take(pa.array(position, mask=position < 0))


def _has_new_texts(rows: pa.Table, held_out: HeldOutTexts) -> NDArray[np.bool_]:
    """Of the user's messages behind the first only those that are long enough to be a question
    count."""
    texts, parents = _user_texts(rows)
    is_first = np.diff(parents, prepend=-1) != 0
    distinct = texts.dictionary_encode()
    is_known = np.array([held_out.has(text or "") for text in distinct.dictionary.to_pylist()], bool)
    is_long = np.array([len((text or "").encode()) >= MIN_BYTES for text in distinct.dictionary.to_pylist()], bool)
    codes = distinct.indices.fill_null(0).to_numpy(zero_copy_only=False)
    is_text = _mask(texts.is_valid())
    shared = is_text & is_known[codes] & (is_first | is_long[codes]) if len(is_known) else np.zeros(len(texts), bool)
    is_new: NDArray[np.bool_] = np.bincount(parents[shared], minlength=rows.num_rows) == 0
    return is_new


def _user_texts(rows: pa.Table) -> tuple[Any, NDArray[np.int64]]:
    """Every user message, normalised, null where nothing is left of it; and the row of each."""
    lists = rows["messages"].combine_chunks()
    structs = pc.list_flatten(lists)
    is_user = _mask(pc.fill_null(pc.equal(structs.field("role"), "user"), False))
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[is_user]
    texts = structs.field("content").filter(pa.array(is_user))
    plain = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC")), _UNSPOKEN, "")
    return pc.if_else(pc.equal(plain, ""), None, plain), parents


def _set(parts: Iterable[Any]) -> Any:
    """Each value once, without nulls."""
    chunks = [chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])]
    return pc.drop_null(pc.unique(pa.chunked_array(chunks, pa.string())))


def _mask(values: Any) -> NDArray[np.bool_]:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(bool)
    return mask
