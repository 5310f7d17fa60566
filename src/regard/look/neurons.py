"""The neuron view: the score of one query and one key, dimension by dimension.

`record_neurons` keeps what the scores of attention layers are made of while a model runs, as `record` keeps their
weights: it only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.attention.intervene import HEADS
from regard.attention.places import find_places
from regard.attention.scores import ScoredAttention
from regard.errors import UsageError

Cells = tuple[Int[np.ndarray, "N Tq"], Int[np.ndarray, "N Tk"]]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a module


class Neurons(NamedTuple):
    """A query and a key of a head, and the part of each dimension in their score: Σ parts · scale + bias = score.

    The parts are the products q_d k_d; in additive attention they are w_d tanh(q_d + k_d).
    """

    query: Float[np.ndarray, K]
    key: Float[np.ndarray, K]
    parts: Float[np.ndarray, K]
    scale: float
    bias: float

    @property
    def score(self) -> float:
        return float(self.parts.astype(np.float64).sum()) * self.scale + self.bias

    def to_json(self) -> dict[str, Any]:
        """The vectors as plain values."""
        vectors = {"query": self.query, "key": self.key, "parts": self.parts}
        rounded: dict[str, Any] = {name: [round(v, 5) for v in each.tolist()] for name, each in vectors.items()}
        return rounded | {"scale": self.scale, "bias": self.bias, "score": self.score}


@dataclass(frozen=True, eq=False)
class OwnNeurons:
    """Queries and keys of a second projection, which scores a query and a key whose groups have one number."""

    queries: Float[np.ndarray, "N H Tq K"]
    keys: Float[np.ndarray, "N G Tk K"]
    groups: tuple[Int[np.ndarray, Tq], Int[np.ndarray, Tk]]

    def part(self, heads: slice, shared: slice, queries: slice, keys: slice) -> OwnNeurons:
        """Those of some heads of queries and of keys, and of some queries and keys."""
        groups = self.groups[0][queries], self.groups[1][keys]
        return OwnNeurons(self.queries[:, heads, queries], self.keys[:, shared, keys], groups)


@dataclass(frozen=True, eq=False)
class LayerNeurons:
    """What the scores of an attention layer are made of, for one input.

    N is 1, or the number of windows; `cells` are then the places of every query and key of each window, -1 for padding.
    Several of the H heads may share one of the G heads of keys. `additive` are the weights w of additive attention.
    `own` scores some pairs instead, such as those of one agent.
    """

    queries: Float[np.ndarray, "N H Tq K"]
    keys: Float[np.ndarray, "N G Tk K"]
    scale: float
    bias: Float[np.ndarray, "#N #H #Tq #Tk"] | None = None
    additive: Float[np.ndarray, K] | None = None
    cells: Cells | None = None
    own: OwnNeurons | None = None

    @property
    def vectors(self) -> list[np.ndarray]:
        """The queries and keys, then those of own pairs, then the bias; the last ones if there are any."""
        own = [] if self.own is None else [self.own.queries, self.own.keys]
        return [self.queries, self.keys, *own, *([] if self.bias is None else [self.bias])]

    @property
    def size(self) -> int:
        """How many numbers these are."""
        return sum(each.size for each in self.vectors)

    def input(self, number: int) -> LayerNeurons:
        """The neurons of one input of a batch."""
        one = slice(number, number + 1)
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[one]
        return replace(self, queries=self.queries[one], keys=self.keys[one], bias=bias)

    def head(self, number: int) -> LayerNeurons:
        """The neurons of one head alone."""
        group = number * self.keys.shape[1] // self.queries.shape[1]
        bias = self.bias if self.bias is None or self.bias.shape[1] == 1 else self.bias[:, number : number + 1]
        heads, shared = slice(number, number + 1), slice(group, group + 1)
        own = None if self.own is None else self.own.part(heads, shared, slice(None), slice(None))
        return replace(self, queries=self.queries[:, heads], keys=self.keys[:, shared], bias=bias, own=own)

    def part(self, queries: slice, keys: slice = slice(None)) -> LayerNeurons:
        """The neurons of some queries and keys."""
        bias = self.bias
        if bias is not None:
            bias = bias if bias.shape[2] == 1 else bias[:, :, queries]
            bias = bias if bias.shape[3] == 1 else bias[:, :, :, keys]
        own = None if self.own is None else self.own.part(slice(None), slice(None), queries, keys)
        return replace(self, queries=self.queries[:, :, queries], keys=self.keys[:, :, keys], bias=bias, own=own)

    def mean_over(self, spans: Sequence[slice]) -> LayerNeurons:
        """One query for each span of queries: their mean, whose scores are the mean of theirs."""
        queries = np.stack([self.queries[:, :, span].mean(axis=2) for span in spans], axis=2)
        bias = self.bias
        if bias is not None and bias.shape[2] > 1:
            bias = np.stack([bias[:, :, span].mean(axis=2) for span in spans], axis=2)
        return replace(self, queries=queries, bias=bias)

    def at(self, head: int, query: int, key: int) -> Neurons | None:
        """The neurons of a head for two places; None if they do not meet, as in different windows."""
        count, heads, queries, _ = self.queries.shape
        groups, keys = self.keys.shape[1:3]
        if self.cells is not None:
            queries = keys = 1 + max(int(each.max()) for each in self.cells)
        if not (0 <= head < heads and 0 <= query < queries and 0 <= key < keys):
            raise UsageError(
                f"there are {heads} heads, {queries} queries and {keys} keys here; head {head}, query {query} and key "
                f"{key} were asked for"
            )
        at = (0, query, key) if self.cells is None else self._in_window(query, key)
        if at is None:
            return None
        window, row, column = at
        own = self.own is not None and self.own.groups[0][row] == self.own.groups[1][column]
        found = self.own if own and self.own is not None else self
        one, other = found.queries[window, head, row], found.keys[window, head * groups // heads, column]
        shape = (count, heads, *self.queries.shape[2:3], *self.keys.shape[2:3])
        bias = 0.0 if self.bias is None else float(np.broadcast_to(self.bias, shape)[window, head, row, column])
        parts = one * other if self.additive is None else self.additive * np.tanh(one + other)
        return Neurons(one, other, parts, self.scale, bias)

    def _in_window(self, query: int, key: int) -> tuple[int, int, int] | None:
        assert self.cells is not None
        for window, row in np.argwhere(self.cells[0] == query):
            if len(column := np.flatnonzero(self.cells[1][window] == key)):
                return int(window), int(row), int(column[0])
        return None


@contextmanager
def record_neurons(
    model: nn.Module, layers: str | Sequence[str], *, unrolled: bool = False
) -> Iterator[dict[str, LayerNeurons]]:
    """Keep what the scores of attention layers whose names match are made of; it is there when the context ends.

    Of a batch every input is kept, and read as a window; without `cells` it is the first that counts. Of several calls
    of a layer the last is kept; with `unrolled` they are steps of one sequence, and all their queries are kept with the
    keys of the last. A recurrent model calls its attention once for each query in any case.
    """
    patterns = [layers] if isinstance(layers, str) else list(layers)
    found, calls = dict[str, LayerNeurons](), dict[str, list[Call]]()
    places = find_places(model, [f"{each}.{HEADS}" for each in patterns])
    modules = {place.name.removesuffix(f".{HEADS}"): place.called for place in places}

    def keep(module: nn.Module, name: str) -> RemovableHandle:
        def hook(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            calls.setdefault(name, []).append((args, options))

        return module.register_forward_hook(hook, with_kwargs=True, prepend=True)

    handles = [keep(module, name) for name, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
    for name, several in calls.items():
        module, used = modules[name], slice(None) if unrolled else slice(-1, None)
        if isinstance(module, ScoredAttention):
            found[name] = _scored(module, several)
        else:
            found[name] = _attended(several[used])


@torch.inference_mode()
def neurons(model: nn.Module, layer: str, head: int, query: int, key: int, run: Callable[[], object]) -> Neurons:
    """The neurons of a head for two places of the first input of a batch, while `run` runs the model on it."""
    with record_neurons(model, [layer]) as seen:
        run()
    if layer not in seen:
        raise UsageError(f"{layer} was not used on this input")
    found = seen[layer].at(head, query, key)
    assert found is not None  # without windows all places meet
    return found


def _attended(calls: Sequence[Call]) -> LayerNeurons:
    (*_, (args, options)) = calls
    q, k = args[:2]
    scale, bias = options.get("scale"), options.get("bias")
    queries = torch.cat([each[0] for each, _ in calls], dim=2)
    return LayerNeurons(
        _array(queries), _array(k), q.shape[-1] ** -0.5 if scale is None else scale,
        None if bias is None else _array(bias),
    )  # fmt: skip


def _scored(module: ScoredAttention, calls: Sequence[Call]) -> LayerNeurons:
    rows = torch.cat([args[0][:1] for args, _ in calls], dim=1)
    args, _ = calls[-1]
    keys = (args[2] if len(args) > 2 else module.project(args[1]))[:1]
    if module.score != "additive":
        return LayerNeurons(_array(rows)[:, None], _array(keys)[:, None], module.scale)
    asked = _array(module.of_query(rows))
    return LayerNeurons(asked[:, None], _array(keys)[:, None], 1.0, additive=_array(module.to_score.weight[0]))


def _array(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
