"""What a model costs, measured on the model itself without allocating it.

The model is built and trained for one step on fake tensors, which have no storage (`recorder.py`). Counted are, as by
torch's own tools:

- FLOPs by `torch.utils.flop_counter`: matrix products and convolutions, 2nkm each; causal attention counts its whole
  matrix. Two fused CPU kernels that the counter does not know are added here.
- Kept activations by saved-tensor hooks: every storage once, weights left out.
- Peak memory by the storages that are alive after each operation.
- Every operation with the shapes that it reads, so that `machine.py` can measure its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.cache import GrowingCache
from regard.attention.core import Attend
from regard.attention.record import attention_names, find_attention
from regard.config import Config
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.layers.blocks import Factors
from regard.layers.example import Example, blank_tokens
from regard.plan.recorder import FLOAT, Operation, Recorder, fake_tensors, without_packing
from regard.training.losses import cross_entropy, r_drop
from regard.training.recipe.sections import AnswerTrainingSection, RDropTrainingSection, TrainingSection

ITSELF = "others"  # the part of what no child of the model computes
OUTPUT = "output"  # the part of logits that the loss multiplies


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


@dataclass
class Part:
    """Parameters, forward FLOPs and bytes kept for the backward pass of one child of a model."""

    parameters: int = 0
    flops: int = 0
    activations: int = 0


@dataclass
class Measurement:
    """A training step of one batch; memory in bytes."""

    parts: dict[str, Part]
    matrices: list[Matrix]  # of one example
    step_flops: int  # forward, loss and backward
    forward_peak: int  # most bytes alive besides weights until the loss is known
    backward_peak: int  # and after it, new gradients included
    logits: int  # numbers, if all were computed at once
    operations: Counter[Operation]
    calls: int  # operations that autograd records
    layer: int  # parameters of the largest layer

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts.values())

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts.values())

    @property
    def activations(self) -> int:
        return sum(part.activations for part in self.parts.values())


def passes(training: TrainingSection) -> int:
    """The number of times that a batch goes through the model: twice with R-Drop."""
    return 2 if isinstance(training, RDropTrainingSection) and training.r_drop else 1


def measure_step(
    name: str,
    config: Config,
    rows: int,
    source: int,
    target: int,
    training: TrainingSection,
    *,
    device: str = "cpu",
    half: bool = False,
) -> Measurement:
    """A training step of `rows` examples on fake tensors of `device`; with `half`, products are bf16."""
    with fake_tensors(device), torch.autocast(device, torch.bfloat16, enabled=half):
        return measure_model(MODELS[name].model(config).train(), MODELS[name].example, rows, source, target, training)


def measure_model(
    model: nn.Module, example: Example, rows: int, source: int, target: int, training: TrainingSection
) -> Measurement:
    """A training step of a model that is there, on fake or real tensors."""
    parts = _parameters(model)
    weights = [*model.parameters(), *model.buffers()]
    seen = _Looks(rows * passes(training))
    with ExitStack() as stack:
        recorder = stack.enter_context(Recorder(weights))
        watch = stack.enter_context(_parts_watched(model, parts, recorder, weights))
        for name, module in find_attention(model) if attention_names(model) else []:
            stack.callback(module.register_forward_pre_hook(seen.hook(name), with_kwargs=True).remove)
        stack.enter_context(without_packing(model))
        outputs = example.run(model, rows * passes(training), source, target)
        watch.finish()
        loss, logits = _loss(outputs, example, training, parts)
        del outputs
        forward_peak, recorder.most, calls = recorder.most, recorder.now, recorder.calls
        loss.backward()
    for part in parts.values():
        part.flops //= passes(training)
    parts = {name: part for name, part in parts.items() if part != Part()}
    return Measurement(
        parts, seen.matrices(), recorder.flops, forward_peak, recorder.most, logits, recorder.operations,
        calls, _largest_layer(model),
    )  # fmt: skip


def _largest_layer(model: nn.Module) -> int:
    """The parameters of the largest module in a list of modules; of a model without lists, all."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    layers = [layer for layers in lists for layer in layers] or [model]
    return max(sum(parameter.numel() for parameter in layer.parameters()) for layer in layers)


def _parameters(model: nn.Module) -> dict[str, Part]:
    """A part for every child of a model, in the order of the model; tied weights count once."""
    parts = {name: Part() for name, _ in model.named_children()}
    for path, parameter in model.named_parameters():
        child, dot, _ = path.partition(".")
        part = child if dot else OUTPUT if child.startswith(OUTPUT) else ITSELF
        parts.setdefault(part, Part()).parameters += parameter.numel()
    return parts


class _PartWatch:
    """Attributes FLOPs and kept bytes of a forward pass to the child of the model that is running."""

    def __init__(self, parts: dict[str, Part], recorder: Recorder, weights: Sequence[Tensor]):
        self.parts, self.recorder, self.running = parts, recorder, [ITSELF]
        self.kept = {tensor.untyped_storage()._cdata for tensor in weights}
        self.counted, self.done = 0, False

    def enter(self, name: str) -> None:
        self._settle()
        self.running.append(name)

    def leave(self) -> None:
        self._settle()
        self.running.pop()

    def finish(self) -> None:
        """The forward pass is over; the loss belongs to nobody."""
        self._settle()
        self.done = True

    def _settle(self) -> None:
        self._current().flops += self.recorder.flops - self.counted
        self.counted = self.recorder.flops

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not self.done and storage._cdata not in self.kept:
            self.kept.add(storage._cdata)
            self._current().activations += storage.nbytes()
        return tensor

    def _current(self) -> Part:
        return self.parts.setdefault(self.running[-1], Part())


@contextmanager
def _parts_watched(
    model: nn.Module, parts: dict[str, Part], recorder: Recorder, weights: Sequence[Tensor]
) -> Iterator[_PartWatch]:
    watch, handles = _PartWatch(parts, recorder, weights), []
    for path, module in model.named_modules():
        if path:
            name = path.partition(".")[0]
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: watch.enter(name)))
            handles.append(module.register_forward_hook(lambda *_: watch.leave()))
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda tensor: tensor):
            yield watch
    finally:
        for handle in handles:
            handle.remove()


class _Looks:
    """The shapes of attention, by module."""

    def __init__(self, rows: int):
        self.rows = rows
        self.calls: dict[str, list[tuple[int, int, int, int]]] = {}  # batch elements, heads, queries, keys

    def hook(self, name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled():  # samples that nothing is learnt from are left out
                q, k = args[:2]  # [B H Tq K] and [B G Tk K]; of scored attention [B W Q] and [B S D]
                headed = isinstance(module, Attend)
                shape = (*q.shape[:3], k.shape[2]) if headed else (len(q), 1, q.shape[1], k.shape[1])
                self.calls.setdefault(name, []).append(shape)

        return seen

    def matrices(self) -> list[Matrix]:
        found = []
        for name, calls in self.calls.items():
            batch, heads, queries, keys = calls[0]
            if batch == self.rows and heads == 1 and queries == 1:  # a decoder that looks once for every token
                found.append(Matrix(name, heads, len(calls), keys))
            else:
                found.append(Matrix(name, heads, queries, keys, max(1, len(calls) * batch // self.rows)))
        return found


def tensors_in(value: Any) -> Iterator[Tensor | Factors | GrowingCache]:
    """The tensors that an output or a state holds; unmultiplied logits and caches stay whole."""
    if isinstance(value, Tensor | Factors | GrowingCache):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from tensors_in(vars(value))


def _loss(outputs: Any, example: Example, training: TrainingSection, parts: dict[str, Part]) -> tuple[Tensor, int]:
    """The training loss of unmultiplied logits, and the sum of every other output; also the number of logits."""
    total, logits = torch.zeros(()), 0
    for value in tensors_in(outputs):
        if isinstance(value, Factors):
            parts.setdefault(OUTPUT, Part()).flops += 2 * value.hidden.numel() * len(value.weight)
            logits += round(example.scored * value.hidden.shape[:-1].numel()) * len(value.weight)
            total = total + _token_loss(value, example, training)
        elif isinstance(value, Tensor) and value.requires_grad:
            total = total + value.sum()
    if not total.requires_grad:
        raise UsageError("nothing that the model returns depends on its weights, so it cannot be trained")
    return total, logits


def _token_loss(factors: Factors, example: Example, training: TrainingSection) -> Tensor:
    smoothing = training.label_smoothing if isinstance(training, AnswerTrainingSection) else 0.0
    if passes(training) == 2:
        assert isinstance(training, RDropTrainingSection)
        first, second = factors.chunk(2)
        labels = blank_tokens(*first.hidden.shape[:2])
        return r_drop(first, second, labels, labels == 0, weight=training.r_drop, smoothing=smoothing)
    hidden = factors.hidden.flatten(0, -2)
    if example.scored < 1:
        hidden = hidden[: max(1, round(example.scored * len(hidden)))]
    labels = blank_tokens(1, len(hidden))
    return cross_entropy(factors._replace(hidden=hidden[None]), labels, labels == 0, smoothing)
