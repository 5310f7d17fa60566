"""Recording attention weights, outside of the fast path.

`record` puts a hook on the chosen attention modules. The hook recomputes the weights from the module's queries, keys,
masks and biases. It does not change the model's computation, so outputs stay bit-identical. In the inference form of a
model, layers that compiled code computes are run a second time, by torch, for the hooks alone, unless the compiled code
can hand the weights to the hook (`take_weights`). Recorded rows of padding have no meaning.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.core import Attend, attention_scores, attention_weights
from regard.attention.places import Calls
from regard.attention.scores import ScoredAttention


class Looks(Calls):
    """Recorded weights by module name: looks["decoder.0.cross"] is [B H Tq Tk].

    A module called several times with one query (step by step) yields its rows in order. With `scores=True` the
    recorder keeps the scores before the softmax instead.
    """

    def add(self, name: str, weights: Float[Tensor, "B H Tq Tk"]) -> None:
        self._calls.setdefault(name, []).append(weights)

    def __getitem__(self, name: str) -> Tensor:
        calls = self._calls[name]
        widest = max(call.shape[-1] for call in calls)  # with a growing cache, each step has one more key than the last
        padded = [torch.nn.functional.pad(call, (0, widest - call.shape[-1])) for call in calls]
        return torch.cat(padded, dim=2)


def attention_names(model: nn.Module) -> list[str]:
    """The names of a model's attention modules, as `record` uses them."""
    return [name for name, _ in _attention_modules(model)]


@contextmanager
def record(
    model: nn.Module,
    layers: str | Sequence[str] = "*",
    *,
    scores: bool = False,
    gradients: bool = False,
    stop: bool = False,
) -> Iterator[Looks]:
    """Record the attention of every module whose name matches a pattern of `layers` while the context is open.

    With `gradients` the recorded tensors stay in the autograd graph, so that a loss can guide attention. With `stop`
    the context ends when every module has been recorded once; the model then returns no output.
    """
    with record_modules(find_attention(model, layers), scores=scores, gradients=gradients, stop=stop) as looks:
        yield looks


def find_attention(model: nn.Module, layers: str | Sequence[str] = "*") -> list[tuple[str, nn.Module]]:
    """The attention modules whose names match a pattern of `layers`, by name."""
    patterns = [layers] if isinstance(layers, str) else layers
    chosen = [
        (name, module)
        for name, module in _attention_modules(model)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if not chosen:
        raise KeyError(f"no attention layer matches {layers!r}; this model has: {', '.join(attention_names(model))}")
    return chosen


@contextmanager
def record_modules(
    chosen: Sequence[tuple[str, nn.Module]], *, scores: bool = False, gradients: bool = False, stop: bool = False
) -> Iterator[Looks]:
    """`record` for modules that `find_attention` found, for callers that record many short passes."""
    looks = Looks()
    handles = [
        module.register_forward_hook(_hook(looks, name, scores, gradients), with_kwargs=True) for name, module in chosen
    ]
    # A recurrent decoder calls its attention once per token, so it must run to its end.
    if stop and not any(isinstance(module, ScoredAttention) for _, module in chosen):
        handles += [module.register_forward_hook(_stopping(looks, len(chosen))) for _, module in chosen]
    try:
        yield looks
    except _Seen:
        pass
    finally:
        for handle in handles:
            handle.remove()


class _Seen(Exception):  # noqa: N818 - it ends the pass and is not an error
    """All chosen modules have been recorded."""


def _stopping(looks: Looks, count: int) -> Any:
    def hook(*_: Any) -> None:
        if len(looks) == count:
            raise _Seen

    return hook


def _attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, module in model.named_modules():
        if isinstance(module, Attend | ScoredAttention):
            yield path.removesuffix("attend").rstrip(".") or "attend", module


def _hook(looks: Looks, name: str, scores: bool, gradients: bool) -> Any:
    def of_attend(args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        q, k = args[0], args[1]
        if scores:
            looks.add(name, attention_scores(q, k, bias=options.get("bias"), scale=options.get("scale")))
            return
        wanted = {key: options[key] for key in ("mask", "bias", "causal", "scale") if key in options}
        looks.add(name, attention_weights(q, k, **wanted))

    def of_scored(module: ScoredAttention, args: tuple[Tensor, ...], options: dict[str, Any], output: Any) -> None:
        if scores:
            keys = args[2] if len(args) > 2 else options.get("keys")
            looks.add(name, module.scores(args[0], module.project(args[1]) if keys is None else keys)[:, None])
            return
        looks.add(name, (output[1] if gradients else output[1].detach())[:, None])  # [B W S] -> one head

    def hook(module: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any], output: Any) -> None:
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            if isinstance(module, ScoredAttention):
                of_scored(module, args, options, output)
            else:
                of_attend(args, options)

    if not scores and not gradients:
        hook.take_weights = partial(looks.add, name)  # type: ignore[attr-defined]
    return hook
