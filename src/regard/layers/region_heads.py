"""The second stage of Faster R-CNN (Ren et al. 2015): proposals are read from the maps, classified and refined."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.places import Argument
from regard.config import Config
from regard.layers.boxes import BELOW, clip, decode, encode, iou, match
from regard.layers.proposals import Proposals, Truth, box_loss
from regard.layers.regions import large_enough, pyramid_levels, roi_align, rows_at, sample, suppress


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
    regions: Int[Tensor, "B D"]  # the number of the proposal of each


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
        return Detections(
            rows_at(boxes.view(len(best), -1, 4), numbers), best, labels, order.flatten(1).gather(1, numbers)
        )

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
