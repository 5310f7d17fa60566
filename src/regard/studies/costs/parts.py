"""The arithmetic of costs: what one part of a model takes, whatever model it is a part of.

See `costs.py` for what is counted, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

FLOAT = 4  # bytes of a float32

Kind = Literal[
    "product", "convolution", "batch_norm", "attention", "written", "lstm", "stream", "curve", "gelu", "draw", "update",
    "call",
]  # fmt: skip


class Piece(NamedTuple):
    """Work of one kind and size, forward and backward, as a training step has it; `limits.py` measures its time.

    product (rows, inputs, outputs): a linear layer with both of its gradients; convolution (pictures, side of the
    result, inputs, outputs, kernel, groups, stride); batch_norm (pictures, channels, pixels); attention (sequences,
    heads, queries, keys, head width) in a fused kernel, or `written` out; lstm (sequences, steps, inputs, width) in a
    fused kernel. Of so many numbers: stream, one tensor read or written; curve, an exponential of each; gelu, and its
    gradient; draw, a random number for each; update, one tensor read or written in place. call: what one operation
    costs before it has computed anything.
    """

    kind: Kind
    size: tuple[int, ...] = ()
    grows: bool = True  # the first number with the batch

    def of_batch(self, batch: int) -> Piece:
        """The same for so many examples at once."""
        return Piece(self.kind, (batch * self.size[0], *self.size[1:]), False) if self.grows and self.size else self


@dataclass(frozen=True)
class Cost:
    """Parameters, forward FLOPs, numbers kept for the backward pass, and work by pieces; costs of parts add up."""

    parameters: int = 0
    flops: int = 0
    kept: int = 0
    work: Mapping[Piece, int] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        work = dict(self.work)
        for piece, times in other.work.items():
            work[piece] = work.get(piece, 0) + times
        return Cost(self.parameters + other.parameters, self.flops + other.flops, self.kept + other.kept, work)

    def __rmul__(self, copies: int) -> Cost:
        work = {piece: copies * times for piece, times in self.work.items()}
        return Cost(copies * self.parameters, copies * self.flops, copies * self.kept, work)


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


class Scored(NamedTuple):
    """What a loss scores with a whole vocabulary: so many tokens of an example, each a vector of so many numbers."""

    tokens: int
    width: int
    vocabulary: int


@dataclass(frozen=True)
class Costs:
    """A model part by part, its attention matrices, and the numbers that decoding caches for a sentence and for each
    hypothesis."""

    parts: dict[str, Cost]
    matrices: list[Matrix]
    sentence_cache: int
    hypothesis_cache: int
    scored: Scored | None = None
    tokens: int = 1  # of one example that a training step learns from; an image counts as one
    grows: bool = False  # whether a hypothesis caches keys and values of every token it has written

    @property
    def total(self) -> Cost:
        return sum(self.parts.values(), Cost())


def calls(count: int) -> Cost:
    """So many operations that autograd remembers, views among them."""
    return Cost(work={Piece("call"): count})


def streams(numbers: int, times: int, *, grows: bool = True) -> Cost:
    """Tensors of so many numbers, read or written so many times, forward and backward."""
    return Cost(work={Piece("stream", (numbers,), grows): times} if numbers and times else {})


def summed(numbers: int, times: int = 1, *, grows: bool = True) -> Cost:
    """Gradients of so many numbers, each added to one that is there already."""
    return Cost(work={Piece("update", (numbers,), grows): 3 * times})


def curved(numbers: int, times: int = 1) -> Cost:
    """Exponentials (softmax, tanh, GELU) of so many numbers, read and written on the way."""
    return Cost(work={Piece("curve", (numbers,)): times})


def linear(rows: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """x W + b; its input is counted by whoever makes it, because several layers may share one."""
    product = Cost(inputs * outputs + bias * outputs, 2 * rows * inputs * outputs)
    return product + Cost(work={Piece("product", (rows, inputs, outputs)): 1}) + calls(5 + bias)


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
    written: bool = False,
) -> Cost:
    """Four projections around softmax(q kᵀ) v. Kept: the input of the queries, q, k, v, the result, a sum per row.

    The weights are `written` out where they are dropped, or where a bias is learned. What three projections read has a
    gradient that is added up.
    """
    head_width = head_width or width // heads
    inner, shared = heads * head_width, (kv_heads or heads) * head_width
    projections = linear(queries, width, inner, bias=bias) + 2 * linear(keys, width, shared, bias=bias)
    projections += linear(queries, inner, width, bias=bias) + summed(keys * width, 2)
    looking = Cost(flops=4 * queries * keys * inner, kept=queries * (width + 2 * inner + heads) + 2 * keys * shared)
    dropped = Cost(kept=3 * heads * queries * keys) if dropout else Cost()  # weights, mask, and their product
    if dropout:
        dropped += masked(heads * queries * keys, 1, dropout, kept=False)
    kind: Kind = "written" if dropout or written else "attention"
    return projections + looking + dropped + scored(1, heads, queries, keys, head_width, kind)


def scored(sequences: int, heads: int, queries: int, keys: int, head_width: int, kind: Kind = "attention") -> Cost:
    """softmax(q kᵀ) v itself, with its views of heads: the work alone."""
    written_out = calls(20) if kind == "written" else Cost()
    return Cost(work={Piece(kind, (sequences, heads, queries, keys, head_width)): 1}) + calls(10) + written_out


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
    gate = streams(rows * hidden, 9) + summed(rows * width) + calls(1) if gated else Cost()
    inside = activated(rows * hidden, activation) + gate + masked(rows, hidden, dropout, kept=False)
    return products + inside + Cost(kept=rows * (width + tensors * hidden))


def activated(numbers: int, activation: str) -> Cost:
    """An activation and its gradient; the curved ones compute an exponential on both ways."""
    match activation:
        case "relu":
            return streams(numbers, 5) + calls(1)
        case "gelu" | "gelu_new":
            return Cost(work={Piece("gelu", (numbers,)): 1}) + calls(1)
        case "quick_gelu":
            return curved(numbers, 2) + streams(numbers, 16) + calls(3)
    return curved(numbers, 2) + streams(numbers, 1) + calls(1)


def norm(rows: int, width: int) -> Cost:
    """Gain and offset; kept: the input, and the mean and deviation of each row."""
    return Cost(parameters=2 * width, kept=rows * (width + 2)) + streams(rows * width, 5) + calls(3)


def rms_norm(rows: int, width: int) -> Cost:
    """A gain; kept: the input, the input made even, and the size of each row. Torch composes it of small operations."""
    return Cost(parameters=width, kept=rows * (2 * width + 1)) + streams(rows * width, 30) + calls(7)


def masked(rows: int, width: int, dropout: float, *, kept: bool = True) -> Cost:
    """A dropout: a random mask, which is kept, times the input."""
    if not dropout:
        return Cost()
    drawn = Cost(kept=rows * width if kept else 0, work={Piece("draw", (rows * width,)): 1})
    return drawn + streams(rows * width, 6) + calls(1)


def added(numbers: int) -> Cost:
    """Two branches that meet: their sum, and where they part the sum of their gradients."""
    return streams(numbers, 3) + summed(numbers) + calls(1)


def residual(rows: int, width: int, dropout: float, even: Callable[[int, int], Cost] = norm) -> Cost:
    """x + Dropout(f(x)), and a norm; the gradient of x is added up from both ways."""
    return even(rows, width) + masked(rows, width, dropout) + added(rows * width)


def embedded(rows: int, width: int, vocabulary: int, *, parameters: int | None = None, changes: int = 1) -> Cost:
    """Vectors looked up in a table, whose gradient is as large as the table, and changed by so many additions of
    positions or products with a scale. `parameters`: 0 where the table was counted elsewhere."""
    looked_up = streams(rows * width, 3 + 4 * changes) + streams(vocabulary * width, 2, grows=False)
    return Cost(vocabulary * width if parameters is None else parameters) + looked_up + calls(1 + changes)


def generator(tokens: int, width: int, vocabulary: int, *, bias: bool, tied: bool, trained: int | None = None) -> Cost:
    """The output matrix, which may be an embedding; `trained` are the tokens whose logits training makes, if not all.

    Its logits and their loss come and go piece by piece (`step.py`). The gradients of its factors wait for the backward
    pass, where they are scaled; that of the matrix is as large whatever the batch.
    """
    output = linear(tokens, width, vocabulary, bias=bias)
    rows = tokens if trained is None else trained
    output = replace(output, work=linear(rows, width, vocabulary, bias=bias).work)
    if tied:
        output = replace(output, parameters=bias * vocabulary) + summed(width * vocabulary, grows=False)
    return output + streams(width * vocabulary, 3, grows=False) + streams(rows * width, 10) + calls(3)
