"""Counts what runs: FLOPs, operations with their shapes, and the bytes of the tensors that are alive.

It works on real tensors and on fake ones (torch's `FakeTensorMode`). Fake tensors have shapes, types and a device, so
every operation chooses the kernel that it would choose on that device, but they have no storage. Values do not exist: a
question about values (is any token padding?) is answered as for a batch without padding.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.flop_counter import flop_registry

from regard.layers.recurrent import Recurrent

FLOAT = 4  # bytes of a float32
MANY = 2**31  # a count of values that nobody knows: no value is padding
WORKSPACE = 16  # vectors that oneDNN's LSTM keeps for every step besides its output (measured)
aten = torch.ops.aten
LOOKUPS = (aten.embedding.default, aten.index_select.default, aten.index.Tensor)


class Operation(NamedTuple):
    """An operation of torch and the tensors that it reads; `arguments` are leaves of `structure`."""

    call: Any
    arguments: tuple[Any, ...]
    structure: Any


class Blank(NamedTuple):
    """A tensor without values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Recorder(TorchDispatchMode):
    """Counts the FLOPs and operations that run inside it, and the bytes of the tensors that they return."""

    def __init__(self, known: Sequence[Tensor] = ()):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.now = self.most = 0
        self.flops = 0
        self.operations: Counter[Operation] = Counter()
        self.calls = 0  # of operations that autograd records, views included
        self.read: set[int] = set()  # storages that operations read, lookups of single rows left out

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = _without_padding(call, args)
        result = _with_workspace(call, args, call(*args, **kwargs)) if result is None else result
        self.flops += flops_of(call, args, kwargs, result)
        self.calls += torch.is_grad_enabled()
        if not call.is_view:
            self._note(call, args, kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._watch(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return result

    def _note(self, call: Any, args: Any, kwargs: Any) -> None:
        leaves, structure = tree_flatten((args, kwargs))
        if call not in LOOKUPS:
            self.read |= {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor)}
        self.operations[Operation(call, tuple(map(_blank, leaves)), structure)] += 1

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_bytes(work: Callable[[], object], known: Sequence[Tensor], device: torch.device) -> int:
    """The most bytes alive at once in tensors that `work` creates; the tensors in `known` existed before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with Recorder(known) as recorder:
        work()
    return recorder.most


def _blank(leaf: Any) -> Any:
    return Blank(tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _without_padding(call: Any, args: Any) -> Any:
    """The answer to a question about values, as a batch without padding gives it; None for any other operation."""
    if not args or not isinstance(args[0], FakeTensor):
        return None
    if call is aten._local_scalar_dense.default:
        return True if args[0].dtype == torch.bool else MANY
    if call is aten.nonzero.default:
        return torch.arange(args[0].numel(), device=args[0].device)[:, None].expand(-1, args[0].dim())
    return None


def _with_workspace(call: Any, args: Any, result: Any) -> Any:
    """The LSTM kernel of a CPU keeps a workspace, whose size fake tensors do not tell."""
    if call is not aten.mkldnn_rnn_layer.default or result[3].numel():
        return result
    return *result[:3], result[3].new_empty(WORKSPACE * result[0].numel() * FLOAT, dtype=torch.uint8)


@contextmanager
def without_packing(model: nn.Module) -> Iterator[None]:
    """Recurrent layers that are given a mask pack their sequences by values; here they take the same steps, one by
    one, over all tokens."""
    handles = []

    def enter(layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        given = inspect.signature(layer.forward).bind(*args, **kwargs)
        if given.arguments.get("mask") is None:
            return None
        given.arguments["mask"] = None
        torch.backends.mkldnn.set_flags(False)
        return given.args, given.kwargs

    for layer in model.modules():
        if isinstance(layer, Recurrent):
            handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(layer.register_forward_hook(lambda *_: torch.backends.mkldnn.set_flags(True) and None))
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(True)
        for handle in handles:
            handle.remove()


def flops_of(call: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs as `torch.utils.flop_counter` counts them; the backward pass of fused attention is two forward passes."""
    name = call.__name__
    if "scaled_dot_product" in name:
        backward = "backward" in name
        q, k, v = args[1:4] if backward else args[:3]
        return 2 * (1 + backward) * q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])
    if call is aten.convolution_backward.default:  # torch's count ignores groups
        gradient, x, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[-1]
        return 2 * (x if transposed else gradient).numel() * weight[0].numel() * sum(wanted[:2])
    if "mkldnn_rnn_layer" in name:
        rows, weights = args[0].shape[:-1].numel(), args[1].numel() + args[2].numel()
        return 2 * rows * weights * (2 if "backward" in name else 1)
    packet = getattr(aten, name.partition(".")[0].rstrip("_"), None)  # addmm_ is addmm
    counted = flop_registry.get(packet)
    return int(counted(*args, **kwargs, out_val=result)) if counted else 0


@contextmanager
def fake_tensors(device: str) -> Iterator[None]:
    """Tensors that are made here have no storage; they claim to be on `device`."""
    with FakeTensorMode(), torch.device(device):
        yield
