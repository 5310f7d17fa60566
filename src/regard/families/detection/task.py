"""Detection: the losses of both stages and average precision, in training and for `regard evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
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
from regard.families.detection.metrics import MISSED, FoundBoxes, Pair, average_precision, error_kinds
from regard.families.detection.proposals import Truth
from regard.families.detection.recipe import DetectionRecipe
from regard.training.image_task import ImageTask, image_config, initial_preprocessing
from regard.training.initial_model import build_on_body
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values

if TYPE_CHECKING:
    from regard.families.detection.pipeline import ObjectDetector


def detection_loss(model: Forward, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"], truth: Truth) -> Loss:
    """The four losses of both stages, summed over images."""
    total: Tensor = sum(losses.sum() for losses in model(images, sizes, truth))
    return Loss(total, torch.full((), len(images), device=images.device))


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

    recipe: DetectionRecipe
    corpus: RegionCorpus
    train: DeviceRegions

    @classmethod
    def images(cls, recipe: DetectionRecipe) -> RegionCorpus:
        config = image_config(recipe.model)
        size, channels = config.image_size, config.channels
        given = initial_preprocessing(recipe.model.init, size, channels)
        return RegionCorpus(recipe.data, size, channels, recipe.seed, given)

    def placed(self, part: RegionRows) -> DeviceRegions:
        return DeviceRegions(part, self.device)

    def build(self) -> nn.Module:
        """A model that knows the names of the classes."""
        section, names = self.recipe.model, self.corpus.names
        config = image_config(section)
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
    return pairs
