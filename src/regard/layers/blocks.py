"""The blocks every Transformer is made of: residual branches, feed-forward, encoder and decoder layers."""

from collections.abc import Callable
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.cache import LayerCache
from regard.attention.multihead import Memory, MultiHeadAttention

NormOrder = Literal["post", "pre"]
Activation = Literal["relu", "gelu", "swish"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
}


class Residual(nn.Module):
    """Add & norm: LayerNorm(x + Dropout(f(x))) as in the paper, or x + Dropout(f(LayerNorm(x))) (pre-norm)."""

    def __init__(self, width: int, dropout: float, order: NormOrder):
        super().__init__()
        self.norm, self.dropout, self.order = nn.LayerNorm(width), nn.Dropout(dropout), order

    def forward(
        self, x: Float[Tensor, "B T D"], branch: Callable[[Float[Tensor, "B T D"]], Float[Tensor, "B T D"]]
    ) -> Float[Tensor, "B T D"]:
        if self.order == "pre":
            return x + self.dropout(branch(self.norm(x)))
        return self.norm(x + self.dropout(branch(x)))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, each token on its own (Vaswani 2017, equation 2)."""

    def __init__(self, width: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.activation, self.dropout = ACTIVATIONS[activation], nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.down(self.dropout(self.activation(self.up(x))))


class EncoderLayer(nn.Module):
    """Tokens look at each other, then each is changed on its own."""

    def __init__(self, attention: MultiHeadAttention, feed_forward: FeedForward, dropout: float, order: NormOrder):
        super().__init__()
        width = attention.query.in_features
        self.attention, self.feed_forward = attention, feed_forward
        self.after_attention = Residual(width, dropout, order)
        self.after_feed_forward = Residual(width, dropout, order)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 1 T"] | None = None) -> Float[Tensor, "B T D"]:
        x = self.after_attention(x, lambda h: self.attention(h, mask=mask))
        return self.after_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Tokens look back at earlier ones, then at the source, then each is changed on its own."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float,
        order: NormOrder,
    ):
        super().__init__()
        width = attention.query.in_features
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.after_attention = Residual(width, dropout, order)
        self.after_cross = Residual(width, dropout, order)
        self.after_feed_forward = Residual(width, dropout, order)

    def forward(
        self, x: Float[Tensor, "R T D"], memory: Memory, cache: LayerCache | None = None
    ) -> Float[Tensor, "R T D"]:
        """In training R is the batch. When decoding, R = S·W hypotheses share the memory of S sentences."""
        x = self.after_attention(x, lambda h: self.attention(h, causal=True, cache=cache))
        # All hypotheses of a sentence query its one memory at once, so it is never copied for a beam.
        grid = x.view(memory.k.shape[0], -1, x.shape[-1])
        grid = self.after_cross(grid, lambda h: self.cross(h, memory))
        return self.after_feed_forward(grid, self.feed_forward).view_as(x)
