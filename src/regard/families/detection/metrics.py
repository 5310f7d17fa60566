"""Average precision of detected boxes by pycocotools: IoU .50 to .95, 101 recalls, 100 boxes an image."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.families.detection.data import FoundBoxes, TrueBoxes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision over classes and thresholds, and each class alone."""

    precisions: dict[str, Array] = field(repr=False)  # [thresholds, recalls] of every class that occurs

    def _mean(self, threshold: int | slice = slice(None)) -> float:
        return float(np.mean([table[threshold] for table in self.precisions.values()])) if self.precisions else 0.0

    @property
    def ap(self) -> float:
        """The mean over thresholds .50 to .95."""
        return self._mean()

    @property
    def ap50(self) -> float:
        return self._mean(0)

    @property
    def ap75(self) -> float:
        return self._mean(5)

    @property
    def ap50_by_class(self) -> dict[str, float]:
        """AP50 of every class that occurs."""
        return {name: float(table[0].mean()) for name, table in self.precisions.items()}


def average_precision(pairs: Iterable[tuple[TrueBoxes, FoundBoxes]], names: Sequence[str]) -> AveragePrecision:
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
    return AveragePrecision(
        {name: precisions[:, :, label] for label, name in enumerate(names) if precisions[0, 0, label] >= 0}
    )


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
