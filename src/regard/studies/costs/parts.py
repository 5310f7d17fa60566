"""The costs of the parts that models are composed of.

`models.py` says what is counted, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from regard.families.translation.seq2seq import Seq2SeqConfig
from regard.families.translation.transformer import TransformerConfig

FLOAT = 4  # bytes of a float32

Kind = Literal[
    "product", "convolution", "batch_norm", "attention", "written", "lstm", "stream", "curve", "gelu", "draw", "update",
    "call",
]  # fmt: skip


class Piece(NamedTuple):
    """Work of one kind and size in a training step, forward and backward; `machine_limits.py` measures its time.

    product (rows, inputs, outputs): a linear layer with both of its gradients; convolution (images, output side,
    inputs, outputs, kernel, groups, stride); batch_norm (images, channels, pixels); attention (sequences, heads,
    queries, keys, head width) in a fused kernel, or `written` with materialised weights; lstm (sequences, steps,
    inputs, width) in a fused kernel. The others have a number of elements: stream, one tensor read or written; curve,
    an exponential of each; gelu, with its gradient; draw, a random number for each; update, one tensor read or written
    in place. call: the overhead of one operation.
    """

    kind: Kind
    size: tuple[int, ...] = ()
    grows: bool = True  # whether the first number is multiplied by the batch

    def of_batch(self, batch: int) -> Piece:
        """The same work for a batch of this many examples."""
        return Piece(self.kind, (batch * self.size[0], *self.size[1:]), False) if self.grows and self.size else self


@dataclass(frozen=True)
class Cost:
    """Parameters, forward FLOPs, numbers kept for the backward pass, and work by pieces; the costs of parts can be
    added."""

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
    """One attention matrix per head: queries by keys, in each window if attention stays within windows."""

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
        """The bytes of the matrix in float32 if it were materialised; fused attention never does so."""
        return FLOAT * self.entries


class Scored(NamedTuple):
    """The output layer's input: the number of tokens per example, the width of their vectors, and the vocabulary."""

    tokens: int
    width: int
    vocabulary: int


@dataclass(frozen=True)
class Costs:
    """The costs of a model by part, its attention matrices, and the numbers that decoding caches for each sentence and
    for each hypothesis."""

    parts: dict[str, Cost]
    matrices: list[Matrix]
    sentence_cache: int
    hypothesis_cache: int
    scored: Scored | None = None
    tokens: int = 1  # tokens per example that a training step learns from; an image counts as one
    grows: bool = False  # whether a hypothesis caches keys and values of every generated token
    reads: str = "sentences of {source} source and {target} target tokens"  # what a batch consists of

    @property
    def total(self) -> Cost:
        return sum(self.parts.values(), Cost())


def calls(count: int) -> Cost:
    """This many operations that autograd records, views included."""
    return Cost(work={Piece("call"): count})


def streams(numbers: int, times: int, *, grows: bool = True) -> Cost:
    """Tensors of this many numbers, read or written this many times, forward and backward."""
    return Cost(work={Piece("stream", (numbers,), grows): times} if numbers and times else {})


def summed(numbers: int, times: int = 1, *, grows: bool = True) -> Cost:
    """Gradients of this many numbers, each added to an existing one."""
    return Cost(work={Piece("update", (numbers,), grows): 3 * times})


def curved(numbers: int, times: int = 1) -> Cost:
    """Exponentials (softmax, tanh, GELU) of this many numbers, with reading and writing them."""
    return Cost(work={Piece("curve", (numbers,)): times})


def linear(rows: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """x W + b. The part that produces the input counts it as kept, because several layers may share it."""
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
    kv_width: int | None = None,
    bias: bool = True,
    written: bool = False,
) -> Cost:
    """Four projections around softmax(q kᵀ) v. Kept: the input of the queries, q, k, v, the result, a sum per row.

    The weights are `written` out with dropout or a learned bias. The gradient of the input is the sum over three
    projections.
    """
    head_width = head_width or width // heads
    inner, shared, kv_width = heads * head_width, (kv_heads or heads) * head_width, kv_width or width
    projections = linear(queries, width, inner, bias=bias) + 2 * linear(keys, kv_width, shared, bias=bias)
    projections += linear(queries, inner, width, bias=bias) + summed(keys * kv_width, 2)
    looking = Cost(flops=4 * queries * keys * inner, kept=queries * (width + 2 * inner + heads) + 2 * keys * shared)
    dropped = Cost(kept=3 * heads * queries * keys) if dropout else Cost()  # weights, mask, and their product
    if dropout:
        dropped += masked(heads * queries * keys, 1, dropout, kept=False)
    kind: Kind = "written" if dropout or written else "attention"
    return projections + looking + dropped + scored(1, heads, queries, keys, head_width, kind)


def scored(sequences: int, heads: int, queries: int, keys: int, head_width: int, kind: Kind = "attention") -> Cost:
    """The work of softmax(q kᵀ) v alone, with its views of heads."""
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
    """ReLU keeps one hidden tensor (its result), other activations two, quick GELU three; with dropout inside it is
    always three. A gate keeps both factors and the input of the activation; dropout also keeps its mask and result."""
    tensors = 3 if dropout or activation == "quick_gelu" else 1 if activation == "relu" else 2
    if gated:
        tensors = (3 if activation == "relu" else 4) + (1 if dropout else 0)
    products = (2 if gated else 1) * linear(rows, width, hidden, bias=bias)
    products += linear(rows, hidden, outputs or width, bias=bias)
    gate = streams(rows * hidden, 9) + summed(rows * width) + calls(1) if gated else Cost()
    inside = activated(rows * hidden, activation) + gate + masked(rows, hidden, dropout, kept=False)
    return products + inside + Cost(kept=rows * (width + tensors * hidden))


def activated(numbers: int, activation: str) -> Cost:
    """An activation and its gradient; smooth ones compute an exponential in both passes."""
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
    """A gain; kept: the input, the normalised input, each row's scale. Torch composes it of small operations."""
    return Cost(parameters=width, kept=rows * (2 * width + 1)) + streams(rows * width, 30) + calls(7)


def masked(rows: int, width: int, dropout: float, *, kept: bool = True) -> Cost:
    """Dropout: a random mask, which is kept, times the input."""
    if not dropout:
        return Cost()
    drawn = Cost(kept=rows * width if kept else 0, work={Piece("draw", (rows * width,)): 1})
    return drawn + streams(rows * width, 6) + calls(1)


def added(numbers: int) -> Cost:
    """The sum of two branches; the backward pass sums their gradients where they split."""
    return streams(numbers, 3) + summed(numbers) + calls(1)


def residual(rows: int, width: int, dropout: float, even: Callable[[int, int], Cost] = norm) -> Cost:
    """x + Dropout(f(x)), and a norm; the gradient of x is the sum of both branches'."""
    return even(rows, width) + masked(rows, width, dropout) + added(rows * width)


def embedded(rows: int, width: int, vocabulary: int, *, parameters: int | None = None, changes: int = 1) -> Cost:
    """Vectors looked up in a table, then changed by this many additions of positions or products with a scale. The
    gradient is as large as the table. `parameters` is 0 if the table was counted elsewhere."""
    looked_up = streams(rows * width, 3 + 4 * changes) + streams(vocabulary * width, 2, grows=False)
    return Cost(vocabulary * width if parameters is None else parameters) + looked_up + calls(1 + changes)


def generator(tokens: int, width: int, vocabulary: int, *, bias: bool, tied: bool, trained: int | None = None) -> Cost:
    """The output matrix, which may be an embedding; `trained` is the number of tokens whose logits training computes,
    if not all.

    Logits and loss are computed piece by piece (`training_step.py`). The gradients of the two factors are kept until
    the backward pass scales them; that of the matrix does not depend on the batch.
    """
    output = linear(tokens, width, vocabulary, bias=bias)
    rows = tokens if trained is None else trained
    output = replace(output, work=linear(rows, width, vocabulary, bias=bias).work)
    if tied:
        output = replace(output, parameters=bias * vocabulary) + summed(width * vocabulary, grows=False)
    return output + streams(width * vocabulary, 3, grows=False) + streams(rows * width, 10) + calls(3)


def convolution_layer(rows: int, width: int, kernel: int, dropout: float) -> Cost:
    """A gated convolution; kept: its input, and both halves before the gate."""
    gate = Cost(kept=3 * rows * width) + curved(rows * width, 2) + streams(rows * width, 18) + calls(8)
    return linear(rows, kernel * width, 2 * width) + gate + masked(rows, width, dropout)


def pair_embeddings(c: TransformerConfig | Seq2SeqConfig, source: int, target: int, width: int, changes: int) -> Cost:
    """The tokens of a source and of a target, whose vectors may be the same."""
    of_source = embedded(source, width, c.source_vocab, changes=changes)
    parameters = 0 if c.tie == "all" else None
    of_target = embedded(target, width, c.target_vocab, parameters=parameters, changes=changes)
    return of_source + of_target + masked(source + target, width, c.dropout)
