"""What a demonstration may not share with the tasks that it will be measured on: their ids, their
user's words, their companies.

Words are compared after Unicode NFKC, case folding and removal of white space and punctuation, so
that a full-width letter or a trailing full stop hides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

HELD_OUT_SPLITS = ("dev", "test", "test_paraphrase")


@dataclass(frozen=True, slots=True)
class LeakVerdicts:
    """One entry per trajectory, shape (N,): True where nothing is shared."""

    is_new_task: NDArray[np.bool_]
    is_new_text: NDArray[np.bool_]
    has_new_companies: NDArray[np.bool_]


def judge_leaks(rows: pa.Table, tasks: pa.Table, *, splits: Sequence[str] = HELD_OUT_SPLITS) -> LeakVerdicts:
    """`rows` and `tasks` have the columns task_id, messages and companies; only tasks of `splits`
    count as held out."""
    held_out = tasks.filter(pc.is_in(tasks["split"], pa.array(splits)))
    is_new_task = ~_mask(pc.is_in(rows["task_id"], _set(held_out["task_id"])))
    is_new_text = ~_mask(pc.is_in(first_user_texts(rows), _set(first_user_texts(held_out))))
    shared = _mask(pc.is_in(pc.list_flatten(rows["companies"]), _set(pc.list_flatten(held_out["companies"]))))
    parents = pc.list_parent_indices(rows["companies"]).to_numpy()
    has_new_companies = np.bincount(parents[shared], minlength=rows.num_rows) == 0
    return LeakVerdicts(is_new_task, is_new_text, has_new_companies)


def first_user_texts(rows: pa.Table) -> Any:
    """The first user message of each row, normalised for comparison; null where there is none or
    nothing but punctuation."""
    lists = rows["messages"].combine_chunks()
    structs = pc.list_flatten(lists)
    is_user = _mask(pc.fill_null(pc.equal(structs.field("role"), "user"), False))
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    found, first = np.unique(parents[is_user], return_index=True)
    position = np.full(rows.num_rows, -1)
    position[found] = np.flatnonzero(is_user)[first]
    texts = structs.field("content").take(pa.array(position, mask=position < 0))
    plain = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC")), r"[\s\pP]+", "")
    return pc.if_else(pc.equal(plain, ""), None, plain)


def _set(values: Any) -> Any:
    return pc.drop_null(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values)


def _mask(values: Any) -> NDArray[np.bool_]:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    mask: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(bool)
    return mask
