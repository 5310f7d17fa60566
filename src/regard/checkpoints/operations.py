"""The operations that turn another library's tensors into Regard's; each has an inverse.

`forward` maps their tensors to ours and `backward` ours to theirs; `parts` is the required number of results.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.config import Config
from regard.errors import CheckpointError

HIGHEST_RATIO = 64
KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
LIMITS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}  # our slow and fast


def read_rope(theirs: Mapping[str, Any], max_length: int, file: Path) -> dict[str, Any]:
    """Our `rotary_base` and `rotary_scaling`.

    The older name `rope_scaling` overrides `rope_parameters`, `rope_type` overrides the older `type`, and a value
    inside the section overrides one beside it. Only for the original length it is the other way round.
    """
    section = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    if not isinstance(section, dict) or any(isinstance(value, dict) for value in section.values()):
        raise CheckpointError(f"{file} has rope parameters {section!r}; expected one object of numbers for all layers")
    beside = {key: theirs[key] for key in ("rope_theta", "partial_rotary_factor") if key in theirs}
    rope = _Parameters({**beside, **section}, file)
    kind = section.get("rope_type", section.get("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"{file} has rope_type {kind!r}; known are {', '.join(KINDS)}")
    if rope.number("partial_rotary_factor", 1.0) != 1:
        raise CheckpointError(f"{file} has a partial_rotary_factor other than 1, but a Llama rotates whole heads")
    original = theirs.get("original_max_position_embeddings") or section.get("original_max_position_embeddings")
    scaling = None if kind == "default" else _scaling(kind, rope, original or max_length, max_length)
    return {"rotary_base": rope.number("rope_theta", 10000.0), "rotary_scaling": scaling}


def write_rope(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Their config values, under keys that older versions of transformers read too."""
    theta, scaling = {"rope_theta": ours["rotary_base"]}, ours["rotary_scaling"]
    if scaling is None:
        return theta
    kind = scaling["kind"]
    section = {"rope_type": kind, "factor": scaling["factor"]}
    if kind in LIMITS:
        slow, fast = LIMITS[kind]
        original = scaling["original_length"] or ours["max_length"]
        section |= {"original_max_position_embeddings": original, slow: scaling["slow"], fast: scaling["fast"]}
    if kind == "yarn":
        section["truncate"] = scaling["whole"]
        if scaling["attention_factor"] is not None:
            section["attention_factor"] = scaling["attention_factor"]
    return {**theta, "rope_scaling": section}


def read_ffn_ratio(ratio: Any, ours: Mapping[str, Any], file: Path) -> int:
    """Our `ffn_width`. A gated layer has two thirds of it, rounded up to a multiple of 8 (DINOv2)."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
        raise CheckpointError(f"{file} has {ratio!r} as the ratio of hidden layers; expected a number above 0")
    hidden = int(ours["width"] * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if ours["gated"] else hidden


def write_ffn_ratio(ours: Mapping[str, Any]) -> int:
    """Their ratio, a whole number."""
    for ratio in range(1, HIGHEST_RATIO + 1):
        if read_ffn_ratio(ratio, ours, Path()) == ours["ffn_width"]:
            return ratio
    raise CheckpointError(
        f"the model cannot be exported: ffn_width {ours['ffn_width']} is not a whole multiple of width {ours['width']}"
    )


WINDOW_KEYS = {"every": {"sliding_window"}, "chosen": {"sliding_window", "layer_types"}}
KINDS_OF_LAYERS = {"full_attention": False, "sliding_attention": True}


def read_window(theirs: Mapping[str, Any], which: str, depth: int, file: Path) -> dict[str, Any]:
    """Our `window` and `window_layers`, from values that include their defaults.

    `every` layer has a window if there is one (Mistral), or `chosen` layers have it if it is in use (Qwen2):
    `layer_types` names them, in older configs `max_window_layers` is the first of them.
    """
    size = theirs.get("sliding_window")
    if which == "every":
        return {"window": size}
    kinds, first = theirs.get("layer_types"), theirs.get("max_window_layers", depth)
    if not theirs.get("use_sliding_window"):
        size = None
    if kinds is None:
        kinds = ["sliding_attention" if size is not None and layer >= first else "full_attention"
                 for layer in range(depth)]  # fmt: skip
    if not isinstance(kinds, list) or len(kinds) != depth or not {*map(str, kinds)} <= KINDS_OF_LAYERS.keys():
        raise CheckpointError(f"{file} has layer_types {kinds!r}; expected {depth} of {', '.join(KINDS_OF_LAYERS)}")
    chosen = tuple(layer for layer, kind in enumerate(kinds) if KINDS_OF_LAYERS[kind])
    if chosen and size is None:
        raise CheckpointError(f"{file} has layer_types with sliding_attention, but no sliding_window in use")
    if not chosen:
        return {"window": None}
    return {"window": size, "window_layers": None if len(chosen) == depth else chosen}


def write_window(ours: Mapping[str, Any], which: str) -> dict[str, Any]:
    """Their config values; `max_window_layers` is for versions that do not read `layer_types`."""
    size, layers, depth = ours["window"], ours["window_layers"], ours["depth"]
    if which == "every":
        if layers is not None:
            raise CheckpointError(f"the model cannot be exported: only its layers {list(layers)} have a window")
        return {"sliding_window": size}
    chosen = {*range(depth)} if size is not None and layers is None else {*(layers or ())}
    kinds = ["sliding_attention" if layer in chosen else "full_attention" for layer in range(depth)]
    return {
        "use_sliding_window": size is not None,
        "sliding_window": size,
        "max_window_layers": min(chosen, default=depth),
        "layer_types": kinds,
    }


@dataclass(frozen=True)
class _Parameters:
    values: Mapping[str, Any]
    file: Path

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CheckpointError(f"{self.file} has {value!r} for {key} of its rope parameters; expected a number")
        return value

    def number_or(self, key: str, default: float) -> float:
        """The value, or the default if the value is missing, null or 0."""
        return self.number(key) if self.values.get(key) else default


def _scaling(kind: str, rope: _Parameters, original: int, max_length: int) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": kind}
    if kind == "yarn" and "factor" in rope.values and rope.values["factor"] is None:
        values["factor"] = max_length / original
    else:
        values["factor"] = rope.number("factor")
    if kind in LIMITS:
        values["original_length"] = original
    if kind == "llama3":
        values |= {ours: rope.number(key) for ours, key in zip(("slow", "fast"), LIMITS[kind], strict=True)}
    if kind == "yarn":
        slow, fast = LIMITS[kind]
        values |= {"slow": rope.number_or(slow, 1.0), "fast": rope.number_or(fast, 32.0)}
        values["whole"] = bool(rope.values.get("truncate", True))
        values["attention_factor"] = _attention_factor(rope, values["factor"])
    return values


def _attention_factor(rope: _Parameters, factor: float) -> float | None:
    if rope.values.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if not (rope.values.get("mscale") and rope.values.get("mscale_all_dim")):
        return None
    growth = 0.1 * math.log(max(factor, 1.0))
    return (1 + rope.number("mscale") * growth) / (1 + rope.number("mscale_all_dim") * growth)


class Transpose(Config):
    """Their matrix is the transpose of ours."""

    op: Literal["transpose"]

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [tensor.T.contiguous() for tensor in tensors]

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return self.forward(tensors, parts)


class Reshape(Config):
    """The same numbers in another shape; -1 is inferred."""

    op: Literal["reshape"]
    theirs: list[int]
    ours: list[int]

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [tensor.reshape(self.ours) for tensor in tensors]

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [tensor.reshape(self.theirs) for tensor in tensors]


class Squeeze(Config):
    """Their tensor has an additional first axis of size 1."""

    op: Literal["squeeze"]

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        if any(tensor.shape[:1] != (1,) for tensor in tensors):
            raise CheckpointError(f"has shape {list(tensors[0].shape)}; expected a first axis of 1")
        return [tensor[0] for tensor in tensors]

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [tensor[None] for tensor in tensors]


class Split(Config):
    """One tensor of theirs holds several equal tensors of ours side by side along `dim`."""

    op: Literal["split"]
    dim: int = 0

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        (whole,) = tensors
        if whole.shape[self.dim] % parts:
            raise CheckpointError(f"a tensor of shape {list(whole.shape)} does not split into {parts} equal parts")
        return [part.contiguous() for part in whole.chunk(parts, self.dim)]

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [torch.cat(tensors, self.dim)]


class Concat(Config):
    """One tensor of ours holds several equal tensors of theirs side by side along `dim`."""

    op: Literal["concat"]
    dim: int = 0

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return [torch.cat(tensors, self.dim)]

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return Split(op="split", dim=self.dim).forward(tensors, parts)


class Tie(Config):
    """All names stand for one tensor; a file may hold it once, and export writes it under its first name only."""

    op: Literal["tie"]

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        if not all(torch.equal(tensors[0], other) for other in tensors[1:]):
            raise CheckpointError("tensors that the config says are one have different values")
        return tensors[:1] * parts

    def backward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        return self.forward(tensors, 1)


class Drop(Config):
    """A tensor without parameters; export recreates it only if `shape` is given (sizes, or names of ours)."""

    op: Literal["drop"]
    # numbers: 0, 1, 2, …; causal: a lower-triangular mask of ones; anything: any content, since nothing uses it;
    # rotary: the frequencies of rotary positions, whose shape is given by width and heads
    value: Literal["zeros", "numbers", "causal", "anything", "sinusoidal_halves", "rotary"]
    shape: list[int | str] | None = None

    def forward(self, tensors: list[Tensor], parts: int) -> list[Tensor]:
        for tensor in tensors:
            # the tolerance accepts tables that were stored in half precision
            if self.value != "anything" and not torch.allclose(
                tensor.float(), self._made(list(tensor.shape)), atol=1e-3
            ):
                raise CheckpointError(f"should hold {self.value}, but holds something else")
        return []

    def regenerate(self, config: Mapping[str, Any]) -> list[Tensor]:
        """Recreate the dropped tensor from sizes alone."""
        if self.shape is None:
            return []
        return [self._made([config[size] if isinstance(size, str) else size for size in self.shape])]

    def _made(self, shape: list[int]) -> Tensor:
        if self.value == "zeros":
            return torch.zeros(shape)
        if self.value == "numbers":
            return torch.arange(shape[-1] if shape else 0, dtype=torch.float32).expand(shape)
        if self.value == "causal":
            return torch.ones(shape).tril()
        if self.value == "rotary":
            width = 2 * shape[0] if len(shape) == 1 else shape[0] // shape[1]
            return 10000 ** -(torch.arange(0, width, 2) / width)
        if len(shape) != 2:
            raise CheckpointError(f"has shape {shape}; expected [positions, width]")
        return sinusoidal(shape[0], shape[1], "halves")


Op = Annotated[Transpose | Reshape | Squeeze | Split | Concat | Tie | Drop, pydantic.Field(discriminator="op")]
