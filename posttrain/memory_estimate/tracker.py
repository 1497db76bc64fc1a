"""Tracks the memory of a computation without computing it: the code runs on tensors that have
shapes and no numbers (PyTorch's `FakeTensorMode`), and every storage is counted from the operation
that makes it until it is freed."""

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posttrain.rollout.engines import slotted_decoder

LABELS = (
    WEIGHTS := "weights",
    GRADIENTS := "gradients",
    OPTIMIZER := "optimizer",
    ACTIVATIONS := "activations",
    LOGITS := "logits",
    OTHERS := "other models",  # the reference, the critic, the reward model that adds to rewards
    ENGINE := "engine",
    CACHE := "KV cache",
)
_ASKS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes by purpose, now (`live`) and at the peak (`at_peak`).

    Two things a shape does not tell. Where rows are picked by what they hold, `num_picked` says how
    many, of the shape of the mask; and to what is asked of numbers the answer is no, or within
    `agreeing` yes; a number is 1.
    """

    def __init__(self, *, vocab_size: int, num_picked: Callable[[Sequence[int]], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: Counter[str] = Counter()
        self.at_peak: Counter[str] = Counter()
        self._vocab_size, self._num_picked = vocab_size, num_picked
        self._label: str | None = ACTIVATIONS
        self._answer = False
        self._storages: dict[int, tuple[int, str]] = {}

    def forget_peak(self) -> None:
        """Resets the peak to the current memory."""
        self.at_peak = self.live.copy()

    @contextlib.contextmanager
    def labelled(self, label: str | None) -> Iterator[None]:
        """Context in which new memory is counted under a label; under None it is not counted."""
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """Context in which questions about numbers (`if tensor.any()`) are answered with yes."""
        self._answer = True
        try:
            yield
        finally:
            self._answer = False

    def label(self, tensor: Tensor, label: str) -> None:
        """Count an existing tensor under another label."""
        key = tensor.untyped_storage()._cdata
        size, before = self._storages[key]
        self._storages[key] = (size, label)
        self.live[before] -= size
        self.live[label] += size

    def resized(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count an existing storage anew, which FSDP empties and fills again."""
        if (known := self._storages.get(storage._cdata)) is not None:
            before, label = known
            self._storages[storage._cdata] = (size, label)
            self._add(label, size - before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # it comes again with the shard
        if func is torch.ops.prim.device.default:  # asked as often as there are operations
            return args[0].fake_device
        if func is torch.ops.aten.index.Tensor and _is_mask(args[1]):
            values, mask = args[0], args[1][0]
            found = values.new_empty((self._num_picked(mask.shape), *values.shape[mask.ndim :]))
        elif func in _ASKS:
            return self._answer if args[0].dtype == torch.bool else 1
        else:
            found = func(*args, **(kwargs or {}))
        for made in tree_leaves(found):
            if isinstance(made, Tensor):
                self._count(made)
        return found

    def _count(self, tensor: Tensor) -> None:
        if isinstance(tensor, DTensor) or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        label, size = self._label or ACTIVATIONS, storage.nbytes() if self._label else 0
        if label == ACTIVATIONS and tensor.ndim and tensor.shape[-1] == self._vocab_size:
            label = LOGITS
        self._storages[key] = (size, label)
        self._add(label, size)
        weakref.finalize(storage, self._gone, key)

    def _add(self, label: str, size: int) -> None:
        self.live[label] += size
        if self.live.total() > self.at_peak.total():
            self.at_peak = self.live.copy()

    def _gone(self, key: int) -> None:
        size, label = self._storages.pop(key)
        self.live[label] -= size


@contextlib.contextmanager
def tracked(*, vocab_size: int, num_picked: Callable[[Sequence[int]], int]) -> Iterator[MemoryTracker]:
    """Context in which tensors have no numbers and their memory is tracked."""
    with (
        mock.patch.object(FakeTensor, "__deepcopy__", _copied, create=True),  # torch's copies what has no address
        FakeTensorMode(allow_non_fake_inputs=True),
        MemoryTracker(vocab_size=vocab_size, num_picked=num_picked) as tracker,
        mock.patch.object(nn.Module, "_apply", _converted),
        mock.patch.object(slotted_decoder, "zeros", torch.zeros),  # the CPU's are NumPy's, which would be real
        mock.patch.object(torch.UntypedStorage, "resize_", _resizing(tracker)),
    ):
        yield tracker


def _resizing(tracker: MemoryTracker) -> Callable[[torch.UntypedStorage, int], torch.UntypedStorage]:
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        found: torch.UntypedStorage = resize(storage, size)
        tracker.resized(storage, size)
        return found

    return resize_


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    copied = tensor.detach().clone()
    is_weight = isinstance(tensor, nn.Parameter)
    found: Tensor = memo.setdefault(id(tensor), nn.Parameter(copied, tensor.requires_grad) if is_weight else copied)
    return found


def _converted(module: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """A module in another type: torch would swap tensors, which those without numbers refuse."""
    found: dict[int, nn.Parameter] = {}  # a tied weight stays tied
    for part in module.modules() if recurse else [module]:
        for name, weight in part._parameters.items():
            if weight is not None and (converted := convert(weight.detach())).dtype != weight.dtype:
                part._parameters[name] = found.setdefault(id(weight), nn.Parameter(converted, weight.requires_grad))
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else convert(buffer)
    return module


def _is_mask(indices: Sequence[Tensor | None]) -> bool:
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool
