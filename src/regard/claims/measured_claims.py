"""Claims about costs and sizes, measured on random inputs in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import nn

from regard.claims import measurements
from regard.claims.claims import Chart, ClaimOptions, Row, Verdict, judge
from regard.claims.measurements import CHARTS
from regard.claims.superposition import superposition, superposition_rows
from regard.families.catalog import MODELS

FAR = 50  # steps back at which gradients are compared
SEQUENCES = Chart(
    "What one layer keeps for its backward pass", "length", ("megabytes",), "length", "MB", by="way", logarithmic=True
)
MEMORY = Chart(
    "Two layers of attention between patches of 4 x 4 pixels", "tokens", ("peak",), "tokens", "bytes, forward pass",
    by="way", logarithmic=True,
)  # fmt: skip
EQUAL_FLOPS = {"ViT-S/16": ("vit", "s-16"), "ResNet-50": ("resnet", "50"), "Swin-T": ("swin", "t")}
IMAGE, OPERATIONS, REPEATS = torch.zeros(1, 3, 224, 224), "GFLOP an image", 3


def gradient_flow(_: ClaimOptions) -> Verdict:
    """Gradients explode above a singular value of 1 and vanish below; the GRU's state and the LSTM's cell keep them."""
    rows = measurements.gradients_through_time([1, 10, FAR])
    far = {str(row["network"]): row["gradient"] for row in rows if row["steps_back"] == FAR}
    growing, shrinking, state, cell = far.values()
    words = (
        f"{FAR} steps back the gradient is {growing:.0e} (1.2), {shrinking:.0e} (0.8), {state:.2f} (GRU) and "
        f"{cell:.2f} (LSTM cell)"
    )
    kept = all(0.5 < gradient < 2 for gradient in (state, cell))
    return judge(growing > 100 and shrinking < 0.01 and kept, words, rows, CHARTS["gradients"])


def scaling(_: ClaimOptions) -> Verdict:
    """Without the division by √d, wide vectors saturate the softmax."""
    rows = measurements.saturation([4, 64, 1024])
    wide = rows[-1]
    words = (
        f"at width 1024 the heaviest of 64 keys gets {wide['unscaled']:.2f} unscaled and {wide['scaled']:.2f} scaled"
    )
    return judge(wide["unscaled"] > 0.9 and wide["scaled"] < 0.3, words, rows, CHARTS["scaling"])


def heads_cost(_: ClaimOptions) -> Verdict:
    """All heads together cost about as much as one head of full width."""
    rows = measurements.cost_of_heads([1, 8])
    one, eight = (row["seconds"] for row in rows)
    equal = len({row["parameters"] for row in rows}) == 1
    return judge(
        equal and eight < 1.5 * one,
        f"equal parameters; 8 heads take {eight / one:.2f} times the time",
        rows,
        CHARTS["heads"],
    )


def three_ways_of_sequences(_: ClaimOptions) -> Verdict:
    """Recurrence is sequential, convolution needs depth to see far, attention connects all at once but needs memory."""
    ways = measurements.three_ways([64, 512])
    found = {(way.way.split(" (")[0], way.length): way for way in ways}
    recurrence, convolution, attention = (found[name, 512] for name in ("recurrence", "convolution", "self-attention"))
    holds = (
        recurrence.sequential_steps == 512
        and attention.sequential_steps == convolution.sequential_steps == 1
        and attention.layers_to_connect == 1 < convolution.layers_to_connect
    )
    written = found["self-attention, written out", 512]
    words = (
        f"512 tokens: {recurrence.sequential_steps} steps, {convolution.layers_to_connect} layers to see all, or one "
        f"layer at once; MB kept: LSTM {recurrence.megabytes:.0f}, convolution {convolution.megabytes:.0f}, attention "
        f"{attention.megabytes:.0f} fused and {written.megabytes:.0f} written out"
    )
    return judge(holds, words, [asdict(way) for way in ways], SEQUENCES)


def windows(_: ClaimOptions) -> Verdict:
    """Attention in windows grows linearly with the number of tokens, attention between all of them quadratically."""
    sides = (64, 128)
    rows = measurements.attention_growth(sides, torch.device("cpu"))
    peaks = {row.way: [each.peak for each in rows if each.way == row.way] for row in rows}
    growth = {way: large / small for way, (small, large) in peaks.items() if small and large}
    factors = list(growth.values())
    words = "memory for 4 times the tokens: " + ", ".join(f"{way} {factor:.1f}x" for way, factor in growth.items())
    holds = len(factors) == 3 and factors[0] > 10 and factors[2] < 5
    return judge(holds, words, [asdict(row) for row in rows], MEMORY)


def equal_flops(_: ClaimOptions) -> Verdict:
    """Whether a ViT is faster or slower than a ConvNet for the same number of operations, to run and to train."""
    rows = [_cost_of_images(title, name, preset) for title, (name, preset) in EQUAL_FLOPS.items()]
    vit, resnet, swin = ({key: row[key] for key in (OPERATIONS, "run", "train")} for row in rows)
    words = "time for the same operations, relative to a ViT's: " + ", ".join(
        f"{name} {each['run'] / vit['run']:.2f} to run and {each['train'] / vit['train']:.2f} to train"
        for name, each in (("ResNet-50", resnet), ("Swin-T", swin))
    )
    usual = _operations(_image_model("vit", "b-16")) / resnet[OPERATIONS]
    words += f" (CPU time); but the usual ViT-B/16 has {usual:.1f} times the operations of a ResNet-50"
    faster = {resnet[way] > vit[way] for way in ("run", "train")}
    return Verdict("depends", words, rows) if len(faster) > 1 else judge(True in faster, words, rows)


def _cost_of_images(title: str, name: str, preset: str) -> Row:
    """Operations of one image, and the milliseconds of 10⁹ of them; a backward pass has twice those of the forward."""
    model = _image_model(name, preset)
    operations = _operations(model)

    def run() -> None:
        with torch.no_grad():
            model.eval()(IMAGE)

    def learn() -> None:
        model.train()(IMAGE).sum().backward()

    return {
        "model": title,
        OPERATIONS: operations,
        "run": 1000 * _fastest(run) / operations,
        "train": 1000 * _fastest(learn) / (3 * operations),
    }


def _image_model(name: str, preset: str) -> nn.Module:
    torch.manual_seed(0)
    entry = MODELS[name]
    return entry.model(entry.config.parse({**entry.presets[preset], "classes": 1000}))


def _operations(model: nn.Module) -> float:
    """10⁹ operations of a forward pass."""
    with torch.no_grad():
        return measurements.operations(lambda: model.eval()(IMAGE)) / 1e9


def _fastest(work: Callable[[], object]) -> float:
    """The least CPU seconds of a few runs: other work on the machine only adds to them."""
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def more_features_than_neurons(_: ClaimOptions) -> Verdict:
    """Sparse features share neurons: more features than neurons are represented."""
    found = superposition([0.0, 0.97], importance=0.7, steps=2500)
    dense, sparse = found.represented
    words = f"two neurons represent {dense} dense features and {sparse} sparse ones of five"
    return judge(dense == 2 < sparse, words, superposition_rows(found))
