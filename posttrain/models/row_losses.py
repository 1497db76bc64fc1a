"""Per-row loss of a model: the mean negative log-likelihood of the agent's tokens, in nats."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from posttrain.models.codec import TokenRow
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.micro_batches import AtOnce, cut_by_length
from posttrain.models.parts import in_threads, parts_beside
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, labels_of, pad_right

BATCH_TOKENS = 4096


def row_losses(
    model: Any, rows: Sequence[TokenRow], *, pad_id: int, progress: Callable[[int, int], None] | None = None
) -> NDArray[np.float64]:
    """Shape (N,), 0 for a row in which the agent wrote nothing. Rows are batched by length and
    padded on the right, where causal attention never looks: no mask is needed."""
    batches = cut_by_length([len(row.input_ids) for row in rows], AtOnce(tokens=BATCH_TOKENS))
    losses = np.zeros(len(rows))
    done = 0

    def of(batch: list[int]) -> NDArray[np.float64]:
        with torch.inference_mode():  # which each thread has for itself
            return _batch_losses(model, [rows[index] for index in batch], pad_id)

    with fast_products(model.device), parts_beside(model):
        for batch, of_batch in zip(batches, in_threads(of, batches), strict=True):
            losses[batch] = of_batch
            done += len(batch)
            if progress:
                progress(done, len(rows))
    return losses


def _batch_losses(model: Any, rows: Sequence[TokenRow], pad_id: int) -> NDArray[np.float64]:
    ids_N_T = pad_right([row.input_ids for row in rows], pad_id).to(model.device)
    labels_N_T = pad_right([labels_of(row.input_ids, row.mask) for row in rows], IGNORED).to(model.device)
    num_agents_N = (labels_N_T[:, 1:] != IGNORED).sum(dim=1).clamp(min=1)
    mean_N = -agent_logprobs(model, ids_N_T, labels_N_T).sum(dim=1) / num_agents_N
    result: NDArray[np.float64] = mean_N.double().cpu().numpy()
    return result
