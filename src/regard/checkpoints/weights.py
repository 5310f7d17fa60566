"""Tensors on disk: safetensors, whose header is checked before anything is allocated; pickles only on request."""

import itertools
import json
import math
import pickle
import re
import reprlib
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.checkpoints.folder import read_json
from regard.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "model.bin", "model.pt", "pytorch_model.pt")
MOST_TENSORS, MOST_DIMENSIONS, HEADER_LIMIT = 20_000, 16, 16 * 2**20
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


def read_weights(folder: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """All tensors of a model folder, from one file, from shards, or (only if allowed) from a pickle."""
    if (folder / WEIGHTS).is_file():
        return read_tensors(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    pickled = next((folder / name for name in PICKLES if (folder / name).is_file()), None)
    if pickled is not None:
        return _read_pickle(pickled, allow_pickle)
    raise CheckpointError(f"{folder} holds no weights; expected {WEIGHTS} or {INDEX}")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file."""
    check_header(file)
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; copy it again or use another checkpoint") from error


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to one safetensors file; disk errors come as OSError."""
    try:
        save_file({name: _standalone(tensor) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if found := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(found[1]), str(error)) from error
        raise


def check_header(file: Path) -> None:
    """Raise an error unless the header of a safetensors file describes exactly its bytes."""
    header, data_bytes = _read_header(file)
    header.pop("__metadata__", None)
    if len(header) > MOST_TENSORS:
        raise _bad(file, f"lists {len(header):,} tensors; at most {MOST_TENSORS:,} are accepted")
    spans = sorted(_span(file, name, entry) for name, entry in header.items())
    edges = [(0, 0), *spans, (data_bytes, data_bytes)]
    if any(before[1] != after[0] for before, after in itertools.pairwise(edges)):
        raise _bad(file, "has tensors that overlap, leave gaps, or do not end with the file")


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8 or length > HEADER_LIMIT:
            raise _bad(file, f"of {size:,} bytes claims a header of {length:,}; at most {HEADER_LIMIT:,} are accepted")
        raw = content.read(length)
    if raw.count(b'"data_offsets"') > MOST_TENSORS:  # counted before parsing, which takes far more memory
        raise _bad(file, f"lists more than {MOST_TENSORS:,} tensors")
    try:
        header = json.loads(raw, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _bad(file, f"cannot be parsed: {error}") from None
    if not isinstance(header, dict):
        raise _bad(file, "is not a JSON object")
    return header, size - 8 - length


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _span(file: Path, name: str, entry: Any) -> tuple[int, int]:
    """The byte range of a tensor; raises an error if its entry is not valid."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if dtype in ITEM_BYTES:
            sound = len(shape) <= MOST_DIMENSIONS and all(type(n) is int and 0 <= n < 2**63 for n in shape)
            if sound and 0 <= begin <= end and math.prod(shape) * ITEM_BYTES[dtype] == end - begin:
                return begin, end
    raise _bad(file, f"has an impossible entry for {name[:80]!r}: {reprlib.repr(entry)[:120]}")


def _bad(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"the safetensors header of {file} {what}; the file is damaged, copy it again")


def _read_shards(folder: Path) -> dict[str, Tensor]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) and p == Path(p).name for p in places.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map of tensor names to file names of the same folder")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(places.values())):
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / shard} is missing, though {INDEX} names it; copy it again")
        found = read_tensors(folder / shard)
        if wrong := found.keys() ^ {name for name, place in places.items() if place == shard}:
            raise CheckpointError(f"{folder / shard} and {INDEX} disagree about {listing(wrong)}; copy both again")
        tensors.update(found)
    return tensors


def _read_pickle(file: Path, allow_pickle: bool) -> dict[str, Tensor]:
    if not allow_pickle:
        raise CheckpointError(
            f"{file} is a pickle, which can hold more than tensors; convert it to {WEIGHTS}, or, if you trust where it "
            "came from, allow it (--allow-pickle; only tensors are read)"
        )
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file} was refused, nothing in it was run: {reason}") from None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(f"{file} holds something else than named tensors; expected a state dict")
    return dict(tensors)


def _standalone(tensor: Tensor) -> Tensor:
    """The tensor on the CPU with memory of its own, as the format demands (CUDA's LSTM weights share one block)."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def listing(names: Collection[str], most: int = 5) -> str:
    """A few names for an error message, and how many more there are."""
    shown = ", ".join(sorted(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
