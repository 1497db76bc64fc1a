"""Compares the plan of `posttrain plan --gpu` for each stage with what PyTorch allocated, and the
card's allowance against what else was taken: its context, and what the allocator keeps.

Two steps of each stage, as `benchmarks.footprint` runs them on a processor, one after the other in
one process.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.footprint import ADAPTERS, SIZES, STAGES, make_model, read_params, run_stage, write_params
from benchmarks.gpu.ground import Ground, forget
from posttrain.memory_estimate.advice import CardPlan
from posttrain.memory_estimate.stages import stage_memory
from posttrain.models.params import Dtype

DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")  # what a card computes in first: the time may end


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    sizes = ["10M"] if ground.is_small else ["135M", "0.5B", "10M"]
    for dtype, size, adapter, stage in itertools.product(DTYPES, sizes, ADAPTERS, STAGES):
        params_yaml, folder = ground.folder / "params.yaml", ground.folder / size
        write_params(params_yaml, adapter, stage, size, dtype)
        params = read_params(params_yaml)
        if not folder.exists():
            make_model(SIZES[size], params, folder)
        card = CardPlan(_card_bytes(), (), ())
        planned = stage_memory(STAGES[stage], params, SIZES[size], gpu_bytes=card.limit)
        forget()
        run_stage(stage, params, folder, Path(tempfile.mkdtemp(dir=ground.folder)))
        allocated, reserved, outside = _taken()
        yield {
            "size": size,
            "dtype": dtype,
            "adapter": adapter,
            "stage": stage,
            "planned_gb": round(planned.total / 1e9, 3),
            "parts_gb": {name: round(value / 1e9, 3) for name, value in sorted(planned.parts.items())},
            "allocated_gb": round(allocated / 1e9, 3),
            "error": round(planned.total / allocated - 1, 4) if allocated else None,
            "beyond_gb": round((reserved - allocated + outside) / 1e9, 3),
            "allowed_beyond_gb": round(card.reserved_bytes / 1e9, 3),
        }


def _card_bytes() -> int:
    return torch.cuda.get_device_properties().total_memory if torch.cuda.is_available() else 24 << 30


def _taken() -> tuple[int, int, int]:
    """Bytes at the peak that tensors took and that the allocator kept, and what the card holds
    besides; 0 on a processor."""
    if not torch.cuda.is_available():
        return 0, 0, 0
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), outside
