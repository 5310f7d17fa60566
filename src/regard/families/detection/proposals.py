"""Both stages of Faster R-CNN (Ren et al. 2015): anchors become proposals, which are classified and refined."""

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.places import Argument
from regard.config import Config
from regard.families.detection.regions import (
    BELOW,
    anchors,
    clip,
    decode,
    encode,
    iou,
    large_enough,
    match,
    pyramid_levels,
    roi_align,
    rows_at,
    sample,
    suppress,
)

PLAIN = (1.0, 1.0)  # weights of box coding
BETA = 1 / 9  # where the smooth L1 loss turns from square to absolute


class ProposalSettings(Config):
    """Anchors, and how proposals are made and trained; the defaults are torchvision's."""

    sizes: tuple[tuple[PositiveFloat, ...], ...] = ((32.0,), (64.0,), (128.0,), (256.0,), (512.0,))  # of each map
    ratios: tuple[PositiveFloat, ...] = (0.5, 1.0, 2.0)  # height / width
    high: float = Field(default=0.7, gt=0, le=1)  # IoU from which an anchor holds an object
    low: float = Field(default=0.3, gt=0, le=1)  # IoU below which it holds none
    sampled: PositiveInt = 256  # anchors of an image that the loss reads
    positive: float = Field(default=0.5, gt=0, le=1)  # the largest share of them that hold an object
    nms: float = Field(default=0.7, gt=0, le=1)
    train_before: PositiveInt = 2000  # best anchors of each map, before suppression
    train_after: PositiveInt = 2000  # proposals of an image, after suppression
    before: PositiveInt = 1000  # the same when the model is used
    after: PositiveInt = 1000

    @property
    def per_cell(self) -> int:
        """Anchors at each cell of a map."""
        return len(self.sizes[0]) * len(self.ratios)


class Truth(NamedTuple):
    """The true boxes of images, padded, and their classes from 1 on; 0 marks padding."""

    boxes: Float[Tensor, "B M 4"]
    labels: Int[Tensor, "B M"]


class ScoredAnchors(NamedTuple):
    """For every anchor of a batch: the logit that it holds an object, and the coded difference of its box."""

    logits: Float[Tensor, "B N"]
    deltas: Float[Tensor, "B N 4"]
    anchors: Float[Tensor, "N 4"]
    counts: list[int]  # anchors of each map


class Proposals(NamedTuple):
    """Boxes that may hold objects, best first, and which of them are no padding."""

    boxes: Float[Tensor, "B R 4"]
    real: Bool[Tensor, "B R"]


class ProposalNetwork(nn.Module):
    """A small convolution over every map, and two 1 x 1 convolutions for each anchor of a cell."""

    def __init__(self, width: int, settings: ProposalSettings):
        super().__init__()
        self.settings = settings
        self.mix = nn.Conv2d(width, width, 3, padding=1)
        self.score = nn.Conv2d(width, settings.per_cell, 1)
        self.box = nn.Conv2d(width, 4 * settings.per_cell, 1)
        for layer in (self.mix, self.score, self.box):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Float[Tensor, "B D _ _"]], strides: Sequence[int]) -> ScoredAnchors:
        """Score every anchor of every map."""
        logits, deltas, boxes = [], [], []
        for each, stride, sizes in zip(maps, strides, self.settings.sizes, strict=True):
            mixed = functional.relu(self.mix(each))
            logits.append(self.score(mixed).permute(0, 2, 3, 1).flatten(1).float())
            deltas.append(self.box(mixed).permute(0, 2, 3, 1).reshape(len(each), -1, 4).float())
            grid = each.shape[2], each.shape[3]
            boxes.append(anchors(sizes, self.settings.ratios, grid, (stride, stride), each.device))
        counts = [len(some) for some in boxes]
        return ScoredAnchors(torch.cat(logits, dim=1), torch.cat(deltas, dim=1), torch.cat(boxes), counts)

    @torch.no_grad()
    def proposals(self, scored: ScoredAnchors, sizes: Float[Tensor, "B 2"]) -> Proposals:
        """The best boxes of all maps. Suppression works on each map alone, as in torchvision."""
        settings = self.settings
        before, after = settings.before, settings.after
        if self.training:
            before, after = settings.train_before, settings.train_after
        most = min(before, max(scored.counts))
        firsts = accumulate(scored.counts[:-1], initial=0)  # the first anchor of each map
        spans = zip(firsts, scored.counts, strict=True)
        per_map = [self._best(scored, first, count, sizes, most) for first, count in spans]
        boxes, scores = (torch.stack(each, dim=1) for each in zip(*per_map, strict=True))  # [B maps most ...]
        counts = scores.isfinite().sum(dim=-1)
        kept = suppress(boxes.flatten(0, 1), counts.flatten(), settings.nms).view_as(scores)
        scores = scores.masked_fill(~kept, -torch.inf).flatten(1)
        best, numbers = scores.topk(min(after, scores.shape[1]), dim=1)
        return Proposals(rows_at(boxes.flatten(1, 2), numbers), best.isfinite())

    def _best(
        self, scored: ScoredAnchors, first: int, count: int, sizes: Float[Tensor, "B 2"], most: int
    ) -> tuple[Float[Tensor, "B most 4"], Float[Tensor, "B most"]]:
        """The boxes of one map's best anchors, best first; those without area come last, with the score -∞."""
        taken = min(count, most)
        scores, numbers = scored.logits[:, first : first + count].topk(taken, dim=1)
        numbers = first + numbers
        boxes = clip(decode(rows_at(scored.deltas, numbers), scored.anchors[numbers], PLAIN), sizes)
        scores, order = scores.masked_fill(~large_enough(boxes), -torch.inf).sort(dim=1, descending=True, stable=True)
        missing = most - taken
        return (
            functional.pad(rows_at(boxes, order), (0, 0, 0, missing)),
            functional.pad(scores, (0, missing), value=-torch.inf),
        )

    def losses(self, scored: ScoredAnchors, truth: Truth) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """Of every image: the mean cross-entropy of sampled anchors, and the smooth L1 loss of boxes by their count."""
        settings = self.settings
        with torch.no_grad():
            all_anchors = scored.anchors.expand(len(truth.boxes), -1, -1)
            overlaps = iou(truth.boxes, all_anchors)
            matched = match(overlaps, truth.labels > 0, high=settings.high, low=settings.low, keep_best=True)
            numbers, chosen = sample(matched >= 0, matched == BELOW, settings.sampled, settings.positive)
            matched = matched.gather(1, numbers)
            holds = (matched >= 0) & chosen
            near = rows_at(all_anchors, numbers)
            target = encode(rows_at(truth.boxes, matched.clamp(min=0)), near, PLAIN)
            target = torch.where(holds[..., None], target, 0.0)  # padding has no size, whose logarithm is infinite
            count = chosen.sum(dim=1).clamp(min=1)
        logits = scored.logits.gather(1, numbers)
        entropy = functional.binary_cross_entropy_with_logits(logits, holds.float(), reduction="none")
        errors = box_loss(rows_at(scored.deltas, numbers), target, holds)
        return (entropy * chosen).sum(dim=1) / count, errors / count


def box_loss(
    deltas: Float[Tensor, "B K 4"], target: Float[Tensor, "B K 4"], counted: Bool[Tensor, "B K"]
) -> Float[Tensor, "B"]:
    """The smooth L1 loss of the counted boxes of every image, summed."""
    errors = functional.smooth_l1_loss(deltas.float(), target, beta=BETA, reduction="none").sum(dim=-1)
    return torch.where(counted, errors, 0.0).sum(dim=1)


class RegionSettings(Config):
    """How regions are read, classified and trained; the defaults are torchvision's."""

    side: PositiveInt = 7  # bins of a region's side
    ratio: int = 2  # samples of a bin's side; -1: as many as it has pixels
    aligned: bool = False  # shift regions by half a pixel (Detectron2's correction)
    canonical: PositiveFloat = 224.0  # regions of this side are read from the map of stride 16
    width: PositiveInt = 1024  # of the two linear layers
    weights: tuple[PositiveFloat, PositiveFloat] = (10.0, 5.0)  # of box coding: centre, scale
    high: float = Field(default=0.5, gt=0, le=1)  # IoU from which a proposal holds an object
    sampled: PositiveInt = 512  # proposals of an image that the loss reads
    positive: float = Field(default=0.25, gt=0, le=1)  # the largest share of them that hold an object
    score: float = Field(default=0.05, ge=0, lt=1)  # probability that a detection must exceed
    nms: float = Field(default=0.5, gt=0, le=1)
    most: PositiveInt = 100  # detections of an image


class Detections(NamedTuple):
    """The objects found in images, best first. Padding has score 0 and label -1."""

    boxes: Float[Tensor, "B D 4"]
    scores: Float[Tensor, "B D"]
    labels: Int[Tensor, "B D"]  # classes from 0 on


class RegionHead(nn.Module):
    """RoI align, two linear layers, and a class and a box for each class from them. Class 0 is the background."""

    PLACES: ClassVar = {"hidden": Argument("second"), "features": Argument()}

    def __init__(self, channels: int, classes: int, settings: RegionSettings):
        super().__init__()
        self.settings = settings
        self.first = nn.Linear(channels * settings.side**2, settings.width)
        self.second = nn.Linear(settings.width, settings.width)
        self.label = nn.Linear(settings.width, classes + 1)
        self.box = nn.Linear(settings.width, 4 * (classes + 1))

    def features(
        self, maps: Sequence[Float[Tensor, "B D _ _"]], strides: Sequence[int], boxes: Float[Tensor, "B R 4"]
    ) -> Float[Tensor, "B R F"]:
        """A vector of each region."""
        c = self.settings
        finest = strides[0].bit_length() - 1
        levels = pyramid_levels(boxes * (224.0 / c.canonical), finest, len(maps))
        pooled = roi_align(maps, boxes, levels, [1 / stride for stride in strides], c.side, c.ratio, c.aligned)
        return functional.relu(self.second(functional.relu(self.first(pooled.flatten(2)))))

    def forward(self, features: Float[Tensor, "B R F"]) -> tuple[Float[Tensor, "B R K"], Float[Tensor, "B R K 4"]]:
        """Logits of the classes, and coded boxes for each class."""
        return self.label(features).float(), self.box(features).unflatten(-1, (-1, 4)).float()

    @torch.no_grad()
    def detect(self, features: Float[Tensor, "B R F"], proposals: Proposals, sizes: Float[Tensor, "B 2"]) -> Detections:
        """Probable classes of proposals, after suppression within each class."""
        c = self.settings
        logits, deltas = self(features)
        scores = logits.softmax(dim=-1)[..., 1:].transpose(1, 2)  # [B classes R]
        classes, regions = scores.shape[1:]
        near = proposals.boxes[:, None].expand(-1, classes, -1, -1)
        boxes = decode(deltas[:, :, 1:].transpose(1, 2), near, c.weights)
        boxes = clip(boxes.flatten(1, 2), sizes).view_as(boxes)
        counted = proposals.real[:, None] & (scores > c.score) & large_enough(boxes)
        scores, order = scores.masked_fill(~counted, 0.0).sort(dim=-1, descending=True, stable=True)
        boxes = rows_at(boxes.flatten(0, 1), order.flatten(0, 1))
        kept = suppress(boxes, counted.sum(dim=-1).flatten(), c.nms).view_as(scores)
        best, numbers = scores.masked_fill(~kept, 0.0).flatten(1).topk(min(c.most, classes * regions), dim=1)
        labels = torch.where(best > 0, numbers // regions, -1)
        return Detections(rows_at(boxes.view(len(best), -1, 4), numbers), best, labels)

    @torch.no_grad()
    def sampled(self, proposals: Proposals, truth: Truth) -> "SampledRegions":
        """Some proposals and true boxes to learn from, with their classes and coded boxes."""
        c = self.settings
        boxes = torch.cat([proposals.boxes, truth.boxes], dim=1)
        real = torch.cat([proposals.real, truth.labels > 0], dim=1)
        matched = match(iou(truth.boxes, boxes), truth.labels > 0, high=c.high, low=c.high, keep_best=False)
        numbers, chosen = sample((matched >= 0) & real, (matched == BELOW) & real, c.sampled, c.positive)
        boxes, matched = rows_at(boxes, numbers), matched.gather(1, numbers)
        holds = (matched >= 0) & chosen
        matched = matched.clamp(min=0)
        labels = torch.where(holds, truth.labels.gather(1, matched), 0)
        deltas = encode(rows_at(truth.boxes, matched), boxes, c.weights)
        return SampledRegions(boxes, labels, torch.where(holds[..., None], deltas, 0.0), chosen)

    def losses(
        self, features: Float[Tensor, "B K F"], regions: "SampledRegions"
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """Of every image: the mean cross-entropy of sampled regions, and the smooth L1 loss of boxes by their count."""
        logits, deltas = self(features)
        count = regions.chosen.sum(dim=1).clamp(min=1)
        entropy = functional.cross_entropy(logits.transpose(1, 2), regions.labels, reduction="none")
        own = regions.labels[..., None, None].expand(-1, -1, 1, 4)
        errors = box_loss(deltas.gather(2, own)[:, :, 0], regions.deltas, regions.labels > 0)
        return torch.where(regions.chosen, entropy, 0.0).sum(dim=1) / count, errors / count


class SampledRegions(NamedTuple):
    """Regions to learn from: their classes (0: background), coded true boxes, and which were drawn at all."""

    boxes: Float[Tensor, "B K 4"]
    labels: Int[Tensor, "B K"]
    deltas: Float[Tensor, "B K 4"]
    chosen: Bool[Tensor, "B K"]
