"""Training with several processes, by torch's DistributedDataParallel or FSDP2 (`fully_shard`).

`torchrun` starts the processes (ranks). This module joins them in a process group, shares values among them, and wraps
the model. The loop, the tasks and the models see only one device: the loader gives each rank its share of the batches,
and the loop divides losses by the token count of all ranks.
"""

from __future__ import annotations

import gc
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from regard.errors import UsageError
from regard.processes import Share
from regard.training.recipe.sections import Parallel

PATIENCE = timedelta(hours=2)  # how long ranks wait while the first prepares data, validates or publishes
T = TypeVar("T")
Compiled = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Ranks:
    """This process's rank and the number of ranks in the run. With one rank, every collective is a no-op."""

    rank: int = 0
    count: int = 1

    @classmethod
    def present(cls) -> Ranks:
        """The ranks of the current process group; one rank if there is none."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that logs, validates and publishes."""
        return self.rank == 0

    def total(self, *numbers: int) -> list[int]:
        """Sums of numbers over all ranks, computed on the host so that no GPU sync is needed."""
        summed = torch.tensor(numbers)
        if self.count > 1:
            dist.all_reduce(summed)
        return summed.tolist()

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks, on its device."""
        if self.count > 1:
            dist.all_reduce(tensor)

    def shared(self, value: T) -> T:
        """The first rank's value, on every rank."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def lead(self, action: Callable[[], T]) -> T:
        """Run `action` on the first rank; every rank returns its result, or raises its exception."""
        result: T | None = None
        failed: Exception | None = None
        if self.first:
            try:
                result = action()
            except Exception as error:
                failed = error
        result, failed = self.shared((result, failed))
        if failed is not None:
            raise failed
        return result  # type: ignore[return-value]  # None only if the action returned None

    def after_first(self, action: Callable[[], T]) -> T:
        """Run `action` on the first rank, then on the others, which can use the files that the first wrote."""
        made: list[T] = []
        self.lead(lambda: made.append(action()))
        return made[0] if made else action()

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.total(0)

    def side_group(self) -> dist.ProcessGroup | None:
        """A second process group, for threads that communicate at the same time as the training thread."""
        return dist.new_group(backend="gloo", timeout=PATIENCE) if self.count > 1 else None


ALONE = Ranks()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started in a process group: gloo for CPU tensors, NCCL for GPU tensors."""
    if Share.launched().count == 1:
        yield ALONE
        return
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Ranks.present()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # the frames of the error would keep DDP alive
        raise
    finally:
        gc.collect()  # objects that outlive the group keep its threads, which may crash when the interpreter exits
        dist.destroy_process_group()


class Engine:
    """A model trained by one process."""

    def __init__(self, model: nn.Module, compiled: Compiled) -> None:
        self.model = model
        self.forward = compiled(model)

    def gradients(self, *, complete: bool) -> AbstractContextManager[None]:
        """A context for one forward and backward pass; `complete` marks the last one before the optimiser's step."""
        return nullcontext()

    @property
    def whole(self) -> nn.Module:
        """The unsharded model, which the first rank validates and saves."""
        return self.model

    @contextmanager
    def published(self, average: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The unsharded model, with its weights replaced by those in `average` while the context is open."""
        tensors = named_tensors(self.model)
        _swap(tensors, average)
        try:
            yield self.whole
        finally:
            _swap(tensors, average)


class Replicated(Engine):
    """A model with a copy on every rank (DDP). The last backward pass of a step averages gradients over the ranks."""

    def __init__(self, model: nn.Module, compiled: Compiled) -> None:
        super().__init__(model, compiled)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers`")  # torch 2.11 does not know its new name yet
            self.forward: DistributedDataParallel = DistributedDataParallel(
                self.forward,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )

    def gradients(self, *, complete: bool) -> AbstractContextManager[None]:
        # `forward` is the model itself where a bad step is computed again, which ends the run on every rank.
        return nullcontext() if complete or self.forward is self.model else self.forward.no_sync()


class Sharded(Engine):
    """A model with a shard of every weight on each rank (FSDP2). Weights are gathered layer by layer for each use."""

    def __init__(
        self,
        model: nn.Module,
        compiled: Compiled,
        device: torch.device,
        mesh: DeviceMesh,
        build: Callable[[], nn.Module],
    ) -> None:
        # FSDP2 warns of layers that return views, which must not be changed in place; no model here does that.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        ranks = Ranks.present()
        for layer in _layers(model):
            if isinstance(cross := getattr(layer, "cross", None), nn.Module):
                fully_shard(cross, mesh=mesh)
                register_fsdp_forward_method(cross, "remember")  # `remember` is called before its layer's forward
            fully_shard(layer, mesh=mesh)
        self.sharded: FSDPModule = fully_shard(model, mesh=mesh)
        self._whole = build().to(device) if ranks.first else model
        super().__init__(model, compiled)

    def gradients(self, *, complete: bool) -> AbstractContextManager[None]:
        self.sharded.set_requires_gradient_sync(complete)
        return nullcontext()

    @property
    def whole(self) -> nn.Module:
        return self._whole

    @contextmanager
    @torch.no_grad()
    def published(self, average: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        into = named_tensors(self._whole)
        for name, tensor in {**named_tensors(self.model), **average}.items():
            value = full(tensor)  # a collective: every rank contributes its shard
            if self._whole is not self.model:
                into[name].copy_(value)
        yield self._whole


def engine(
    kind: Parallel,
    model: nn.Module,
    ranks: Ranks,
    device: torch.device,
    *,
    compiled: Compiled,
    build: Callable[[], nn.Module],
) -> Engine:
    """The engine for a kind of parallelism. `compiled` compiles a model if asked to; `build` makes a second model."""
    if ranks.count == 1:
        return Engine(model, compiled)
    if kind == "none":
        raise UsageError(
            f"training.parallel is 'none', but torchrun started {ranks.count} processes; use 'ddp' or 'fsdp', or start "
            "one process"
        )
    if kind in ("ddp", "auto"):
        return Replicated(model, compiled)
    return Sharded(model, compiled, device, _mesh(kind, ranks, device), build)


def _mesh(kind: Parallel, ranks: Ranks, device: torch.device) -> DeviceMesh:
    """The ranks that hold the shards of a model: all of them (fsdp), or those of each machine, one copy each (hsdp)."""
    if kind == "fsdp":
        return init_device_mesh(device.type, (ranks.count,))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count))
    return init_device_mesh(device.type, (ranks.count // here, here), mesh_dim_names=("copies", "pieces"))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied tensors appear once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def full(tensor: Tensor) -> Tensor:
    """The unsharded tensor. A collective: every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's shards of tensors."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model that share no weight with another part of it."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    stacks: Sequence[nn.ModuleList] = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layer in (layer for stack in stacks for layer in stack if not isinstance(layer, nn.ModuleList)):
        if all(owners[id(parameter)] == 1 for parameter in layer.parameters()):
            yield layer


@torch.no_grad()
def _swap(tensors: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> None:
    """Exchange values in place: the kernel of a recurrent layer needs its weights to stay adjacent in memory."""
    for name, shadow in average.items():
        published = shadow.clone()
        shadow.copy_(tensors[name])
        tensors[name].copy_(published)
