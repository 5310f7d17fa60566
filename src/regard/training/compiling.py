"""Compiled models for training. Layers that repeat are compiled once and used for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regard.layers.blocks import DecoderLayer, EncoderLayer


def compiled(model: nn.Module, *, lengths_vary: bool) -> nn.Module:
    """A compiled form of the model that shares its weights; `bare` gives the model back.

    If lengths vary, code with symbolic sizes is made, which takes minutes for a deep model. So its layers are compiled
    instead: one encoder and one decoder layer, in seconds, and the operations between layers are few.
    """
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    if lengths_vary and layers:
        return CompiledLayers(model, layers)
    return torch.compile(model, dynamic=lengths_vary)  # type: ignore[return-value]


class CompiledLayers(nn.Module):
    """A model whose layers are compiled while it is called this way; called by itself, it is as it was."""

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self._orig_mod = model  # the name that torch.compile's own wrapper has
        self._compiled = [(layer, torch.compile(layer.forward, dynamic=True)) for layer in layers]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        for layer, forward in self._compiled:
            layer.forward = forward
        try:
            return self._orig_mod(*inputs, **options)
        finally:
            for layer, _ in self._compiled:
                del layer.forward
