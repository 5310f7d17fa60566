"""The form in which a model is run: a twin with the same methods and answers, made of parts that only ever infer.

The model stays as it is, and shares with its twin whatever needs no change. A part whose kind is in `FASTER` is
replaced by one that computes the same: one product for queries, keys and values, weights laid out in advance
(`products`), nothing that only training needs. Attention keeps its `Attend`: to record the model is to record its twin.
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
from regard.errors import UsageError
from regard.inference.fast.compiled_layers import compiled_layer, real_token_rows
from regard.inference.fast.linear import fast_linear, resolve_precision
from regard.layers.blocks import DropPath, Output

Model = TypeVar("Model", bound=nn.Module)
GPU_PRECISIONS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fast_model(model: Model, precision: str = "fp32") -> Model:
    """The twin of a model; on a GPU that of a copy in half precision, where that is asked for."""
    if is_on_cpu(model):
        return _twin(model, resolve_precision(precision), {})
    precision = "fp32" if precision == "auto" else precision
    if precision not in GPU_PRECISIONS:
        raise UsageError(f"on a GPU there is no precision {precision!r}; choose one of {', '.join(GPU_PRECISIONS)}")
    return _twin(model if precision == "fp32" else copy.deepcopy(model).to(GPU_PRECISIONS[precision]), precision, {})


def is_on_cpu(model: nn.Module) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


class FusedAttention(MultiHeadAttention):
    """One product for queries, keys and values, or for the keys and values of a memory."""

    def __init__(self, model: MultiHeadAttention, precision: str):
        nn.Module.__init__(self)
        self.heads, self.kv_heads, self.head_width = model.heads, model.kv_heads, model.head_width
        self.scale, self.prepare, self.position, self.dropout = model.scale, model.prepare, model.position, 0.0
        self.query, self.output = fused([model.query], precision), fused([model.output], precision)
        self.attend = model.attend  # the very module, so that whoever records the model sees what its twin does
        self.parts, self.precision = (model.query, model.key, model.value), precision
        self.eval()

    # Each is made when it is first needed: who looks at himself takes one of them, who looks at a memory the other.
    @cached_property
    def together(self) -> nn.Module:
        return fused(self.parts, self.precision)

    @cached_property
    def pair(self) -> nn.Module:
        return fused(self.parts[1:], self.precision)

    def remember(self, memory: Float[Tensor, "B Tk M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None) -> Memory:
        both = self.pair(memory) if mask is None or memory.is_cuda else apply_to_real_tokens(self.pair, memory, mask)
        k, v = self._split(both, 2 * self.kv_heads).contiguous().chunk(2, dim=1)  # a head's are read one after another
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
    """What `change` makes of every real token by itself, and zeros for those that only fill up a row."""
    places, rows = real_token_rows(mask), x.flatten(0, 1)
    if places is None:
        return change(rows).unflatten(0, x.shape[:2])
    made = change(rows[places])
    return made.new_zeros(len(rows), made.shape[1]).index_copy_(0, places, made).unflatten(0, x.shape[:2])


class FastOutput(nn.Module):
    """`Output` by a matrix that was laid out in advance: whatever it is handed has the same numbers."""

    def __init__(self, weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None, precision: str):
        super().__init__()
        self.product = fast_linear([weight], [bias], precision)

    def forward(
        self, x: Float[Tensor, "*B D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None = None
    ) -> Float[Tensor, "*B V"]:
        return self.product(x)


def fused(layers: Sequence[nn.Linear], precision: str) -> Any:
    """Several linear layers that read the same, as one."""
    return fast_linear([layer.weight for layer in layers], [layer.bias for layer in layers], precision)


FASTER: dict[type[nn.Module], Callable[[Any, str], nn.Module]] = {
    MultiHeadAttention: FusedAttention,
    nn.Linear: lambda linear, precision: fused([linear], precision),
    Dropout: lambda dropout, precision: nn.Identity(),
    DropPath: lambda drop, precision: nn.Identity(),
}


def _twin(module: Any, precision: str, made: dict[nn.Module, nn.Module]) -> Any:
    """A copy of a module with faster parts; the module itself where it has none. `made` keeps shared parts shared."""
    if module not in made:
        made[module] = _changed(module, precision, made)
    return made[module]


def _changed(module: Any, precision: str, made: dict[nn.Module, nn.Module]) -> nn.Module:
    if type(module) in FASTER:
        return FASTER[type(module)](module, precision)

    def faster(child: nn.Module | None) -> nn.Module | None:
        if isinstance(child, Output):
            return FastOutput(module.output_weight, getattr(module, "output_bias", None), precision)
        return None if child is None else _twin(child, precision, made)

    children = {name: faster(child) for name, child in module._modules.items()}
    if all(children[name] is child for name, child in module._modules.items()):
        return module
    twin = copy.copy(module)
    twin._modules = children
    return compiled_layer(twin)
