"""The logit lens: what each layer would have said, if the model had ended there (nostalgebraist 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.activations import record_activations
from regard.errors import UsageError

STREAMS = ("decoder.*.residual", "encoder.*.residual")  # those of the layers that end in the answer, best first


@runtime_checkable
class Unembeds(Protocol):
    """A model that turns a residual stream into logits: its final norm, then its output matrix."""

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Tensor: ...


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
