"""The costs of models that have another image model as their body: segmenters and detectors."""

from __future__ import annotations

from dataclasses import replace

from regard.families.detection.model import DetectorConfig
from regard.families.images.segmenter import SegmenterConfig
from regard.layers.bodies import BodyConfig
from regard.studies.costs import images
from regard.studies.costs.images import INDEX, convolution, halved, head, image_norm
from regard.studies.costs.parts import Cost, Costs, Matrix, activated, linear


def body_costs(c: BodyConfig) -> tuple[Cost, list[Matrix]]:
    """The body of a model without its output layer, and its attention matrices."""
    inner = c.body_config()
    whole = images.COSTS[c.body](inner, 0, 0)
    own, spared = whole.parts.pop("head"), head(inner.map_widths()[-1], inner)
    body = sum(whole.parts.values(), Cost(own.parameters - spared.parameters, 0, own.kept - spared.kept))
    return body, [Matrix(f"body.{m.name}", m.heads, m.queries, m.keys, m.windows) for m in whole.matrices]


def segmenter(c: SegmenterConfig, source: int = 0, target: int = 0) -> Costs:
    """The backbone without its own head, and the head of `models/segmenter.py`."""
    inner = c.body_config()
    body, matrices = body_costs(c)
    sides = inner.map_sides()
    pixels = sides[0] ** 2
    neck = Cost()
    for side, width in zip(sides, inner.map_widths(), strict=True):
        neck += convolution(side**2, width, c.width, 1, bias=True)
    mixed = image_norm(pixels, c.width) + convolution(pixels, c.width, c.width, 3, bias=True)
    mixed += Cost(kept=2 * pixels * c.width)
    output = convolution(pixels, c.width, c.classes, 1, bias=True) + Cost(kept=c.image_size**2 * c.classes)
    return Costs({"body": body, "neck": neck, "head": mixed + output}, matrices, 0, 0)


def detector(c: DetectorConfig, source: int = 0, target: int = 0) -> Costs:
    """Training of `models/detector.py` on one image whose sides are multiples of 32: body, pyramid and both stages."""
    inner = c.body_config()
    body, matrices = body_costs(c)
    widths, sides = inner.map_widths(), inner.map_sides()
    neck, width = Cost(), c.map_width
    if c.pyramid == "fpn":
        for side, inputs in zip(sides, widths, strict=True):
            for before, kernel in ((inputs, 1), (width, 3)):
                neck += convolution(side**2, before, width, kernel, bias=True)
                neck += image_norm(side**2, width) if c.norm == "group" else Cost()
            neck += Cost(kept=side**2 * width)
    elif c.pyramid == "simple":
        sides, cost = _simple_pyramid(sides[0], widths[0], width)
        neck += cost
    regions = _region_head(c)
    anchors = [*sides, halved(sides[-1])] if c.pooled else sides
    first, places = Cost(), sum(side**2 for side in anchors)
    for side in anchors:
        for outputs, kernel in ((width, 3), (5 * c.proposals.per_cell, 1)):
            cost = convolution(side**2, width, outputs, kernel, bias=True)
            first += cost if side == anchors[0] else replace(cost, parameters=0)  # maps share their filters
    first += Cost(kept=2 * places * width) + activated(places * width, "relu")
    return Costs({"body": body, "neck": neck, "proposals": first, "regions": regions}, matrices, 0, 0)


def _simple_pyramid(side: int, inputs: int, width: int) -> tuple[list[int], Cost]:
    """The sides of a plain Transformer's map at four scales, and the cost of making them."""
    half, quarter = max(1, inputs // 2), max(1, inputs // 4)
    total = 2 * convolution(side**2, inputs, half, 2, bias=True)  # transposed: every input pixel makes 2 x 2
    total += convolution((2 * side) ** 2, half, quarter, 2, bias=True) + image_norm((2 * side) ** 2, half)
    total += Cost(kept=2 * (2 * side) ** 2 * half + (4 * side) ** 2 * quarter)
    sides = [4 * side, 2 * side, side, side // 2]
    for each, channels in zip(sides, (quarter, half, inputs, inputs), strict=True):
        for before, kernel in ((channels, 1), (width, 3)):
            total += convolution(each**2, before, width, kernel, bias=True) + image_norm(each**2, width)
        total += Cost(kept=each**2 * width)
    return sides, total


def _region_head(c: DetectorConfig) -> Cost:
    """The sampled regions of an image; kept: where their samples lie, their weights, and the layers' inputs."""
    r, outputs = c.regions, 5 * (c.classes + 1)
    bins, count = r.side**2, r.sampled
    read = Cost(kept=count * bins * (4 * max(1, r.ratio) ** 2 * (1 + INDEX) + c.map_width))
    total = read + linear(count, c.map_width * bins, r.width) + linear(count, r.width, r.width)
    return total + linear(count, r.width, outputs) + Cost(kept=2 * count * r.width + count * outputs)
