"""Save and load models: config.json says what to build, and the weights must match it exactly."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from json import dumps
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from regard.checkpoints.folder import MANIFEST, is_sealed, read_json, resolve, verify, write_folder
from regard.checkpoints.int8 import from_int8, to_int8
from regard.checkpoints.tables import TABLES, NameTable, read_table
from regard.checkpoints.weights import WEIGHTS, listing, read_weights, write_tensors
from regard.config import Config
from regard.errors import CheckpointError, ConfigError
from regard.families.catalog import MODELS

CONFIG = "config.json"
Storage = Literal["fp32", "int8"]  # how weights are written


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for inference, what it was built from, and the folder it came from."""

    name: str
    config: Config
    model: nn.Module
    folder: Path


def save_model(
    folder: Path,
    name: str,
    model: nn.Module,
    extras: Callable[[Path], None] | None = None,
    *,
    storage: Storage = "fp32",
) -> None:
    """Write a complete model folder atomically; `extras` adds further files (tokenizer, recipe, card)."""

    def write(temporary: Path) -> None:
        write_model(temporary, name, model, storage)
        if extras is not None:
            extras(temporary)

    write_folder(folder, write, needs=sum(tensor.nbytes for tensor in own_tensors(model).values()))


def write_model(folder: Path, name: str, model: nn.Module, storage: Storage = "fp32") -> None:
    """Write config.json and the weights into a folder; the caller adds other files and the manifest."""
    config = bare(model).config
    assert isinstance(config, Config)
    about = {"model": name, "version": version("regard"), "config": config.model_dump(mode="json")}
    tensors = own_tensors(model)
    if storage == "int8":
        about, tensors = about | {"storage": storage}, to_int8(tensors)
    write_json(folder / CONFIG, {"regard": about})
    write_tensors(folder / WEIGHTS, tensors)


def load_model(folder: Path | str, device: str | torch.device = "cpu", allow_pickle: bool = False) -> LoadedModel:
    """The model of a folder, ours or Hugging Face's, in float32 and evaluation mode; every file is verified first."""
    folder = resolve(Path(folder))
    if is_sealed(folder):
        verify(folder)
    name, config, table = identify(folder)
    if table is None:
        model = _build(name, config, folder)
        tensors = from_int8(read_weights(folder, allow_pickle), folder)
    else:
        theirs = table.todays(read_weights(folder, allow_pickle), folder)
        config = table.settled(config, theirs)
        model = _build(name, config, folder)
        tensors = table.to_ours(theirs, config, own_tensors(model).keys(), folder)
    fill(model, tensors, folder)
    return LoadedModel(name, config, model.to(device).eval(), folder)


def bare(model: nn.Module) -> nn.Module:
    """The module without the wrappers of torch.compile and DistributedDataParallel."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state of the bare module; tied tensors occur once, under the first of their names."""
    state = bare(model).state_dict(keep_vars=True)
    if wrapped := [name for name in state if "_orig_mod." in name]:
        raise CheckpointError(f"{listing(wrapped)}: a part of the model is compiled; compile the whole model instead")
    return {names[0]: state[names[0]].detach() for names in _aliases(state)}


def fill(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy tensors into the model; raises an error unless names, shapes and kinds of number match exactly."""
    state = model.state_dict(keep_vars=True)
    if unexpected := tensors.keys() - state.keys():
        raise CheckpointError(f"{source} has tensors that the model does not know: {listing(unexpected)}")
    for names in _aliases(state):
        given = [name for name in names if name in tensors]
        if not given:
            raise CheckpointError(f"{source} lacks the tensor {names[0]} (shape {list(state[names[0]].shape)})")
        if not all(torch.equal(tensors[given[0]], tensors[name]) for name in given[1:]):
            raise CheckpointError(f"{source} has different values for {listing(given)}, which the model shares")
        _copy(tensors[given[0]], state[given[0]], f"{given[0]} of {source}")


@torch.no_grad()
def _copy(value: Tensor, target: Tensor, what: str) -> None:
    if value.shape != target.shape:
        raise CheckpointError(f"{what} has shape {list(value.shape)}; the model expects {list(target.shape)}")
    if value.is_floating_point() != target.is_floating_point():
        raise CheckpointError(f"{what} is {value.dtype}; the model expects {target.dtype}")
    target.copy_(value)


def _aliases(state: dict[str, Tensor]) -> list[list[str]]:
    """The names of each tensor, grouped, in the order of the model."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, tensor in state.items():
        groups[id(tensor)].append(name)
    return list(groups.values())


class _NoRandomFill(TorchFunctionMode):
    """Skips random initialisation: every parameter built under it is about to be overwritten."""

    # The `init` functions are listed too: while one is handled, the methods that it calls are not intercepted.
    fills = (init.uniform_, init.normal_, init.kaiming_uniform_, init.kaiming_normal_, Tensor.uniform_, Tensor.normal_)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.fills:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _build(name: str, config: Config, folder: Path) -> nn.Module:
    try:
        with _NoRandomFill():
            return MODELS[name].model(config).float()
    except (ConfigError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder / CONFIG} describes a model that cannot be built: {error}") from error


def outline(name: str, config: Config) -> nn.Module:
    """A model without memory for its weights: the names of its layers and the sizes of its parameters are known."""
    with torch.device("meta"), _NoRandomFill():
        return MODELS[name].model(config)


def identify(folder: Path) -> tuple[str, Config, NameTable | None]:
    """The model and config of a folder, and the name table if the folder uses another library's names."""
    file = folder / CONFIG
    match read_json(file):
        case {"regard": {"model": str(name), "config": dict(values)}}:
            if not is_sealed(folder):
                raise CheckpointError(f"{folder} has no {MANIFEST}: its writing was cut short; use another checkpoint")
            return name, _parse(name, values, file), None
        case {"model_type": str(model_type)} if model_type in TABLES:
            table = read_table(model_type)
            return table.model, _parse(table.model, table.config.to_ours(read_json(file), file), file), table
        case {"model_type": other}:
            raise CheckpointError(f"{file} has the model_type {other!r}; known are {', '.join(TABLES)}")
    raise CheckpointError(
        f"{file} names no model; expected the key 'regard', or 'model_type' as Hugging Face writes it"
    )


def _parse(name: str, values: dict[str, Any], file: Path) -> Config:
    if name not in MODELS:
        raise CheckpointError(f"{file} asks for the model {name!r}; known are {', '.join(MODELS)}")
    try:
        return MODELS[name].config.parse(values, where=str(file))
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Write a readable JSON file."""
    file.write_text(dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
