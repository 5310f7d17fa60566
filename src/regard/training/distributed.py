"""Several processes, one run, on torch's own engine: DistributedDataParallel and FSDP2 (`fully_shard`).

`torchrun` starts the processes (ranks); here they find each other, share what they must agree on, and a model gets what
its copies or pieces need. The loop, the tasks and the models know of one device only: a task's batches are dealt to the
ranks by its loader, and the loop divides by the tokens of all of them.
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
from regard.training.recipe.training_sections import Parallel

PATIENCE = timedelta(hours=2)  # the others wait while the first rank prepares data, measures or publishes
T = TypeVar("T")
Compiled = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, as one of them sees them; alone, everything here does nothing."""

    rank: int = 0
    count: int = 1

    @classmethod
    def present(cls) -> Ranks:
        """Those that have found each other."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return self.rank == 0

    def total(self, *numbers: int) -> list[int]:
        """Sums over all ranks of numbers on the host, so that no device is waited for."""
        summed = torch.tensor(numbers)
        if self.count > 1:
            dist.all_reduce(summed)
        return summed.tolist()

    def add_up(self, tensor: Tensor) -> None:
        """Put the sum over all ranks in place of a tensor, on its device."""
        if self.count > 1:
            dist.all_reduce(tensor)

    def shared(self, value: T) -> T:
        """What the first rank has."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def lead(self, action: Callable[[], T]) -> T:
        """Let the first rank do something: all get what it returned, or fail as it failed."""
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
        return result  # type: ignore[return-value]  # None only where the action returned it

    def after_first(self, action: Callable[[], T]) -> T:
        """Let all ranks do something, the others when the first has done it and left its files for them."""
        made: list[T] = []
        self.lead(lambda: made.append(action()))
        return made[0] if made else action()

    def wait(self) -> None:
        """Until all ranks are here."""
        self.total(0)

    def side_group(self) -> dist.ProcessGroup | None:
        """A second process group, for threads that communicate while training does."""
        return dist.new_group(backend="gloo", timeout=PATIENCE) if self.count > 1 else None


ALONE = Ranks()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Let the processes that torchrun started find each other: gloo between hosts, NCCL between GPUs."""
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
        traceback.clear_frames(error.__traceback__)  # or what failed would keep DDP alive
        raise
    finally:
        gc.collect()  # whoever outlives the group keeps its threads, which may then want an interpreter that is gone
        dist.destroy_process_group()


class Engine:
    """A model that one process trains by itself."""

    def __init__(self, model: nn.Module, compiled: Compiled) -> None:
        self.model = model
        self.forward = compiled(model)

    def gradients(self, *, complete: bool) -> AbstractContextManager[None]:
        """Around a forward and a backward pass; `complete` says that no other follows before the optimiser's step."""
        return nullcontext()

    @property
    def whole(self) -> nn.Module:
        """The model in one piece, for the first rank to measure and save."""
        return self.model

    @contextmanager
    def published(self, average: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The model in one piece, with `average` in place of the weights that are in it."""
        tensors = named_tensors(self.model)
        _swap(tensors, average)
        try:
            yield self.whole
        finally:
            _swap(tensors, average)


class Replicated(Engine):
    """A model that every rank has a copy of; gradients become those of all ranks during the last backward pass."""

    def __init__(self, model: nn.Module, compiled: Compiled) -> None:
        super().__init__(model, compiled)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers`")  # its new name is not known to torch 2.11
            self.forward: DistributedDataParallel = DistributedDataParallel(
                self.forward,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
            )

    def gradients(self, *, complete: bool) -> AbstractContextManager[None]:
        return nullcontext() if complete else self.forward.no_sync()


class Sharded(Engine):
    """A model of which every rank keeps a piece (FSDP2): weights come together layer by layer while they are used."""

    def __init__(
        self,
        model: nn.Module,
        compiled: Compiled,
        device: torch.device,
        mesh: DeviceMesh,
        build: Callable[[], nn.Module],
    ) -> None:
        # It warns of layers that return views, in case the caller changes one in place; no model here does.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        ranks = Ranks.present()
        for layer in _layers(model):
            if isinstance(cross := getattr(layer, "cross", None), nn.Module):
                fully_shard(cross, mesh=mesh)
                register_fsdp_forward_method(cross, "remember")  # called before its layer is
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
            value = full(tensor)  # every rank gives its piece
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
    """How the ranks train a model; `compiled` makes of it what is called, `build` another one of its shape."""
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
    """Who has the pieces of a model: all ranks (fsdp), or those of each machine, which then has a copy (hsdp)."""
    if kind == "fsdp":
        return init_device_mesh(device.type, (ranks.count,))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count))
    return init_device_mesh(device.type, (ranks.count // here, here), mesh_dim_names=("copies", "pieces"))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def full(tensor: Tensor) -> Tensor:
    """A tensor in one piece; every rank has to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this rank has of tensors."""
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
    """Exchange contents, not places: a recurrent layer's weights must stay side by side for its kernel."""
    for name, shadow in average.items():
        published = shadow.clone()
        shadow.copy_(tensors[name])
        tensors[name].copy_(published)
