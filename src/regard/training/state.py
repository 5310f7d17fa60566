"""What a run must remember to continue as if it had never stopped: JSON and safetensors, never a pickle."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import CheckpointError

TENSORS = "state.safetensors"
PROGRESS = "progress.json"
Place = dict[str, int]  # where the loader goes on, as plain JSON


@dataclass
class Progress:
    """How far a run is, as plain numbers."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    skipped: int = 0
    window: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # since the last log: loss, tokens, bad steps
    validated: int = 0
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0
    loader: Place = field(default_factory=dict)


def save_state(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    average: Mapping[str, Tensor],
    carried: Mapping[str, Tensor],
) -> None:
    """Write `folder` so that `load_state` can continue bit for bit; `average` are the moving-average weights, `carried`
    is what a task hands from one step to the next."""
    folder.mkdir(parents=True)
    tensors = {f"weights/{name}": tensor for name, tensor in _weights(model).items()}
    tensors |= {f"average/{name}": tensor for name, tensor in average.items()}
    tensors |= {f"carried/{name}": tensor for name, tensor in carried.items()}
    tensors |= _moments(model, optimizers)
    tensors |= {f"random/{name}": tensor for name, tensor in _random_tensors().items()}
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
    document = {**asdict(progress), "random": _random_numbers()}
    (folder / PROGRESS).write_text(json.dumps(document, indent=1), encoding="utf-8")


def load_state(
    folder: Path,
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    average: Mapping[str, Tensor],
    carried: dict[str, Tensor],
) -> Progress:
    """Put back what `save_state` wrote, random generators included."""
    device = next(model.parameters()).device
    tensors = load_file(folder / TENSORS)
    document = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    _copy(tensors, "weights/", _weights(model), folder)
    _copy(tensors, "average/", average, folder)
    kept = {name.removeprefix("carried/"): t for name, t in tensors.items() if name.startswith("carried/")}
    carried.update({name: tensor.to(device) for name, tensor in kept.items()})
    _restore_moments(tensors, model, optimizers)
    _restore_random(tensors, document.pop("random"))
    return Progress(**document)


def seed_everything(seed: int) -> None:
    """Seed every generator a model or a library may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, tied ones once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


@torch.no_grad()
def _copy(tensors: Mapping[str, Tensor], prefix: str, into: Mapping[str, Tensor], folder: Path) -> None:
    for name, tensor in into.items():
        saved = tensors.get(prefix + name)
        if saved is None or saved.shape != tensor.shape:
            came = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
            raise CheckpointError(
                f"{folder}: {prefix}{name} should have shape {tuple(tensor.shape)}, found {came}; "
                "resume with the recipe this run was started with"
            )
        tensor.copy_(saved)


def _moments(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"optimizer/{group}/{names[parameter]}/{key}": value
        for group, optimizer in optimizers.items()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def _restore_moments(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]
) -> None:
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        kind, *rest = path.split("/")
        if kind == "optimizer":
            group, name, key = rest
            parameter = parameters[name]
            optimizers[group].state[parameter][key] = value.to(parameter.device)


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
