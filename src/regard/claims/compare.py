"""Architectures compared: quality by sentence length, and three ways of processing a sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.multihead import MultiHeadAttention
from regard.data.synthetic.phrasebook import phrases
from regard.errors import UsageError
from regard.families.translation.evaluate import text_scores
from regard.families.translation.translator import Translator
from regard.layers.blocks import EncoderLayer, FeedForward
from regard.layers.convolution import ConvolutionEncoder
from regard.layers.recurrent import Recurrent

Bin = tuple[int, int]  # lowest and highest number of source words
HEADS, WRITTEN_OUT = 4, "self-attention, written out"


def scores_by_length(
    translator: Translator, bins: Sequence[Bin], *, to: str = "", count: int = 100, seed: int = 1
) -> list[dict[str, object]]:
    """BLEU, chrF and exact match of held-out phrasebook sentences, by bins of their length in words."""
    to = to or translator.tokenizer.target_languages[0]
    rows = []
    for low, high in bins:
        pairs = list(phrases(to, part="test", count=count, seed=seed, min_words=low, max_words=high))
        answers = translator.translate([pair.source for pair in pairs], to=to)
        rows.append(text_scores([answer.text for answer in answers], [pair.target for pair in pairs], [to]))
    return rows


@dataclass(frozen=True)
class Way:
    """One way of processing a sequence, measured at one length."""

    way: str
    length: int
    seconds: float  # forward and backward of one layer
    megabytes: float  # stored by the forward pass for the backward pass
    sequential_steps: int  # steps that cannot run in parallel within a layer
    layers_to_connect: int  # layers until the first token can reach the last


def three_ways(lengths: Sequence[int], *, width: int = 128, batch: int = 4, kernel: int = 3) -> list[Way]:
    """Recurrence, convolution and self-attention on the same random sequences, one layer each."""
    if width < HEADS or width % HEADS or min(lengths) < 1:
        raise UsageError(f"width {width} must be a multiple of {HEADS}, and lengths {list(lengths)} must be at least 1")
    torch.manual_seed(0)
    recurrent = Recurrent("lstm", width, width)
    convolution = ConvolutionEncoder(width, 1, kernel)
    attention = EncoderLayer(MultiHeadAttention(width, HEADS), FeedForward(width, width), 0.0, "post")
    ways: list[tuple[str, nn.Module, Callable[[Tensor], Tensor], Callable[[int], tuple[int, int]]]] = [
        ("recurrence (LSTM)", recurrent, lambda x: recurrent(x)[0], lambda length: (length, 1)),
        (
            f"convolution (kernel {kernel})",
            convolution,
            lambda x: convolution(x, torch.ones(x.shape[:2], dtype=torch.bool)),
            lambda length: (1, -(-(length - 1) // (kernel - 1))),
        ),
        ("self-attention", attention, lambda x: attention(x), lambda length: (1, 1)),
        (WRITTEN_OUT, attention, lambda x: attention(x), lambda length: (1, 1)),
    ]
    measured = []
    for length in lengths:
        x = torch.randn(batch, length, width, requires_grad=True)
        for name, module, run, structure in ways:
            steps, layers = structure(length)
            with sdpa_kernel(SDPBackend.MATH) if name == WRITTEN_OUT else nullcontext():
                megabytes = _kept_bytes(module, run, x) / 2**20
                measured.append(Way(name, length, _seconds(run, x), megabytes, steps, layers))
    return measured


def _seconds(run: Callable[[Tensor], Tensor], x: Tensor, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run(x).sum().backward()
        times.append(time.perf_counter() - start)
    return median(times[1:])  # the first run is a warm-up


def _kept_bytes(module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Bytes that the forward pass stores for the backward pass: every storage once, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        held = run(x)  # kept alive while counting, so that no storage is reused
    del held
    return sum(kept.values())


def rows_of(ways: Sequence[Way]) -> list[dict[str, object]]:
    """The measurements as plain dictionaries."""
    return [asdict(way) for way in ways]
