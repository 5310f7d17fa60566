"""Export to ONNX (https://onnx.ai): graphs that onnxruntime and its kin run without torch or Regard.

A translator becomes two graphs, as its search needs them:

- `encoder.onnx`: `source` [S, L] (numbers), `mask` [S, L] (bool, True = a real token) -> `memory`
  [layers, 2, S, heads, L, K], the keys and values of the source for every decoder layer;
- `decoder.onnx`: `tokens` [S, 1], `mask`, `memory`, `past` [layers, 2, S, heads, T, K] (T = 0 at first) -> `logits`
  [S, V] of the next token, and `present`, which is the next step's `past`.

GPT becomes one, `model.onnx`: `tokens` [B, T], `mask` [B, T] -> `logits` [B, T, V]. So does BERT; where it knows kinds
of sentences it wants `segments` [B, T] too, and it yields what it has of `hidden`, `pooled`, `logits`, `next_sentence`.
"""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import core as masks
from regard.attention.multihead import Memory
from regard.attention.positions import Added, Concatenated, SinusoidalPositions
from regard.checkpoints.folder import write_folder
from regard.checkpoints.models import bare, own_tensors
from regard.errors import CheckpointError
from regard.families.conversion import Conversion
from regard.families.language.bert import Bert
from regard.families.language.gpt import Gpt
from regard.families.translation.transformer import Transformer
from regard.layers.blocks import DecoderLayer
from regard.layers.encoder_decoder import EncoderDecoderState
from regard.optional import needed

EXTRA = "export"
LONGEST = 1024  # tokens, if the model itself has no limit
ONE_FILE = 2**30  # bytes; larger weights go into a file beside the graph, since a protobuf is limited to 2 GiB
Shapes = dict[str, dict[int, Any]]


class Past:
    """Keys and values as inputs and outputs: a cache that a graph can represent."""

    def __init__(self, k: Float[Tensor, "R G T K"], v: Float[Tensor, "R G T K"]):
        self.k, self.v = k, v

    @property
    def length(self) -> int:
        return self.k.shape[2]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        return self.k, self.v

    def visible(self) -> None:
        return None

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        raise NotImplementedError("a graph takes one step; whoever runs it reorders `past`")

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        raise NotImplementedError("a graph takes one step; whoever runs it drops rows of `past`")


class EncoderGraph(nn.Module):
    """The part that is computed once per source."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, source: Int[Tensor, "S L"], mask: Bool[Tensor, "S L"]) -> Float[Tensor, "N 2 S H L K"]:
        encoded, _ = self.model.encode(source, mask)
        layers = (layer for layer in self.model.decoder if isinstance(layer, DecoderLayer))
        memories = [layer.cross.remember(encoded) for layer in layers]
        return torch.stack([torch.stack([memory.k, memory.v]) for memory in memories])


class StepGraph(nn.Module):
    """One step of a search."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, "S 1"],
        mask: Bool[Tensor, "S L"],
        memory: Float[Tensor, "N 2 S H L K"],
        past: Float[Tensor, "N 2 S H T K"],
    ) -> tuple[Float[Tensor, "S V"], Float[Tensor, "N 2 S H T+1 K"]]:
        caches = [Past(layer[0], layer[1]) for layer in past.unbind()]
        memories = [Memory(layer[0], layer[1], masks.padding(mask)) for layer in memory.unbind()]
        state = EncoderDecoderState(memories, list(caches), length=past.shape[4])
        logits = self.model.step(tokens, state)
        return logits[:, 0], torch.stack([torch.stack([cache.k, cache.v]) for cache in caches])


def convert_to_onnx(conversion: Conversion, target: Path) -> None:
    """Write the graphs of a model, beside its tokenizer."""
    export_onnx(conversion.loaded.model, target, extras=conversion.write_extras)


def export_onnx(model: nn.Module, folder: Path, *, extras: Callable[[Path], None] | None = None) -> None:
    """Write the graphs of a model into a new folder; `extras` adds further files (tokenizer)."""
    for package in ("onnx", "onnxscript"):
        needed(package, extra=EXTRA)
    module = bare(model).eval()
    if not isinstance(module, Transformer | Bert | Gpt):
        raise CheckpointError(f"a {type(module).__name__} has no ONNX form; Transformer, Bert and Gpt have one")

    def write(temporary: Path) -> None:
        match module:
            case Transformer():
                _write_translator(module, temporary)
            case Bert():
                _write_bert(module, temporary)
            case Gpt():
                _write_gpt(module, temporary)
        if extras is not None:
            extras(temporary)

    write_folder(folder, write, needs=sum(tensor.nbytes for tensor in own_tensors(module).values()))


def _write_translator(model: Transformer, folder: Path) -> None:
    c = model.config
    longest = c.max_length if c.positions == "learned" else LONGEST
    _lengthen(model, longest)
    sentences, length = _dynamic("sentences"), _dynamic("length", longest)
    source, mask = _example()
    rows = {0: sentences, 1: length}
    _write(EncoderGraph(model), folder / "encoder.onnx", (source, mask), {"source": rows, "mask": rows}, ["memory"])
    with torch.no_grad():  # not inference_mode: the exporter cannot trace what it made, and starts anew with Dynamo
        memory = EncoderGraph(model)(source, mask)
    shapes: Shapes = {
        "tokens": {0: sentences},
        "mask": rows,
        "memory": {2: sentences, 4: length},
        "past": {2: sentences, 4: _dynamic("past_length", longest - 1)},
    }
    given = (source[:, :1], mask, memory, memory[:, :, :, :, :3].clone())
    _write(StepGraph(model), folder / "decoder.onnx", given, shapes, ["logits", "present"])


def _write_bert(model: Bert, folder: Path) -> None:
    tokens, mask = _example()
    with torch.inference_mode():
        answer = model(tokens, mask)._asdict()
    given = {"tokens": tokens, "mask": mask, **({"segments": tokens - 1} if model.segments is not None else {})}
    rows = {0: _dynamic("texts"), 1: _dynamic("length", model.config.longest)}
    outputs = [name for name, value in answer.items() if value is not None]
    _write(model, folder / "model.onnx", tuple(given.values()), dict.fromkeys(given, rows), outputs)


def _write_gpt(model: Gpt, folder: Path) -> None:
    rows = {
        0: _dynamic("texts"),
        1: _dynamic("length", LONGEST if model.positions is None else model.config.max_length),
    }
    _write(model, folder / "model.onnx", _example(), {"tokens": rows, "mask": rows}, ["logits"])


def _example() -> tuple[Int[Tensor, "2 5"], Bool[Tensor, "2 5"]]:
    """Example token ids and their mask for tracing; the graph does not depend on their values."""
    return torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)


def _write(module: nn.Module, file: Path, given: tuple[Tensor, ...], shapes: Shapes, outputs: list[str]) -> None:
    log, large = logging.getLogger("torch.onnx"), sum(weight.nbytes for weight in module.parameters()) > ONE_FILE
    level = log.level
    log.setLevel(logging.ERROR)  # the exporter logs its internals
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, given, file, dynamo=True, input_names=list(shapes), output_names=outputs, verbose=False,
                dynamic_shapes=tuple(shapes.values()), external_data=large,
            )  # fmt: skip
    finally:
        log.setLevel(level)


def _dynamic(name: str, longest: int | None = None) -> Any:
    return torch.export.Dim(name) if longest is None else torch.export.Dim(name, max=longest)


def _lengthen(model: Transformer, length: int) -> None:
    """Extend the position tables in advance: an exported graph cannot grow them."""
    for place in (model.source_place, model.target_place):
        if isinstance(place, Added | Concatenated) and isinstance(place.positions, SinusoidalPositions):
            place.positions(length)
