"""The costs of image models, for one image of the size that the model was built for; `models.py` says what is counted.

Work that is done once per batch is left out: standardised weights, spectral norms, and the biases that Swin V2 and
local relations compute from distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

from regard.families.images.mvit import LayerShape, MvitConfig
from regard.families.images.pixel_attention import neighbourhoods
from regard.families.images.resnet import ResnetConfig
from regard.families.images.sagan import SaganConfig
from regard.families.images.swin import SwinConfig
from regard.families.images.vit import VitConfig
from regard.layers.vision import ImageConfig, PatchesConfig, stem_convolutions
from regard.studies.costs.parts import (
    FLOAT,
    Cost,
    Costs,
    Matrix,
    Piece,
    activated,
    added,
    attention,
    calls,
    feed_forward,
    linear,
    masked,
    norm,
    residual,
    scored,
    streams,
    summed,
)

INDEX = 2  # a position is an int64, as large as two float32


def convolution(
    pixels: int, inputs: int, outputs: int, kernel: int, *, bias: bool = False, groups: int = 1, stride: int = 1
) -> Cost:
    """k x k filters at this many output pixels. The part that produces the input counts it as kept."""
    weights = inputs * outputs // groups * kernel**2
    piece = Piece("convolution", (1, isqrt(pixels), inputs, outputs, kernel, groups, stride))
    return Cost(weights + bias * outputs, 2 * pixels * weights, work={piece: 1}) + calls(2 + bias)


def patches(c: PatchesConfig, side: int) -> Cost:
    """The patch embedding of side x side patches. Non-overlapping patches are rows of one product; kept: the image."""
    cells = side**2
    made = _stem(c, side) if c.stem == "convolutions" else linear(cells, c.channels * c.patch**2, c.width)
    return made + _input_image(c) + streams(cells * c.width, 2)


def image_norm(pixels: int, channels: int) -> Cost:
    """A gain and an offset for each channel; kept: the input."""
    work = {Piece("batch_norm", (1, channels, pixels)): 1}
    return Cost(2 * channels, 0, pixels * channels, work) + calls(3)


def rectified(numbers: int) -> Cost:
    """A ReLU; kept: its result."""
    return Cost(kept=numbers) + activated(numbers, "relu")


def written_out(rows: int, keys: int, heads: int) -> Cost:
    """The attention weights. Torch keeps them if a bias is learned, or if values and keys differ in width."""
    return Cost(kept=heads * rows * keys)


def halved(side: int) -> int:
    """The side after a stride of 2."""
    return -(-side // 2)


def head(width: int, c: ImageConfig) -> Cost:
    """A linear layer on one vector, and the loss."""
    return linear(1, width, c.classes) + Cost(kept=width + c.classes)


def vit(c: VitConfig, source: int = 0, target: int = 0) -> Costs:
    """The Vision Transformer of `models/vit.py`."""
    side = c.image_size // c.patch
    extra = 1 if c.pool == "class" else 0
    tokens = side**2 + extra
    look = attention(tokens, tokens, c.width, c.heads, c.attention_dropout, bias=c.attention_bias)
    look += Cost(0 if c.attention_bias else c.width)  # the output has a bias in any case
    layer = look + feed_forward(tokens, c.width, c.ffn_width, c.activation, 0.0)
    layer += 2 * residual(tokens, c.width, c.dropout)
    embedded = patches(c, side) + Cost((tokens + extra) * c.width)
    embedded += added(tokens * c.width) + masked(tokens, c.width, c.dropout)
    return Costs(
        parts={
            "patches": embedded,
            "encoder": c.depth * layer + norm(tokens, c.width),
            "head": head(c.width, c),
        },
        matrices=[Matrix(f"encoder.{n}.attention", c.heads, tokens, tokens) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=0,
    )


def resnet(c: ResnetConfig, source: int = 0, target: int = 0) -> Costs:
    """The residual network of `models/resnet.py`."""
    large = c.stem == "large"
    side = halved(c.image_size) if large else c.image_size
    stem = _input_image(c) + convolution(side**2, c.channels, c.stem_width, 7 if large else 3, stride=2 if large else 1)
    if c.order == "post":
        stem += image_norm(side**2, c.stem_width) + rectified(side**2 * c.stem_width)
    if large:
        side = halved(side)
        stem += Cost(kept=side**2 * c.stem_width * (1 + INDEX)) + streams(side**2 * c.stem_width, 20) + calls(1)
    parts, matrices, inputs = {"stem": stem}, list[Matrix](), c.stem_width
    for stage, (width, depth) in enumerate(zip(c.widths, c.depths, strict=True)):
        total = Cost()
        for block in range(depth):
            strides = stage > 0 and block == 0
            projects = inputs != width or strides or (c.order == "pre" and block == 0)
            cost, found = _residual_block(c, f"stages.{stage}.blocks.{block}", side, inputs, width, strides, projects)
            side, inputs = halved(side) if strides else side, width
            total, matrices = total + cost, matrices + found
        if stage + 1 in c.nonlocal_after:
            total += _non_local(side**2, side**2, width, width // 2, width // 2) + image_norm(side**2, width)
            matrices.append(Matrix(f"stages.{stage}.look", 1, side**2, side**2))
        parts[f"stage {stage + 1}"] = total
    last = image_norm(side**2, inputs) + rectified(side**2 * inputs) if c.order == "pre" else Cost()
    return Costs({**parts, "head": last + head(inputs, c)}, matrices, 0, 0)


def swin(c: SwinConfig, source: int = 0, target: int = 0) -> Costs:
    """The Swin Transformer of `models/swin.py`."""
    side = -(-c.image_size // c.patch)
    tokens = patches(c, side) + norm(side**2, c.width) + masked(side**2, c.width, c.dropout)
    tokens += Cost((c.image_size // c.patch) ** 2 * c.width if c.positions else 0)
    parts, matrices = {"patches": tokens}, list[Matrix]()
    for stage, depth in enumerate(c.depths):
        total, width = Cost(), c.stage_width(stage)
        if stage:
            side = halved(side)
            even = 2 * width if c.version == 1 else width
            total += linear(side**2, 2 * width, width, bias=False) + norm(side**2, even)
            total += Cost(kept=side**2 * 2 * width) + streams(side**2 * 2 * width, 4)
        for layer in range(depth):
            cost, matrix = _swin_layer(c, stage, layer, side)
            total, matrices = total + cost, [*matrices, matrix]
        parts[f"stage {stage + 1}"] = total
    last = c.stage_width(len(c.depths) - 1)
    return Costs({**parts, "head": norm(side**2, last) + head(last, c)}, matrices, 0, 0)


def mvit(c: MvitConfig, source: int = 0, target: int = 0) -> Costs:
    """The multiscale Transformer of `models/mvit.py`."""
    extra = 1 if c.class_token else 0
    side = -(-c.image_size // c.patch_stride) if c.patch_kernel % 2 else c.image_size // c.patch_stride + 1
    cells = convolution(side**2, c.channels, c.width, c.patch_kernel, bias=True) + _input_image(c)
    positions = (c.image_size // c.patch_stride) ** 2 + extra if c.positions == "absolute" else 0
    parts = {"patches": cells + Cost(c.width * (extra + positions))}
    matrices, outputs = list[Matrix](), c.width
    for stage, depth in enumerate(c.depths):
        total = Cost()
        for number in range(depth):
            shape = c.layer(stage, number)
            cost, matrix = _mvit_layer(c, f"stages.{stage}.{number}.attention", shape, side)
            side = -(-side // shape.query_stride)
            total, matrices, outputs = total + cost, [*matrices, matrix], shape.outputs
        parts[f"stage {stage + 1}"] = total
    return Costs({**parts, "head": norm(side**2 + extra, outputs) + head(outputs, c)}, matrices, 0, 0)


def sagan(c: SaganConfig, source: int = 0, target: int = 0) -> Costs:
    """The two networks of `models/sagan.py`: one image is generated, and one is judged."""
    sides, classes = c.sides, c.classes if c.conditional else 1
    made = linear(1, c.latent, c.widths[0] * sides[0] ** 2) + Cost(kept=c.latent)
    judged, inputs = _input_image(c), c.widths[0]
    matrices = []
    for number, width in enumerate(c.widths):
        side = sides[number + 1]
        coarse, fine = sides[number] ** 2, side**2
        made += _pair_of_convolutions(fine, inputs, width)
        made += Cost(2 * classes * (inputs + width), 0, 3 * coarse * inputs + 2 * fine * inputs + 3 * fine * width)
        inputs = width
        if side == c.attention_at:
            pooled = halved(side) ** 2
            look = _non_local(fine, pooled, width, max(1, width // 8), width // 2, pooled=True, bias=False)
            made += look + Cost(1, 0, fine * width)
            matrices.append(Matrix("generator.look", 1, fine, pooled))
    made += image_norm(sides[-1] ** 2, inputs) + convolution(sides[-1] ** 2, inputs, c.channels, 3, bias=True)
    made += Cost(kept=sides[-1] ** 2 * (inputs + c.channels))
    inputs = c.channels
    for number, width in enumerate(reversed(c.widths)):
        side = sides[-1 - number]
        pixels, after = side**2, sides[-2 - number]
        judged += _pair_of_convolutions(pixels, inputs, width)
        judged += Cost(kept=pixels * (2 * width + (inputs if number else 0)) + after**2 * width)
        if after == c.attention_at:
            pooled = halved(after) ** 2
            look = _non_local(after**2, pooled, width, max(1, width // 8), width // 2, pooled=True, bias=False)
            judged += look + Cost(1, 0, after**2 * width)
            matrices.append(Matrix("critic.look", 1, after**2, pooled))
        inputs = width
    judged += linear(1, inputs, 1) + Cost(c.classes * inputs if c.conditional else 0, 0, 3 * inputs)
    return Costs({"generator": made, "critic": judged}, matrices, 0, 0)


def _input_image(c: ImageConfig) -> Cost:
    return Cost(kept=c.channels * c.image_size**2)


def _stem(c: PatchesConfig, side: int) -> Cost:
    """A stem of small convolutions from the pixels to side x side vectors. Kept for each: the input of its norm and of
    its GELU, and the input of the next."""
    total, here = convolution(side**2, c.width, c.width, 1, bias=True), side * c.patch
    for inputs, outputs, stride in stem_convolutions(c.channels, c.width, c.patch):
        here //= stride
        numbers = here**2 * outputs
        total += convolution(here**2, inputs, outputs, 3, stride=stride) + Cost(kept=2 * numbers)
        total += image_norm(here**2, outputs) + activated(numbers, "gelu")
    return total


def _residual_block(
    c: ResnetConfig, name: str, side: int, inputs: int, width: int, strides: bool, projects: bool
) -> tuple[Cost, list[Matrix]]:
    """Kept of each step: the input of its norm and the output of its ReLU. The first spatial step has the stride."""
    inner, pre = width // 4, c.order == "pre"
    steps = [(inputs, width, True), (width, width, True)]  # input and output channels, and whether the step is spatial
    if c.block == "bottleneck":
        steps = [(inputs, inner, False), (inner, inner, True), (inner, width, False)]
    total = image_norm(side**2, inputs) + rectified(side**2 * inputs) if pre else Cost()
    matrices, to_stride = list[Matrix](), strides
    for number, (before, outputs, mixes) in enumerate(steps):
        strided = mixes and to_stride
        after = halved(side) if strided else side
        if c.spatial == "convolution" or not mixes:
            total += convolution(after**2, before, outputs, 3 if mixes else 1, stride=2 if strided else 1)
        else:
            cost, matrix = _local(c, f"{name}.steps.{number}.mix", side, before, outputs, strided)
            total, matrices = total + cost, [*matrices, matrix]
        if not pre or number < len(steps) - 1:
            total += image_norm(after**2, outputs) + rectified(after**2 * outputs)
        side, to_stride = after, to_stride and not mixes
    if projects:
        total += convolution(side**2, inputs, width, 1, stride=2 if strides else 1)
        total += Cost() if pre else image_norm(side**2, width)
    return total + added(side**2 * width), matrices


def _local(c: ResnetConfig, name: str, side: int, inputs: int, outputs: int, strides: bool) -> tuple[Cost, Matrix]:
    """Attention in neighbourhoods; kept: queries, keys and values in their block layout, and the weights."""
    places = neighbourhoods(c.window)
    windows, queries, keys = (-(-side // places.block)) ** 2, places.block**2, places.side**2
    rows, head_width, pixels = windows * queries, outputs // c.heads, side**2
    total = Cost(kept=pixels * inputs + (pixels * outputs if strides else 0))
    if c.spatial == "local":
        matched = _even(head_width + 2 * places.side)
        total += 3 * linear(pixels, inputs, outputs, bias=False) + Cost(c.window * head_width)
        total += Cost(flops=2 * rows * outputs * places.side)  # row and column offsets, half of the features each
        total += Cost(kept=rows * outputs)  # a second copy of the queries
    else:
        matched = _even(2)
        total += 2 * linear(pixels, inputs, c.heads) + Cost(3 * 16 + 17 * c.heads, 0, pixels * c.heads)
        if inputs != outputs:
            total += linear(pixels, inputs, outputs, bias=False)
    total += written_out(rows, keys, c.heads) + Cost(
        flops=2 * rows * keys * c.heads * (matched + head_width),
        kept=c.heads * (rows * matched + windows * keys * (matched + head_width)),
    )
    total += scored(windows, c.heads, queries, keys, head_width, "written")
    return total, Matrix(name, c.heads, queries, keys, windows)


def _even(features: int) -> int:
    """Rounded up to a multiple of 8."""
    return features + -features % 8


def _non_local(
    queries: int, keys: int, width: int, match: int, inner: int, *, pooled: bool = False, bias: bool = True
) -> Cost:
    """Four 1x1 convolutions around one head; pooling keeps its inputs and the positions of the maxima."""
    projections = 2 * convolution(queries, width, match, 1, bias=bias) + convolution(
        queries, width, inner, 1, bias=bias
    )
    projections += convolution(queries, inner, width, 1, bias=bias)
    looking = Cost(
        flops=2 * queries * keys * (match + inner), kept=queries * (match + inner + 1) + keys * (match + inner)
    )
    if pooled:
        looking += Cost(kept=queries * (match + inner) + keys * INDEX * (match + inner))
    return projections + looking + scored(1, 1, queries, keys, inner, "written") + added(queries * width)


def _swin_layer(c: SwinConfig, stage: int, layer: int, side: int) -> tuple[Cost, Matrix]:
    width, heads, tokens = c.stage_width(stage), c.heads[stage], side**2
    window = min(c.stage_window(stage), side)
    windows = (-(-side // window)) ** 2
    rows, area = windows * window**2, window**2
    biases = 1 + (3 if c.version == 1 else 2) * c.attention_bias  # of the output, and of all projections but V2's keys
    look = 4 * linear(rows, width, width, bias=False) + Cost(biases * width, 4 * rows * area * width)
    look += Cost(kept=rows * (5 * width + heads)) + (3 if c.attention_dropout else 1) * written_out(rows, area, heads)
    look += scored(windows, heads, area, area, width // heads, "written")
    look += summed(rows * width, 2) + streams(rows * width, 16) + calls(26)  # pad, shift, split, and the inverse
    if layer % 2 and side > window:  # shifted windows keep a mask of one byte per query and key
        look += Cost(kept=rows * area // FLOAT)
    if c.version == 1:
        look += Cost((2 * c.window - 1) ** 2 * heads)
    else:  # kept: normalised queries and keys, before and after the temperature
        look += Cost(heads + 3 * 512 + 512 * heads, 0, 4 * rows * width)
    hidden = int(c.ffn_ratio * width)
    total = look + feed_forward(tokens, width, hidden, c.activation, 0.0) + 2 * residual(tokens, width, c.dropout)
    return total, Matrix(f"stages.{stage}.{layer}.look.attention", heads, area, area, windows)


def _mvit_layer(c: MvitConfig, name: str, shape: LayerShape, side: int) -> tuple[Cost, Matrix]:
    extra, heads = 1 if c.class_token else 0, shape.heads
    head_width, inner = shape.inner // heads, shape.inner
    of_queries, of_keys = -(-side // shape.query_stride), -(-side // shape.key_stride)
    tokens, queries, keys = side**2 + extra, of_queries**2 + extra, of_keys**2 + extra
    total = norm(tokens, shape.inputs) + 3 * linear(tokens, shape.inputs, inner) + Cost(kept=tokens * shape.inputs)
    for cells, count in ((of_queries**2, queries), (of_keys**2, keys), (of_keys**2, keys)):
        pooled = convolution(cells, inner, inner, 3, groups=inner)
        total += replace(pooled, parameters=(9 + 2) * head_width)  # heads share their filters and a norm
        total += streams(count * inner, 9) + calls(8)
        total += Cost(kept=tokens * inner + 2 * count * inner + 2 * count * heads)
    total += Cost(flops=4 * queries * keys * inner, kept=2 * queries * inner) + linear(queries, inner, inner)
    total += scored(1, heads, queries, keys, head_width, "written" if c.positions == "relative" else "attention")
    total += 2 * added(queries * inner) + summed(tokens * shape.inputs, 2)
    if c.positions == "relative":
        finest = max(shape.side // shape.query_stride, shape.side // shape.key_stride)
        total += Cost(2 * (2 * finest - 1) * head_width, 4 * of_queries**2 * of_keys * inner, of_queries**2 * inner)
        by_row_and_column = Cost(work={Piece("product", (heads * of_queries**2, head_width, of_keys)): 2})
        total += by_row_and_column + streams(queries * keys * heads, 14) + calls(30)  # summed for every query and key
        total += written_out(queries, keys, heads)
    if shape.inputs != inner:
        total += linear(tokens, shape.inputs, inner)
    if shape.query_stride > 1:
        total += Cost(kept=side**2 * inner + INDEX * of_queries**2 * inner)
    hidden = int(c.ffn_ratio * inner)
    total += norm(queries, inner) + feed_forward(queries, inner, hidden, "gelu", 0.0, outputs=shape.outputs)
    if inner != shape.outputs:
        total += linear(queries, inner, shape.outputs)
    return total, Matrix(name, heads, queries, keys)


def _pair_of_convolutions(pixels: int, inputs: int, outputs: int) -> Cost:
    """Two 3x3 convolutions, and a 1x1 one around them."""
    pair = convolution(pixels, inputs, outputs, 3, bias=True) + convolution(pixels, outputs, outputs, 3, bias=True)
    return pair + convolution(pixels, inputs, outputs, 1, bias=True)


COSTS: dict[str, Callable[[Any, int, int], Costs]] = {
    "resnet": resnet,
    "vit": vit,
    "swin": swin,
    "mvit": mvit,
    "sagan": sagan,
}
