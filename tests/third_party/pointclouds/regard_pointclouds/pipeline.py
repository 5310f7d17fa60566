"""Files of points in, shapes out."""

from pathlib import Path
from typing import Any, ClassVar

import torch

from regard.attention import record
from regard.search.pipeline import load_for_pipeline
from regard_pointclouds.data import SHAPES, read_cloud
from regard_pointclouds.model import PointTransformer


class CloudClassifier:
    """A trained model of point clouds."""

    pipeline: ClassVar[str] = "cloud_classifier"

    def __init__(self, model: PointTransformer, name: str = "") -> None:
        self.model, self.name, self.device = model.eval(), name, next(model.parameters()).device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> "CloudClassifier":
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="reads no points")
        assert isinstance(loaded.model, PointTransformer)
        return cls(loaded.model, Path(folder).name)

    @torch.inference_mode()
    def recognise(self, *files: str | Path | bytes) -> list[str]:
        """The shape of each cloud."""
        clouds = [torch.from_numpy(read_cloud(file)).to(self.device)[None] for file in files]
        return [SHAPES[int(self.model(cloud).argmax())] for cloud in clouds]

    @torch.inference_mode()
    def attention(self, file: str | Path | bytes) -> dict[str, Any]:
        """The weights [H T T] of every layer."""
        with record(self.model, "*") as looks:
            self.recognise(file)
        return {name: weights[0].float().cpu().numpy() for name, weights in looks.items()}
