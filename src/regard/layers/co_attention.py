"""Layers in which two sequences attend to each other (Lu et al. 2019)."""

from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.attention.places import Argument, Result
from regard.layers.blocks import FeedForward, Norm, Residual


class CrossLayer(nn.Module):
    """Attention to another sequence, then a feed-forward network; norms come after the sums."""

    PLACES: ClassVar = {"input": Argument(), "after_cross": Result("after_cross"), "residual": Result()}

    def __init__(self, cross: MultiHeadAttention, feed_forward: FeedForward, dropout: float, norm: Norm = nn.LayerNorm):
        super().__init__()
        width = cross.query.in_features
        self.cross, self.feed_forward = cross, feed_forward
        self.after_cross = Residual(width, dropout, "post", norm)
        self.after_feed_forward = Residual(width, dropout, "post", norm)

    def forward(
        self, x: Float[Tensor, "B T D"], memory: Float[Tensor, "B Tk M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """`mask` says which places of the memory are real."""
        x = self.after_cross(x, lambda h: self.cross(h, memory, mask=mask))
        return self.after_feed_forward(x, self.feed_forward)


class CoAttentionLayer(nn.Module):
    """Two sequences, each of which attends to the other as it was before the layer."""

    def __init__(self, words: CrossLayer, regions: CrossLayer):
        super().__init__()
        self.words, self.regions = words, regions

    def forward(
        self,
        words: Float[Tensor, "B T D"],
        regions: Float[Tensor, "B R E"],
        words_mask: Bool[Tensor, "B 1 1 T"],
        regions_mask: Bool[Tensor, "B 1 1 R"],
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B R E"]]:
        return self.words(words, regions, regions_mask), self.regions(regions, words, words_mask)
