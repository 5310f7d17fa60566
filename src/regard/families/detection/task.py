"""Detection: the losses of both stages; average precision by pycocotools (IoU .50 to .95, 101 recalls, 100 boxes an
image), and the kinds of mistakes there are (Hoiem et al. 2012), in training and for `regard evaluate`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.batch import ImageBatch
from regard.errors import ConfigError, DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.detection.annotations import TrueBoxes
from regard.families.detection.data import (
    AT_ONCE,
    DeviceRegions,
    RegionCorpus,
    RegionRows,
    by_canvas,
    collate,
    open_examples,
    zero_padding,
)
from regard.families.detection.proposals import Truth
from regard.families.detection.recipe import DetectionRecipe
from regard.layers.vision import ImageConfig
from regard.training.image_task import ImageTask
from regard.training.initial_model import build_on_body, planned_config
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values

if TYPE_CHECKING:
    from regard.families.detection.pipeline import ObjectDetector

RECALLS = np.linspace(0.0, 1.0, 101)
LEAST = 0.5  # score of the boxes whose kinds are counted
RIGHT, NEAR = 0.5, 0.1  # IoU of a right box, and of one in the wrong place
MISSED, IGNORED = "missed", "ignored"

Array = NDArray[np.float64]


class FoundBoxes(NamedTuple):
    """Detections in an image: corners [N 4], classes and scores."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating]


Pair = tuple[TrueBoxes, FoundBoxes]  # of one image


def detection_loss(model: Forward, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"], truth: Truth) -> Loss:
    """The four losses of both stages, summed over images."""
    total: Tensor = sum(losses.sum() for losses in model(images, sizes, truth))
    return Loss.of(total, len(images))


def found_pairs(
    model: Forward, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"], truths: Iterable[TrueBoxes]
) -> Iterator[Pair]:
    """The true and the found boxes of every image of a batch."""
    tables = (table.float().cpu().numpy() for table in model(images, sizes))
    for truth, boxes, scores, labels in zip(truths, *tables, strict=True):
        real = labels >= 0
        yield truth, FoundBoxes(boxes[real], labels[real].astype(np.int64), scores[real])


class DetectionTask(ImageTask[ImageBatch], SupervisedTask[ImageBatch]):
    """Augmented images with boxes."""

    reads = RegionCorpus
    recipe: DetectionRecipe
    train: DeviceRegions

    def placed(self, part: RegionRows) -> DeviceRegions:
        return DeviceRegions(part, self.device)

    def build(self) -> nn.Module:
        section, names = self.recipe.model, self.corpus.names
        config = planned_config(section, ImageConfig)
        if config.classes != len(names) and not section.init:
            raise ConfigError(
                f"model.classes is {config.classes}, but boxes have {len(names)} classes: {', '.join(names)}"
            )
        return build_on_body(section, config, names)

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """The loss of augmented images, which fill their canvas."""
        change, train = self.recipe.augmentation, self.train
        pixels = change.coloured(train.pixels(batch).float() / 255, batch.draws)
        images = self.corpus.preprocessing.normalise(pixels)
        moved = change.moved(images, train.sizes(batch), *train.truth(batch), batch.draws)
        whole = torch.stack([torch.full_like(batch.draws[:, 0], side) for side in pixels.shape[2:]], dim=1)
        return detection_loss(model, moved.images, whole, Truth(moved.boxes, moved.labels))

    def measured(self, model: nn.Module, images: DeviceRegions, poll: Poll) -> Values:
        """Average precision, and AP50 of every class."""
        precision = average_precision(self._pairs(model, images, poll), self.corpus.names)
        by_class = {f"ap50_{name}": value for name, value in precision.ap50_by_class.items()}
        return {"ap": precision.ap, "ap50": precision.ap50, "ap75": precision.ap75, **by_class}

    @torch.inference_mode()
    def _pairs(self, model: nn.Module, images: DeviceRegions, poll: Poll) -> Iterator[Pair]:
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            sizes, truths = images.sizes(batch), map(images.rows.truth, batch.rows.tolist())
            yield from found_pairs(model, zero_padding(self.read(batch, images), sizes), sizes, truths)


# Metrics


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision over classes: the mean over IoU thresholds .50 to .95, and at .50 and .75 alone."""

    ap: float
    ap50: float
    ap75: float
    curves: dict[str, Array] = field(repr=False)  # precision at 101 recalls of every class that occurs, at .50

    @property
    def ap50_by_class(self) -> dict[str, float]:
        """AP50 of every class that occurs."""
        return {name: float(curve.mean()) for name, curve in self.curves.items()}


def average_precision(pairs: Iterable[Pair], names: Sequence[str]) -> AveragePrecision:
    """The average precision of detections in images whose true boxes are known. Ignored boxes are COCO's crowds."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    pairs = list(pairs)
    truths = [_rows(true.boxes, category_id=true.labels, iscrowd=true.ignored) for true, _ in pairs]
    answers = [_rows(found.boxes, category_id=found.labels, score=found.scores) for _, found in pairs]
    with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        tables = []
        for images in (truths, answers):
            table = COCO()
            rows = [{"image_id": number, **row} for number, image in enumerate(images) for row in image]
            table.dataset = {
                "images": [{"id": number} for number in range(len(pairs))],
                "categories": [{"id": label} for label in range(len(names))],
                "annotations": [{"id": number, **row} for number, row in enumerate(rows, start=1)],
            }
            table.createIndex()
            tables.append(table)
        evaluation = COCOeval(*tables, "bbox")
        evaluation.params.areaRng, evaluation.params.maxDets = [[0, np.inf]], [100]
        evaluation.evaluate()
        evaluation.accumulate()
    precisions = evaluation.eval["precision"][:, :, :, 0, 0]  # -1: a class without true boxes
    found = {name: precisions[:, :, label] for label, name in enumerate(names) if precisions[0, 0, label] >= 0}

    def mean(threshold: int | slice = slice(None)) -> float:
        return float(np.mean([table[threshold] for table in found.values()])) if found else 0.0

    return AveragePrecision(mean(), mean(0), mean(5), {name: table[0] for name, table in found.items()})


def overlap(found: NDArray[np.floating], truth: NDArray[np.floating], crowd: NDArray[np.bool_]) -> Array:
    """IoU of every detection with every true box; with a crowd, the part of the detection inside it."""
    from pycocotools import mask

    return np.array(mask.iou(_sizes(found), _sizes(truth), crowd)).reshape(len(found), len(truth))


def _sizes(boxes: NDArray[np.floating]) -> Array:
    """Boxes as a corner, width and height, from two corners."""
    boxes = boxes.astype(np.float64)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _rows(boxes: NDArray[np.floating], **columns: NDArray[Any]) -> list[dict[str, Any]]:
    """The boxes of an image in COCO's form."""
    sizes = _sizes(boxes)
    columns |= {"bbox": sizes, "area": sizes[:, 2:].prod(axis=1)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*map(np.ndarray.tolist, columns.values()), strict=True)]


def error_kinds(pairs: Sequence[Pair]) -> dict[str, int]:
    """Found boxes of a score of .5 or more by what they are (Hoiem et al. 2012), and how many objects were missed.

    A box is right if its IoU with a free object of its class is at least .5. Otherwise it is there twice, of another
    class, in the wrong place (IoU of .1 or more with an object of its class), or on the background. A box that only
    fits an object that is left out of scores is left out too.
    """
    counts = dict.fromkeys(("right", "twice", "another class", "wrong place", "background", MISSED), 0)
    for truth, found in pairs:
        free = ~truth.ignored
        chosen = np.flatnonzero(found.scores >= LEAST)
        for number in chosen[np.argsort(-found.scores[chosen], kind="stable")]:
            own = overlap(found.boxes[number : number + 1], truth.boxes, truth.ignored)[0]
            kind, place = _kind(own, truth, int(found.labels[number]), free)
            if kind == IGNORED:
                continue
            counts[kind] += 1
            if kind == "right":
                free[place] = False
        counts[MISSED] += int(free.sum())
    return counts


def _kind(own: NDArray[np.float64], truth: TrueBoxes, label: int, free: NDArray[np.bool_]) -> tuple[str, int]:
    """What a found box is, by its overlaps with the true ones, and the true box it overlaps most among those."""
    same, counted = truth.labels == label, ~truth.ignored
    for kind, allowed, needed in (
        ("right", same & free, RIGHT),
        (IGNORED, same & truth.ignored, RIGHT),
        ("twice", same & counted, RIGHT),
        ("another class", ~same & counted, RIGHT),
        ("wrong place", same & counted, NEAR),
    ):
        overlaps = np.where(allowed, own, 0.0)
        if len(own) and overlaps.max() >= needed:
            return kind, int(overlaps.argmax())
    return "background", -1


def evaluate_detector(detector: ObjectDetector, data: str, options: EvaluationOptions) -> Evaluation:
    """AP, AP50 and AP75, AP50 of each class, and what kinds of boxes were found. What cannot be read, or boxes that are
    wrong, are named."""
    unread: list[str] = []
    pairs = evaluated_pairs(detector, data, options, unread)
    if not pairs:
        raise DataError(f"{data} has no image that can be read")
    precision, kinds = average_precision(pairs, detector.labels), error_kinds(pairs)
    if options.output:
        from regard.families.detection.view import save_precision

        save_precision(precision, kinds, detector.name, options.output)
    scores: dict[str, object] = {
        "images": len(pairs),
        "AP": precision.ap,
        "AP50": precision.ap50,
        "AP75": precision.ap75,
    }
    scores |= {f"AP50 of {name}": value for name, value in precision.ap50_by_class.items()}
    scores |= {"objects missed" if kind == MISSED else f"boxes, {kind}": count for kind, count in kinds.items()}
    return Evaluation(scores, unread)


@torch.inference_mode()
def evaluated_pairs(detector: ObjectDetector, data: str, options: EvaluationOptions, unread: list[str]) -> list[Pair]:
    """The true and the found boxes of every image, in pixels of the model: no IoU depends on the scale."""
    size, pairs = detector.config.image_size, list[Pair]()
    _, examples = open_examples(
        data, detector.labels, size=size, part="test", count=options.count, seed=options.seed, skipped=unread
    )
    images = (detector.fitted(image, truth) for image, truth in examples)
    while some := list(islice(images, AT_ONCE)):
        for numbers in by_canvas(some):
            group = [some[number] for number in numbers]
            inputs = collate(group, detector.preprocessing, detector.device)
            pairs += found_pairs(detector.model, inputs.images, inputs.sizes, [image.truth for image in group])
        options.measured(len(some))
    return pairs
