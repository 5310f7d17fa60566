"""Detectors: average precision on annotated images, by COCO's protocol, at the images' own size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from PIL import Image

from regard.data.regions.annotations import open_regions
from regard.data.regions.found import FoundBoxes, TrueBoxes
from regard.data.synthetic.shapes import scenes
from regard.errors import DataError
from regard.inference.pipelines.detection import AT_ONCE, Detected, ObjectDetector
from regard.studies.evaluate.catalog import Evaluation, EvaluationOptions
from regard.training.evaluation.average_precision import average_precision
from regard.training.recipe.files import SCENES


def evaluate_detector(detector: ObjectDetector, data: str, options: EvaluationOptions) -> Evaluation:
    """AP, AP50 and AP75, and AP50 of each class. What cannot be read, or boxes that are wrong, are named.

    `count` and `seed` determine which of the built-in scenes are drawn; files are always measured whole.
    """
    unread: list[str] = []
    pairs = measured_pairs(detector, data, options, unread)
    if not pairs:
        raise DataError(f"{data} has no image that can be read")
    found = average_precision(pairs, detector.labels)
    each: dict[str, object] = {f"AP50 of {name}": value for name, value in found.ap50_by_class.items()}
    scores: dict[str, object] = {"images": len(pairs), "AP": found.ap, "AP50": found.ap50, "AP75": found.ap75}
    return Evaluation({**scores, **each}, unread)


def measured_pairs(
    detector: ObjectDetector, data: str, options: EvaluationOptions, unread: list[str]
) -> list[tuple[TrueBoxes, FoundBoxes]]:
    """The true and the found boxes of every image."""
    examples, pairs = _examples(detector, data, options, unread), list[tuple[TrueBoxes, FoundBoxes]]()
    while some := list(islice(examples, AT_ONCE)):
        answers = detector.detect([image for image, _ in some])
        pairs += [(truth, _found(answer, detector.labels)) for answer, (_, truth) in zip(answers, some, strict=True)]
    return pairs


def _found(answer: Detected, names: list[str]) -> FoundBoxes:
    objects = answer.objects
    return FoundBoxes(
        np.array([each.box for each in objects]).reshape(-1, 4),
        np.array([names.index(each.label) for each in objects], dtype=np.int64),
        np.array([each.score for each in objects]),
    )


def _examples(
    detector: ObjectDetector, data: str, options: EvaluationOptions, unread: list[str]
) -> Iterator[tuple[Image.Image, TrueBoxes]]:
    names = detector.labels
    if data == SCENES:
        size = detector.config.image_size
        for scene in scenes(part="test", count=options.count, seed=options.seed, size=size):
            boxes = np.array([thing.box for thing in scene.things]) * size
            labels = np.array([names.index(thing.shape) for thing in scene.things])
            truth = TrueBoxes(boxes, labels, np.zeros(len(labels), dtype=bool))
            yield Image.fromarray(scene.pixels.transpose(1, 2, 0)), truth
        return
    for each in open_regions(data, names=names).examples(unread):
        yield each.image, TrueBoxes(each.boxes, each.labels, each.ignored)
