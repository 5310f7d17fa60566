"""What architectures cost and how well they do, measured: the lectures' claims as repeatable measurements.

Attention as images grow, gradients through time, the cost of heads, the need to scale, three ways of processing a
sequence, quality by the length of sentences, and accuracy by the number of training images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention.core import attention_weights
from regard.attention.multihead import MultiHeadAttention
from regard.checkpoints.folder import is_sealed
from regard.claims.claims import Chart, Row
from regard.data.synthetic.phrasebook import phrases
from regard.device import free_bytes
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.translation.evaluate import text_scores
from regard.families.translation.translator import Translator
from regard.layers.blocks import EncoderLayer, FeedForward
from regard.layers.convolution import ConvolutionEncoder
from regard.layers.recurrent import Cell, GRUCell, LSTMCell, Recurrent, RNNCell
from regard.plan.measure import measure_step
from regard.plan.recorder import peak_bytes
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.recipe.load import load_recipe
from regard.training.recipe.sections import TrainingSection

PATCH, WINDOW = 4, 8
COMMON: dict[str, Any] = {"patch": PATCH, "width": 32, "classes": 2}
GLOBAL: dict[str, Any] = {"depth": 2, "heads": 1, "ffn_width": 64, "pool": "mean"}
WINDOWED: dict[str, Any] = {"depths": (2,), "heads": (1,), "ffn_ratio": 2.0, "window": WINDOW, "drop_path": 0.0}
WRITTEN_OUT = "written out"  # attention without a fused kernel
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # two layers of one head each, on patches of 4 x 4 pixels
    f"everywhere, {WRITTEN_OUT}": ("vit", {**GLOBAL, "attention_dropout": 0.1}),
    "everywhere, fused": ("vit", GLOBAL),
    f"windows of {WINDOW} x {WINDOW}": ("swin", WINDOWED),
}
REPEATS, PATIENCE = 5, 2.0  # timed runs, and the seconds above which one run is enough
BACKWARD = 1.5  # memory of a backward pass, relative to what was kept


@dataclass(frozen=True)
class Growth:
    """One kind of attention at one image size; nothing is measured if it would not fit into memory."""

    way: str
    side: int  # pixels
    tokens: int
    planned: int  # bytes that a training step keeps for one image, as `regard plan` says
    peak: int | None  # most bytes alive during the forward pass
    seconds: float | None  # forward and backward


def attention_growth(sides: Sequence[int], device: torch.device) -> list[Growth]:
    """The same small network with each of three kinds of attention, on square images of these sides."""
    if min(sides) < PATCH * WINDOW:
        raise UsageError(f"the smallest side is {min(sides)}; a window is {PATCH * WINDOW} pixels wide")
    return [_measured(way, side, device) for way in WAYS for side in sides]


def _measured(way: str, side: int, device: torch.device) -> Growth:
    name, values = WAYS[way]
    config = MODELS[name].config.parse({**COMMON, **values, "image_size": side})
    planned, tokens = measure_step(name, config, 1, 1, 1, TrainingSection()).activations, (side // PATCH) ** 2
    if BACKWARD * planned > free_bytes(device):
        return Growth(way, side, tokens, planned, None, None)
    torch.manual_seed(0)
    model, picture = MODELS[name].model(config).to(device), torch.rand(1, 3, side, side, device=device)
    with sdpa_kernel(SDPBackend.MATH) if way.endswith(WRITTEN_OUT) else nullcontext():
        peak = peak_bytes(lambda: model(picture), [picture, *model.parameters()], device)
        return Growth(way, side, tokens, planned, peak, _seconds(partial(_learn, model, picture), device))


def _learn(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """A forward and a backward pass."""
    run(x).sum().backward()


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    times: list[float] = []
    while len(times) <= REPEATS and (not times or times[0] < PATIENCE):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[1:] or times)  # the first run is a warm-up


CHARTS = {
    "gradients": Chart(
        "How far gradients reach back", "steps_back", ("gradient",), "steps back", "gradient, relative to one step",
        by="network", logarithmic=True,
    ),
    "heads": Chart("What more heads cost: one layer, width 512", "heads", ("seconds",), "heads", "seconds"),
    "scaling": Chart(
        "The share of attention that falls on one of 64 keys", "width", ("scaled", "unscaled"), "width of a head",
        "largest weight, mean",
    ),
}  # fmt: skip


def operations(work: Callable[[], object]) -> int:
    """The FLOPs of some work; attention is written out, because torch does not count those of its fused kernel."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    return counter.get_total_flops()


def gradients_through_time(steps: Sequence[int], *, width: int = 32) -> list[Row]:
    """|∂ last state / ∂ state n steps back|, relative to one step back.

    A vanilla RNN near its linear range multiplies the gradient by its recurrent matrix at every step, so it explodes or
    vanishes with the largest singular value. The LSTM's cell is only multiplied by the forget gate, and the GRU's state
    by the update gate; both are open here.
    """
    torch.manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(width, width))[0]
    no_input, zeros = torch.zeros(width, 1), torch.zeros(width)
    open_forget, open_update = torch.zeros(4 * width), torch.zeros(3 * width)
    open_forget[:width], open_forget[width : 2 * width] = -20.0, 20.0  # input gate closed, forget gate open
    open_update[width : 2 * width] = 20.0
    cells = {f"RNN, singular values {gain}": RNNCell(no_input, gain * rotation, zeros, zeros) for gain in (1.2, 0.8)}
    lstm = LSTMCell(torch.zeros(4 * width, 1), torch.zeros(4 * width, width), open_forget, torch.zeros(4 * width))
    gru = GRUCell(torch.zeros(3 * width, 1), torch.zeros(3 * width, width), open_update, torch.zeros(3 * width))
    rows: list[Row] = []
    for name, cell in {**cells, "GRU, update gate open": gru, "LSTM, along the cell": lstm}.items():
        norms = _gradient_norms(cell, width, max(steps))
        rows += [{"network": name, "steps_back": back, "gradient": float(norms[back - 1] / norms[0])} for back in steps]
    return rows


def _gradient_norms(cell: Cell, width: int, steps: int) -> Tensor:
    """Gradient norms by the number of steps back, for the part of the state that carries the memory."""
    states = [tuple(torch.full((1, width), 1e-4).requires_grad_() for _ in range(cell.parts))]
    for _ in range(steps):
        states.append(cell(torch.zeros(1, 1), states[-1]))
    gradients = torch.autograd.grad(states[-1][-1].sum(), [state[-1] for state in states[:-1]])
    return torch.stack([gradient.norm() for gradient in gradients]).flip(0)


def cost_of_heads(heads: Sequence[int], *, width: int = 512, length: int = 128) -> list[Row]:
    """Parameters and time of one attention layer of fixed total width, by the number of heads."""
    x = torch.randn(4, length, width)
    rows: list[Row] = []
    for count in heads:
        layer = MultiHeadAttention(width, count)
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        seconds = _seconds(partial(_learn, layer, x), x.device)
        rows.append({"heads": count, "head_width": width // count, "parameters": parameters, "seconds": seconds})
    return rows


def saturation(widths: Sequence[int], *, keys: int = 64) -> list[Row]:
    """The softmax weight of the heaviest key as vectors get wider, with and without dividing by √width."""
    torch.manual_seed(0)
    rows: list[Row] = []
    for width in widths:
        q, k = torch.randn(1, 1, 256, width), torch.randn(1, 1, keys, width)
        largest = {
            name: float(attention_weights(q, k, scale=scale).amax(-1).mean())
            for name, scale in (("scaled", None), ("unscaled", 1.0))
        }
        rows.append({"width": width, **largest})
    return rows


Bin = tuple[int, int]  # lowest and highest number of source words
HEADS = 4


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
        (f"self-attention, {WRITTEN_OUT}", attention, lambda x: attention(x), lambda length: (1, 1)),
    ]
    measured = []
    for length in lengths:
        x = torch.randn(batch, length, width, requires_grad=True)
        for name, module, run, structure in ways:
            steps, layers = structure(length)
            with sdpa_kernel(SDPBackend.MATH) if name.endswith(WRITTEN_OUT) else nullcontext():
                megabytes = _kept_bytes(module, run, x) / 2**20
                seconds = _seconds(partial(_learn, run, x), x.device)
                measured.append(Way(name, length, seconds, megabytes, steps, layers))
    return measured


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


def accuracy_by_count(
    recipes: Mapping[str, str], counts: Sequence[int], runs: Path, sets: Sequence[str] = ()
) -> dict[str, list[float]]:
    """Validation accuracy of each recipe for each number of training images; completed runs are reused."""
    results: dict[str, list[float]] = {}
    for name, recipe in recipes.items():
        results[name] = []
        for count in counts:
            out = runs / f"{name}-{count}"
            if not is_sealed(out):
                train(load_recipe(recipe, [*sets, f"data.count={count}"]), out, resume=out.exists())
            measured = [row["accuracy"] for row in read_metrics(out / METRICS) if "accuracy" in row]
            if not measured:
                raise UsageError(f"{recipe} measured no accuracy; compare recipes of task 'images' that validate")
            results[name].append(max(measured))
    return results
