"""The operations that turn another library's tensors into Regard's; each has an inverse.

`forward` maps their tensors to ours and `backward` ours to theirs; `parts` is the required number of results.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
import torch
from torch import Tensor

from regard.attention.positions import sinusoidal
from regard.config import Config
from regard.errors import CheckpointError


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
