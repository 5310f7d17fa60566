"""The neuron view: the score of one query and one key, dimension by dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.intervene import HEADS
from regard.attention.places import find_places
from regard.attention.scores import ScoredAttention
from regard.errors import UsageError


class Neurons(NamedTuple):
    """A query and a key of a head, and the part of each dimension in their score: Σ parts · scale + bias = score.

    The parts are the products q_d k_d; in additive attention they are w_d tanh(q_d + k_d).
    """

    query: Float[Tensor, K]
    key: Float[Tensor, K]
    parts: Float[Tensor, K]
    scale: float
    bias: float

    @property
    def score(self) -> float:
        return float(self.parts.double().sum()) * self.scale + self.bias

    def to_json(self) -> dict[str, Any]:
        """The vectors as plain values."""
        vectors = {"query": self.query, "key": self.key, "parts": self.parts}
        rounded: dict[str, Any] = {name: [round(v, 5) for v in each.tolist()] for name, each in vectors.items()}
        return rounded | {"scale": self.scale, "bias": self.bias, "score": self.score}


@torch.inference_mode()
def neurons(model: nn.Module, layer: str, head: int, query: int, key: int, run: Callable[[], object]) -> Neurons:
    """The neurons of a head for two places of the first input of a batch, while `run` runs the model on it.

    A recurrent model calls its attention once for each query.
    """
    (place,) = find_places(model, f"{layer}.{HEADS}")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        calls.append((args, options))

    handle = place.called.register_forward_hook(keep, with_kwargs=True, prepend=True)
    try:
        run()
    finally:
        handle.remove()
    if not calls:
        raise UsageError(f"{layer} was not used on this input")
    if isinstance(place.called, ScoredAttention):
        return _scored(place.called, calls, query, key)
    args, options = calls[-1]
    q, k = args[0][0], args[1][0]
    if not (0 <= head < len(q) and 0 <= query < q.shape[1] and 0 <= key < k.shape[1]):
        raise UsageError(
            f"{layer} has {len(q)} heads, {q.shape[1]} queries and {k.shape[1]} keys here; head {head}, query {query} "
            f"and key {key} were asked for"
        )
    one, other = q[head, query].float(), k[head * len(k) // len(q), key].float()
    scale, bias = options.get("scale"), options.get("bias")
    added = 0.0 if bias is None else float(bias.expand(-1, len(q), q.shape[1], k.shape[1])[0, head, query, key])
    return Neurons(one, other, one * other, q.shape[-1] ** -0.5 if scale is None else scale, added)


def _scored(module: ScoredAttention, calls: list[Any], query: int, key: int) -> Neurons:
    rows = torch.cat([args[0][0] for args, _ in calls])
    args, _ = calls[-1]
    keys = (args[2] if len(args) > 2 else module.project(args[1]))[0]
    if not (0 <= query < len(rows) and 0 <= key < len(keys)):
        raise UsageError(f"there are {len(rows)} queries and {len(keys)} keys; {query} and {key} were asked for")
    one, other = rows[query].float(), keys[key].float()
    if module.score != "additive":
        return Neurons(one, other, one * other, module.scale, 0.0)
    one = module.of_query(one)
    return Neurons(one, other, module.to_score.weight[0] * torch.tanh(one + other), 1.0, 0.0)
