"""Detectors: average precision on annotated images, by COCO's protocol, at the images' own size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.synthetic.shapes import scenes
from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.detection.annotations import open_regions
from regard.families.detection.data import FoundBoxes, TrueBoxes
from regard.families.detection.metrics import average_precision, overlap
from regard.families.detection.pipeline import AT_ONCE, Detected, ObjectDetector
from regard.families.detection.view import precision_figure
from regard.look.figure_files import save_figure
from regard.training.recipe.files import SCENES

LEAST = 0.5  # score of the boxes whose kinds are counted
MISSED, IGNORED = "missed", "ignored"
RIGHT, NEAR = 0.5, 0.1  # IoU of a right box, and of one in the wrong place


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
    kinds = error_kinds(pairs)
    if options.output:
        curves = {name: table[0].tolist() for name, table in found.precisions.items()}  # at an IoU of .50
        save_figure(lambda: precision_figure(curves, kinds, detector.name), options.output)
    counts: dict[str, object] = {
        "objects missed" if kind == MISSED else f"boxes, {kind}": count for kind, count in kinds.items()
    }
    return Evaluation({**scores, **each, **counts}, unread)


def error_kinds(pairs: Sequence[tuple[TrueBoxes, FoundBoxes]], least: float = LEAST) -> dict[str, int]:
    """Found boxes of at least this score by what they are (Hoiem et al. 2012), and how many objects were missed.

    A box is right if its IoU with a free object of its class is at least .5. Otherwise it is there twice, of another
    class, in the wrong place (IoU of .1 or more with an object of its class), or on the background. A box that only
    fits an object that is left out of scores is left out too.
    """
    counts = dict.fromkeys(("right", "twice", "another class", "wrong place", "background", MISSED), 0)
    for truth, found in pairs:
        free = ~truth.ignored
        chosen = np.flatnonzero(found.scores >= least)
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
