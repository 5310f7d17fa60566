"""The arithmetic of costs: what one part of a model takes, whatever model it is a part of.

See `costs.py` for what is counted, and how.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOAT = 4  # bytes of a float32


@dataclass(frozen=True)
class Cost:
    """Parameters, forward FLOPs and numbers kept for the backward pass; costs of parts add up."""

    parameters: int = 0
    flops: int = 0
    kept: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.flops + other.flops, self.kept + other.kept)

    def __rmul__(self, copies: int) -> Cost:
        return Cost(copies * self.parameters, copies * self.flops, copies * self.kept)


@dataclass(frozen=True)
class Matrix:
    """One attention matrix per head: queries by keys, in each of the windows that attention is confined to."""

    name: str
    heads: int
    queries: int
    keys: int
    windows: int = 1

    @property
    def entries(self) -> int:
        return self.windows * self.heads * self.queries * self.keys

    @property
    def nbytes(self) -> int:
        """The memory it would take if it were written out in float32; fused attention never does."""
        return FLOAT * self.entries


@dataclass(frozen=True)
class Costs:
    """A model part by part, its attention matrices, and what decoding remembers of a sentence and of a hypothesis."""

    parts: dict[str, Cost]
    matrices: list[Matrix]
    sentence_cache: int
    hypothesis_cache: int

    @property
    def total(self) -> Cost:
        return sum(self.parts.values(), Cost())


def linear(rows: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """x W + b; its input is counted by whoever makes it, because several layers may share one."""
    return Cost(inputs * outputs + bias * outputs, 2 * rows * inputs * outputs)


def attention(
    queries: int,
    keys: int,
    width: int,
    heads: int,
    dropout: float,
    *,
    head_width: int | None = None,
    kv_heads: int | None = None,
    bias: bool = True,
) -> Cost:
    """Four projections around softmax(q kᵀ) v. Kept: the input of the queries, q, k, v, the result, a sum per row."""
    head_width = head_width or width // heads
    inner, shared = heads * head_width, (kv_heads or heads) * head_width
    projections = linear(queries, width, inner, bias=bias) + 2 * linear(keys, width, shared, bias=bias)
    projections += linear(queries, inner, width, bias=bias)
    looking = Cost(flops=4 * queries * keys * inner, kept=queries * (width + 2 * inner + heads) + 2 * keys * shared)
    written_out = 3 * heads * queries * keys if dropout else 0  # weights, mask, and their product
    return projections + looking + Cost(kept=written_out)


def feed_forward(
    rows: int,
    width: int,
    hidden: int,
    activation: str,
    dropout: float,
    *,
    gated: bool = False,
    bias: bool = True,
    outputs: int | None = None,
) -> Cost:
    """relu keeps one hidden tensor (its result), the other activations two, quick GELU three; dropout inside makes it
    three. A gate keeps both factors and what the activation was given; dropout keeps its mask and result besides."""
    tensors = 3 if dropout or activation == "quick_gelu" else 1 if activation == "relu" else 2
    if gated:
        tensors = (3 if activation == "relu" else 4) + (1 if dropout else 0)
    products = (2 if gated else 1) * linear(rows, width, hidden, bias=bias)
    products += linear(rows, hidden, outputs or width, bias=bias)
    return products + Cost(kept=rows * (width + tensors * hidden))


def norm(rows: int, width: int) -> Cost:
    """Gain and offset; kept: the input, and the mean and deviation of each row."""
    return Cost(parameters=2 * width, kept=rows * (width + 2))


def rms_norm(rows: int, width: int) -> Cost:
    """A gain; kept: the input, the input made even, and the size of each row."""
    return Cost(parameters=width, kept=rows * (2 * width + 1))


def masked(rows: int, width: int, dropout: float) -> Cost:
    """The mask of a dropout."""
    return Cost(kept=rows * width if dropout else 0)
