"""Points of drawn shapes, and files of points: three numbers a line."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.loader import Place, Rows
from regard.errors import DataError

SHAPES = ("ball", "cube", "needle")


@dataclass
class CloudBatch(TensorBatch):
    """Clouds of one size, and the numbers of their shapes."""

    points: Float[Tensor, "B T 3"]
    labels: Int[Tensor, "B"]

    @property
    def tokens(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DrawnClouds:
    """`count` clouds drawn by a seed; row i is always the same cloud."""

    count: int
    size: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def cloud(self, row: int) -> tuple[Float[np.ndarray, "T 3"], int]:
        rng = np.random.default_rng([self.seed, row])
        label = int(rng.integers(len(SHAPES)))
        points = rng.normal(size=(self.size, 3))
        if SHAPES[label] == "ball":
            points /= np.linalg.norm(points, axis=1, keepdims=True)
        elif SHAPES[label] == "cube":
            points = rng.uniform(-1, 1, size=(self.size, 3))
        else:
            points *= (0.1, 0.1, 1.0)
        return points.astype(np.float32), label

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> CloudBatch:
        points, labels = zip(*(self.cloud(int(row)) for row in rows), strict=True)
        return CloudBatch(torch.from_numpy(np.stack(points)), torch.tensor(labels))


def read_cloud(file: str | Path | bytes, name: str = "") -> Float[np.ndarray, "T 3"]:
    """The points of a file with three numbers a line."""
    text = file.decode() if isinstance(file, bytes) else Path(file).read_text(encoding="utf-8")
    try:
        points = np.array([[float(value) for value in line.split()] for line in text.splitlines() if line.strip()])
    except ValueError as error:
        raise DataError(f"{name or file}: {error}; expected three numbers a line") from None
    if points.ndim != 2 or points.shape[1] != 3:
        raise DataError(f"{name or file}: expected three numbers a line, and at least one line")
    return points.astype(np.float32)
