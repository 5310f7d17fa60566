"""True and found boxes of an image, as scores compare them, and COCO's form of found ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TrueBoxes:
    """The boxes of an image: corners [N 4], classes, and which are ignored (COCO's crowds, VOC's difficult ones)."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    ignored: NDArray[np.bool_]


@dataclass(frozen=True)
class FoundBoxes:
    """Detections in an image: corners [N 4], classes and scores."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating]
