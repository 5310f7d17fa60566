"""The state of a run, in JSON and safetensors (no pickles). A run that resumes from it continues bit for bit.

Several ranks write it together with torch.distributed.checkpoint, in its safetensors format. That format records where
every shard belongs, so any number of ranks can read it.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from regard.errors import CheckpointError
from regard.training.distributed import Ranks, named_tensors

TENSORS = "state.safetensors"
PROGRESS = "progress.json"
LoaderPlace = dict[str, int]  # where the loader continues, as plain JSON


@dataclass
class Progress:
    """The progress of a run: steps, counters and the best metric, as plain numbers."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    skipped: int = 0
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # since the last log: loss, tokens, bad steps
    validated: int = 0
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0
    loader: LoaderPlace = field(default_factory=dict)


def save_state(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    average: Mapping[str, Tensor],
    carried: Mapping[str, Tensor],
    group: dist.ProcessGroup | None = None,
) -> Future[Any]:
    """Write `folder` so that `load_state` can continue bit for bit.

    `average` are the moving-average weights; `carried` is the state that a task passes from one step to the next.
    Of several ranks, each writes its share of the tensors, from a copy and in the background, coordinated in `group`.
    Returns when the tensors may change again; the future is done when everything is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"weights/{name}": tensor for name, tensor in named_tensors(model).items()}
    tensors |= {f"average/{name}": tensor for name, tensor in average.items()}
    tensors |= {f"carried/{name}": tensor for name, tensor in carried.items()}
    tensors |= _moments(model, optimizers)
    tensors |= {f"random/{name}": tensor for name, tensor in _random_tensors().items()}
    ranks = Ranks.present()
    if ranks.first:
        document = {**asdict(progress), "random": _random_numbers()}
        (folder / PROGRESS).write_text(json.dumps(document, indent=1), encoding="utf-8")
    if ranks.count == 1:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
        done: Future[Any] = Future()
        done.set_result(None)
        return done
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    begun = checkpoint.async_save(detached, storage_writer=writer, process_group=group)
    assert isinstance(begun, Future)  # the other return type belongs to other stagers
    return begun


def read_progress(folder: Path) -> Progress:
    """The progress of the run whose state is in `folder`."""
    document = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    del document["random"]
    return Progress(**document)


def load_state(
    folder: Path,
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    average: Mapping[str, Tensor],
    carried: dict[str, Tensor],
) -> Progress:
    """Restore what `save_state` wrote, random generators included, on any number of ranks."""
    reader = HuggingFaceStorageReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    places = {f"weights/{name}": tensor for name, tensor in named_tensors(model).items()}
    places |= {f"average/{name}": tensor for name, tensor in average.items()}
    _refuse_other_shapes(saved, places, folder)
    device = next(model.parameters()).device
    for name, entry in saved.items():
        kind, _, rest = name.partition("/")
        if kind == "carried":
            carried[rest] = places[name] = _empty(entry, device)
        elif kind == "random":
            places[name] = _empty(entry, torch.device("cpu"))
    places |= _places_of_moments(saved, model, optimizers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is ")  # one process may resume what several began
        checkpoint.load({name: tensor.detach() for name, tensor in places.items()}, storage_reader=reader)
    document = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    _restore_random(places, document.pop("random"))
    return Progress(**document)


def seed_everything(seed: int) -> None:
    """Seed every random generator that a model or a library may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_draws(*place: int) -> None:
    """Seed the next random draws (dropout, noise) from their place in the run, so that they do not depend on the number
    of ranks or on restarts."""
    seed = int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "big")
    torch.default_generator.manual_seed(seed)  # torch.manual_seed visits all kinds of devices and is many times slower
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def _refuse_other_shapes(saved: Mapping[str, Any], places: Mapping[str, Tensor], folder: Path) -> None:
    for name, tensor in places.items():
        shape = saved[name].size if name in saved else None
        if shape != tensor.shape:
            came = "nothing" if shape is None else f"shape {tuple(shape)}"
            raise CheckpointError(
                f"{folder}: {name} should have shape {tuple(tensor.shape)}, found {came}; "
                "resume with the recipe this run was started with"
            )


def _empty(entry: Any, device: torch.device) -> Tensor:
    return torch.empty(entry.size, dtype=entry.properties.dtype, device=device)


def _moments(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"optimizer/{group}/{names[parameter]}/{key}": value
        for group, optimizer in optimizers.items()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def _places_of_moments(
    saved: Mapping[str, Any], model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Empty tensors for the saved moments, sharded like their weights."""
    parameters, places = dict(model.named_parameters()), dict[str, Tensor]()
    for path, entry in saved.items():
        kind, *rest = path.split("/")
        if kind == "optimizer":
            group, name, key = rest
            parameter = parameters[name]
            alike = entry.size == parameter.shape
            place = torch.empty_like(parameter.detach()) if alike else _empty(entry, parameter.device)
            optimizers[group].state[parameter][key] = places[path] = place
    return places


def _random_tensors() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _random_numbers() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {"python": [version, list(words), gauss], "numpy": [kind, keys.tolist(), *rest]}


def _restore_random(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    torch.set_rng_state(tensors["random/cpu"])
    for i in range(torch.cuda.device_count()):
        if f"random/cuda{i}" in tensors:
            torch.cuda.set_rng_state(tensors[f"random/cuda{i}"], i)
    version, words, gauss = numbers["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = numbers["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
