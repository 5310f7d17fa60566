"""The attention layer step by step, as matrices of numbers: what the lectures build in eight steps, by the core itself.

The scores, weights and outputs come from `attention.core`; only the projections are plain products here.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import core as masks
from regard.attention.core import attend, attention_scores, attention_weights
from regard.attention.scores import ScoredAttention
from regard.errors import UsageError

Similarity = Literal["additive", "dot"]
LECTURE_SCORES = [[31.0, 27.0, 22.0], [27.0, 42.0, 31.0], [22.0, 31.0, 37.0]]
TYPE = torch.float64  # numbers that a reader may check by hand


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer in numbers. A weight that is None is left out; without `queries` it is self-attention."""

    inputs: Float[Tensor, "S D"]
    queries: Float[Tensor, "T D"] | None = None
    query_weights: Float[Tensor, "D K"] | None = None
    key_weights: Float[Tensor, "D K"] | None = None
    value_weights: Float[Tensor, "D V"] | None = None
    output_weights: Float[Tensor, "V O"] | None = None
    similarity: Similarity = "dot"
    scaled: bool = False
    causal: bool = False
    heads: int = 1
    order: list[int] = field(default_factory=list)  # the inputs are read in this order; empty = as they are


@dataclass(frozen=True)
class Step:
    """A step of the layer: its name, its formula, and a matrix for each head."""

    name: str
    formula: str
    matrices: Float[Tensor, "H rows columns"]


@dataclass(frozen=True)
class Steps:
    """All steps, and two properties of the result.

    `fused_difference` is the largest difference between the layer written out and the fused kernel; None for the
    additive similarity, which has no fused kernel. `order_difference` is the largest difference between the outputs for
    the reordered inputs and the reordered outputs; None without an order.
    """

    steps: list[Step]
    fused_difference: float | None
    order_difference: float | None


def lecture_example(step: int) -> AttentionLayer:
    """The layer after one of the eight steps, with the lectures' scores of three inputs.

    The inputs are the rows of the identity matrix, so that the queries are the rows of the score matrix and every
    product can be followed by eye.
    """
    if not 1 <= step <= 8:
        raise UsageError(f"the lectures build the attention layer in steps 1 to 8; there is no step {step}")
    scores, identity = torch.tensor(LECTURE_SCORES, dtype=TYPE), torch.eye(3, dtype=TYPE)
    values = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 0.0, 1.0]], dtype=TYPE)
    layer = AttentionLayer(identity, queries=scores[:1])
    layer = replace(layer, similarity="additive") if step == 1 else layer
    layer = replace(layer, scaled=True) if step >= 3 else layer
    layer = replace(layer, queries=scores) if step >= 4 else layer
    layer = replace(layer, key_weights=identity, value_weights=values) if step >= 5 else layer
    layer = replace(layer, queries=None, query_weights=scores) if step >= 6 else layer
    layer = replace(layer, causal=True) if step >= 7 else layer
    return replace(layer, heads=3, output_weights=identity) if step >= 8 else layer


def attention_steps(layer: AttentionLayer) -> Steps:
    """Compute every step of the layer."""
    _check(layer)
    if not layer.order:
        return Steps(*_compute(layer), None)
    plain, _ = _compute(replace(layer, order=[]))
    ordered = replace(layer, inputs=layer.inputs[layer.order], order=[])
    steps, fused = _compute(ordered)
    # With queries of their own the outputs do not move; in self-attention they move with the inputs.
    expected = plain[-1].matrices if layer.queries is not None else plain[-1].matrices[:, layer.order]
    return Steps(steps, fused, (steps[-1].matrices - expected).abs().max().item())


def _compute(layer: AttentionLayer) -> tuple[list[Step], float | None]:
    """The steps of a layer whose inputs are in their order, and the distance to the fused kernel."""
    asking = layer.inputs if layer.queries is None else layer.queries
    names = ("X", "X") if layer.queries is None else ("q", "X")
    q, k, v = (_project(x, weights) for x, weights in (
        (asking, layer.query_weights), (layer.inputs, layer.key_weights), (layer.inputs, layer.value_weights),
    ))  # fmt: skip
    steps = [
        Step(name, formula, product[None])
        for name, formula, product, weights in (
            ("Queries", f"Q = {names[0]} W_Q", q, layer.query_weights),
            ("Keys", "K = X W_K", k, layer.key_weights),
            ("Values", "V = X W_V", v, layer.value_weights),
        )
        if weights is not None
    ]
    q, k, v = (_split(x, layer.heads) for x in (q, k, v))
    scores, scaled = _scores(layer, q, k)
    key = "X" if layer.key_weights is None else "K"
    query = "q" if layer.query_weights is None and layer.queries is not None else "Q"
    formula = f"E = Σ tanh({query} + {key})" if layer.similarity == "additive" else f"E = {query} {key}ᵀ"
    steps.append(Step("Similarities", formula, scores[0]))
    if layer.scaled:
        steps.append(Step("Scaled", f"E / √{k.shape[-1]}", scaled[0]))
    mask = masks.causal(q.shape[-2], k.shape[-2]) if layer.causal else None
    if mask is not None:
        steps.append(Step("Masked", "−∞ above the diagonal", scaled.masked_fill(~mask, -torch.inf)[0]))
    # The scores are handed to the core as a bias of queries and keys that are zero: it adds nothing else to them.
    weights = attention_weights(torch.zeros_like(q), torch.zeros_like(k), bias=scaled, mask=mask)
    outputs = weights @ v
    steps.append(Step("Attention weights", "A = softmax(E), row by row", weights[0]))
    steps.append(Step("Outputs", f"Y = A {'X' if layer.value_weights is None else 'V'}", outputs[0]))
    if layer.heads > 1 or layer.output_weights is not None:
        joined = outputs[0].transpose(0, 1).flatten(1)
        written = "concat(Y)" if layer.output_weights is None else "concat(Y) W_O"
        steps.append(Step("Output of all heads", written, _project(joined, layer.output_weights)[None]))
    if layer.similarity == "additive":
        return steps, None
    fused = attend(q, k, v, mask=mask, scale=None if layer.scaled else 1.0)
    return steps, (fused - outputs).abs().max().item()


def _scores(layer: AttentionLayer, q: Tensor, k: Tensor) -> tuple[Float[Tensor, "1 H T S"], Float[Tensor, "1 H T S"]]:
    """The similarities, and the same after scaling."""
    if layer.similarity == "dot":
        return attention_scores(q, k, scale=1.0), attention_scores(q, k, scale=None if layer.scaled else 1.0)
    scorer = ScoredAttention(q.shape[-1], k.shape[-1], score="additive").to(TYPE).requires_grad_(False)
    torch.nn.init.eye_(
        scorer.of_memory.weight
    )  # W1, W2 = I and W3 = 1: e = Σ tanh(q + k), which can be checked by hand
    torch.nn.init.eye_(scorer.of_query.weight)
    torch.nn.init.zeros_(scorer.of_query.bias)
    torch.nn.init.ones_(scorer.to_score.weight)
    scores = scorer.scores(q[0], scorer.project(k[0]))[None]
    return scores, scores / k.shape[-1] ** 0.5 if layer.scaled else scores


def _project(x: Float[Tensor, "N D"], weights: Float[Tensor, "D E"] | None) -> Float[Tensor, "N E"]:
    return x if weights is None else x @ weights


def _split(x: Float[Tensor, "N D"], heads: int) -> Float[Tensor, "1 H N K"]:
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)[None]


def _check(layer: AttentionLayer) -> None:
    """Shapes that do not fit are named with both shapes."""
    asking = layer.inputs if layer.queries is None else layer.queries
    name = "X" if layer.queries is None else "q"
    for left, left_name, right, right_name in (
        (asking, name, layer.query_weights, "W_Q"),
        (layer.inputs, "X", layer.key_weights, "W_K"),
        (layer.inputs, "X", layer.value_weights, "W_V"),
    ):
        if right is not None and left.shape[1] != len(right):
            raise UsageError(f"{left_name} has {left.shape[1]} columns, but {right_name} has {len(right)} rows")
    q, k, v = (
        x.shape[1] if weights is None else weights.shape[1]
        for x, weights in (
            (asking, layer.query_weights),
            (layer.inputs, layer.key_weights),
            (layer.inputs, layer.value_weights),
        )
    )
    if q != k:
        raise UsageError(f"queries are {q} wide, but keys {k}; they are compared and must be equally wide")
    if q % layer.heads or v % layer.heads:
        raise UsageError(f"{layer.heads} heads do not divide queries {q} wide and values {v} wide")
    if layer.output_weights is not None and len(layer.output_weights) != v:
        raise UsageError(f"the heads give {v} columns together, but W_O has {len(layer.output_weights)} rows")
    if layer.causal and len(asking) > len(layer.inputs):
        raise UsageError(
            f"the causal mask needs as many inputs as queries; there are {len(layer.inputs)} and {len(asking)}"
        )
    if layer.order and sorted(layer.order) != list(range(len(layer.inputs))):
        raise UsageError(f"order names each of the {len(layer.inputs)} inputs once, not {layer.order}")
