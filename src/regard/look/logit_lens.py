"""The logit lens: what each layer would have said, if the model had ended there (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.places import record_activations
from regard.errors import UsageError
from regard.look.predictions import TokenProbability

STREAMS = ("decoder.*.residual", "encoder.*.residual")  # those of the layers that end in the answer, best first


@runtime_checkable
class Unembeds(Protocol):
    """A model that turns a residual stream into logits: its final norm, then its output matrix."""

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Tensor: ...


@dataclass(frozen=True)
class LogitLens:
    """The most probable tokens or classes after every layer, at every place."""

    places: Sequence[str]
    layers: dict[str, list[list[TokenProbability]]]  # by layer: for each place, the best first

    def to_json(self) -> dict[str, Any]:
        """The table as plain values."""
        layers = [
            {"name": name, "top": [[[each.token, round(each.probability, 5)] for each in top] for top in rows]}
            for name, rows in self.layers.items()
        ]
        return {"places": list(self.places), "layers": layers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LogitLens:
        """The table that `to_json` wrote."""
        layers = {
            layer["name"]: [[TokenProbability(*each) for each in top] for top in layer["top"]]
            for layer in data["layers"]
        }
        return cls(data["places"], layers)

    def __str__(self) -> str:
        """The best of every layer and place, as lines of columns separated by tabs."""
        lines = ["\t".join(["layer", *map(_shown, self.places)])]
        for name, rows in self.layers.items():
            lines.append("\t".join([name, *(f"{_shown(top[0].token)} {top[0].probability:.0%}" for top in rows)]))
        return "\n".join(lines)


@torch.inference_mode()
def logit_lens(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """The logits after every layer, by the name of the layer, while `run` runs the model in one pass.

    Those of the last layer are the model's own.
    """
    if not isinstance(model, Unembeds):
        raise UsageError(f"a {type(model).__name__} has no unembedding of its streams")
    pattern = STREAMS[0 if hasattr(model, "decoder") else 1]
    with record_activations(model, pattern) as seen:
        run()
    return {name.removesuffix(".residual"): model.unembed(stream) for name, stream in seen.items()}


def lens_of(
    model: nn.Module,
    run: Callable[[], object],
    places: Sequence[str],
    names: Callable[[Sequence[int]], Sequence[str]],
    top: int,
) -> LogitLens:
    """The most probable outputs after every layer for the first input of a pass; `names` are those of outputs."""
    layers = {}
    for layer, logits in logit_lens(model, run).items():
        rows = (logits if logits.dim() == 3 else logits[:, None])[0].float().softmax(dim=-1)
        shares, ids = rows.topk(min(top, rows.shape[-1]), dim=-1)
        layers[layer] = [
            [TokenProbability(*each) for each in zip(names(row), share, strict=True)]
            for row, share in zip(ids.tolist(), shares.tolist(), strict=True)
        ]
    return LogitLens(places, layers)


def _shown(token: str) -> str:
    return token.replace("\t", "\\t").replace("\n", "\\n")
