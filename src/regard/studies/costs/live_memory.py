"""Measure the memory of live tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Tracks the total memory of all tensors that operations return, while they are alive."""

    def __init__(self, known: Sequence[Tensor] = ()):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.now = self.most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (address := tensor.untyped_storage().data_ptr()) not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(address)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._forget, address, storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    def _forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.now -= size


def peak_bytes(work: Callable[[], object], known: Sequence[Tensor], device: torch.device) -> int:
    """The most bytes alive at once in tensors that `work` creates; the tensors in `known` existed before and do not
    count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with LiveBytes(known) as live:
        work()
    return live.most
