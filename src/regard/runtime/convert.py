"""The fast version of a model: the same methods and answers, made of parts for inference only.

The model itself does not change, and shares with its fast version every part that needs no change. A part whose type is
in `FASTER` is replaced by one that computes the same: one product for queries, keys and values, weights laid out in
advance (linear.py), nothing that only training needs. The `Attend` modules and all hooks are shared, so recording or
changing the model also records or changes its fast version.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, MultiHeadAttention
from regard.attention.places import share_hooks
from regard.errors import UsageError
from regard.layers.blocks import DropPath, Output
from regard.runtime.compiled_layers import compiled_layer, real_token_rows
from regard.runtime.linear import fast_linear, resolve_precision

Model = TypeVar("Model", bound=nn.Module)
GPU_PRECISIONS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fast_model(model: Model, precision: str = "fp32") -> Model:
    """The fast version of a model; on a GPU, of a copy in half precision if that is asked for."""
    if is_on_cpu(model):
        return _fast(model, resolve_precision(precision), {})
    precision = "fp32" if precision == "auto" else precision
    if precision not in GPU_PRECISIONS:
        raise UsageError(f"on a GPU there is no precision {precision!r}; choose one of {', '.join(GPU_PRECISIONS)}")
    return _fast(model if precision == "fp32" else _in_half_precision(model, precision), precision, {})


def _in_half_precision(model: Model, precision: str) -> Model:
    half = copy.deepcopy(model).to(GPU_PRECISIONS[precision])
    for module, its_copy in zip(model.modules(), half.modules(), strict=True):
        share_hooks(module, its_copy)
    return half


def is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


class FusedAttention(MultiHeadAttention):
    """One product for queries, keys and values, or for the keys and values of a memory."""

    def __init__(self, model: MultiHeadAttention, precision: str):
        nn.Module.__init__(self)
        self.heads, self.kv_heads, self.head_width = model.heads, model.kv_heads, model.head_width
        self.scale, self.prepare, self.position, self.dropout = model.scale, model.prepare, model.position, 0.0
        self.query, self.output = fused([model.query], precision), fused([model.output], precision)
        self.gate = None if model.gate is None else fused([model.gate], precision)
        self.query_norm, self.key_norm = model.query_norm, model.key_norm
        self.attend = model.attend  # the same module, so that recording the model records this one too
        self.parts, self.precision = (model.query, model.key, model.value), precision
        self.eval()

    # Made when first needed: self-attention uses the first, cross-attention the second.
    @cached_property
    def together(self) -> nn.Module:
        return fused(self.parts, self.precision)

    @cached_property
    def pair(self) -> nn.Module:
        return fused(self.parts[1:], self.precision)

    def remember(self, memory: Float[Tensor, "B Tk M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None) -> Memory:
        both = self.pair(memory) if mask is None or memory.is_cuda else apply_to_real_tokens(self.pair, memory, mask)
        k, v = self._split(both, 2 * self.kv_heads).contiguous().chunk(2, dim=1)  # those of a head are contiguous
        return Memory(k, v, mask)

    def project(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]]:
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self._split(self.together(x), sum(sizes)).split(sizes, dim=1)
        return q, k, v


def apply_to_real_tokens(
    change: Callable[[Float[Tensor, "N D"]], Float[Tensor, "N D2"]],
    x: Float[Tensor, "B T D"],
    mask: Bool[Tensor, "B 1 1 T"],
) -> Float[Tensor, "B T D2"]:
    """`change` applied to every real token; zeros for padding."""
    places, rows = real_token_rows(mask), x.flatten(0, 1)
    if places is None:
        return change(rows).unflatten(0, x.shape[:2])
    made = change(rows[places])
    return made.new_zeros(len(rows), made.shape[1]).index_copy_(0, places, made).unflatten(0, x.shape[:2])


class FastOutput(nn.Module):
    """`Output` with a matrix that was laid out in advance; the weights passed to it are ignored."""

    def __init__(self, weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None, precision: str):
        super().__init__()
        self.product = fast_linear([weight], [bias], precision)

    def forward(
        self, x: Float[Tensor, "*B D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None = None
    ) -> Float[Tensor, "*B V"]:
        return self.product(x)


def fused(layers: Sequence[nn.Linear], precision: str) -> Any:
    """Several linear layers with the same input, as one."""
    return fast_linear([layer.weight for layer in layers], [layer.bias for layer in layers], precision)


FASTER: dict[type[nn.Module], Callable[[Any, str], nn.Module]] = {
    MultiHeadAttention: FusedAttention,
    nn.Linear: lambda linear, precision: fused([linear], precision),
    Dropout: lambda dropout, precision: nn.Identity(),
    DropPath: lambda drop, precision: nn.Identity(),
}


def _fast(module: Any, precision: str, made: dict[nn.Module, nn.Module]) -> Any:
    """A copy of a module with faster parts, or the module itself if it has none. `made` keeps shared parts shared."""
    if module not in made:
        made[module] = _converted(module, precision, made)
    return made[module]


def _converted(module: Any, precision: str, made: dict[nn.Module, nn.Module]) -> nn.Module:
    if type(module) in FASTER:
        fast = FASTER[type(module)](module, precision)
        share_hooks(module, fast)
        return fast

    def faster(child: nn.Module | None) -> nn.Module | None:
        if isinstance(child, Output):
            return FastOutput(module.output_weight, getattr(module, "output_bias", None), precision)
        return None if child is None else _fast(child, precision, made)

    children = {name: faster(child) for name, child in module._modules.items()}
    if all(children[name] is child for name, child in module._modules.items()):
        return module
    fast = copy.copy(module)
    fast._modules = children
    return compiled_layer(fast)
