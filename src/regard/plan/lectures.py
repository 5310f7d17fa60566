"""The worked examples of the lectures: attention over a grid of tokens, in every head of every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.plan.recorder import FLOAT


@dataclass(frozen=True)
class Figure:
    """Every token of a square grid attends to every other, or to those of its window."""

    what: str
    formula: str
    side: int  # of the grid, or of a window
    heads: int = 1
    layers: int = 1
    windows: int = 1

    @property
    def entries(self) -> int:
        """The entries of one head in one layer."""
        return self.windows * self.side**4

    @property
    def nbytes(self) -> int:
        """The bytes of one head in one layer, in float32."""
        return FLOAT * self.entries

    @property
    def total_bytes(self) -> int:
        return self.layers * self.heads * self.nbytes

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "formula": self.formula, "entries": self.entries, "bytes": self.nbytes,
            "layers": self.layers, "heads": self.heads, "total_bytes": self.total_bytes,
        }  # fmt: skip


LECTURES = (
    Figure("Transformer on pixels (iGPT): image of 128 x 128", "R = 128: R^4", 128, heads=16, layers=48),
    Figure("ViT: 224 x 224 image, 14 x 14 patches of 16 pixels", "R = 224/16: R^4", 14, heads=16, layers=48),
    Figure("ViT: 224 x 224 image, 16 x 16 patches of 14 pixels", "R = 224/14: R^4", 16, heads=16, layers=48),
    Figure("Swin's first stage, 56 x 56 tokens, if all looked at all", "H = W = 56: H^2 W^2", 56),
    Figure("Swin's first stage in windows of 7 x 7", "M = 7: M^2 H W", 7, windows=(56 // 7) ** 2),
)
