"""Speech recognition by attention and convolution (Gulati et al. 2020, "Conformer").

The encoder reads a log-mel spectrogram, four frames as one. Its frames are labelled by CTC (Graves 2006), read by a
Transformer decoder (`decoder_depth` above 0), or both (joint CTC and attention; Kim et al. 2017).
Presets: small, medium and large are the paper's S, M and L; tiny is for two cores, digits for short recordings of few
words on a GPU; tiny-attention and digits-attention have a decoder.
Deviations: kernels are odd (31 for the paper's 32), and a decoder is a Transformer where the paper has one LSTM of a
transducer. Without it the encoders have 8.7, 27.3 and 115.1 million parameters of the paper's 10.3, 30.7 and 118.8.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.places import Argument, Computed, Result
from regard.attention.positions import DistanceTable, RelativePositions
from regard.config import Config, Fraction, refuse_even, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import Factors, FeedForward, Residual
from regard.layers.encoder_decoder import EncoderDecoderState
from regard.layers.example import Example, all_real, blank_tokens
from regard.layers.recurrent_decoder import Taught, TransformerGridDecoder

SUBSAMPLED = 4  # frames of the input for one of the encoder


def subsampled(frames: int) -> int:
    """The number of frames after subsampling."""
    return -(-frames // SUBSAMPLED)


def without_padding(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
    """Zeros in place of padding."""
    return x if mask is None else torch.where(mask[..., None], x, 0.0)


class Subsampling(nn.Module):
    """Two convolutions of stride 2 over time and frequency, then a linear layer: a frame of four."""

    def __init__(self, bands: int, width: int, dropout: float):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.second = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.project, self.dropout = nn.Linear(width * subsampled(bands), width), Dropout(dropout)

    def forward(
        self, features: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"] | None]:
        """The frames, and which of them are real."""
        x = without_padding(features, mask)[:, None]
        x = functional.relu(self.first(x))
        if mask is not None:
            mask = mask[:, ::2]
            x = torch.where(mask[:, None, :, None], x, 0.0)
            mask = mask[:, ::2].contiguous()
        x = functional.relu(self.second(x))
        return self.dropout(self.project(x.transpose(1, 2).flatten(2))), mask


class FrameBatchNorm(nn.BatchNorm1d):
    """Batch norm of frames: its statistics are those of real frames alone."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T D"]:
        wide = x.float()
        if self.training:
            mean, variance = self._measure(wide, mask)
        else:
            assert self.running_mean is not None and self.running_var is not None
            mean, variance = self.running_mean, self.running_var
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale + (self.bias - mean * scale)).to(x.dtype)

    def _measure(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Mean and variance of this batch, which also move the running ones."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        frames = x.shape[0] * x.shape[1]
        count = frames if mask is None else mask.sum()
        mean = without_padding(x, mask).sum(dim=(0, 1)) / count
        variance = without_padding((x - mean).square(), mask).sum(dim=(0, 1)) / count
        with torch.no_grad():
            unbiased = variance * count / (max(frames - 1, 1) if mask is None else (mask.sum() - 1).clamp(min=1))
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
        return mean, variance


class ConvolutionModule(nn.Module):
    """A gated pointwise layer, a depthwise convolution over time, batch norm, swish, and a pointwise layer."""

    PLACES: ClassVar = {
        "gate": Computed("expand", read=lambda module, args, options, output: output.chunk(2, dim=-1)[1].sigmoid()),
        "hidden": Argument("project"),
    }

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.expand, self.project = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = FrameBatchNorm(width)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        x = without_padding(functional.glu(self.expand(x), dim=-1), mask)
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.project(functional.silu(self.norm(x, mask)))


class ConformerBlock(nn.Module):
    """Half a feed-forward network, self-attention, convolution, half a feed-forward network, and a norm."""

    PLACES: ClassVar = {
        "input": Argument(),
        "after_first": Result("after_first"),
        "after_attention": Result("after_attention"),
        "after_convolution": Result("after_convolution"),
        "residual": Result(),
    }

    def __init__(self, width: int, heads: int, ffn_width: int, kernel: int, dropout: float, table: DistanceTable):
        super().__init__()
        self.first, self.last = (FeedForward(width, ffn_width, "swish", dropout) for _ in range(2))
        self.attention = MultiHeadAttention(width, heads, position=RelativePositions(width, heads, table))
        self.convolution = ConvolutionModule(width, kernel)
        after = partial(Residual, width, dropout, "pre")
        self.after_first, self.after_attention, self.after_convolution, self.after_last = (after() for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        seen = None if mask is None else masks.padding(mask)
        x = self.after_first(x, lambda h: 0.5 * self.first(h))
        x = self.after_attention(x, lambda h: self.attention(h, mask=seen))
        x = self.after_convolution(x, lambda h: self.convolution(h, mask))
        x = self.after_last(x, lambda h: 0.5 * self.last(h))
        return self.norm(x)


TINY: dict[str, Any] = {"bands": 40, "width": 64, "heads": 4, "depth": 2, "ffn_width": 128, "kernel": 7}
DIGITS: dict[str, Any] = {"bands": 40, "width": 144, "heads": 4, "depth": 4, "ffn_width": 576, "kernel": 15}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "tiny-attention": {**TINY, "decoder_depth": 1},
    "digits": DIGITS,
    "digits-attention": {**DIGITS, "decoder_depth": 2},
    "small": {"width": 144, "heads": 4, "depth": 16, "ffn_width": 576},
    "medium": {"width": 256, "heads": 4, "depth": 16, "ffn_width": 1024},
    "large": {"width": 512, "heads": 8, "depth": 17, "ffn_width": 2048},
}


class ConformerConfig(Config):
    """Sizes of the encoder and of the decoder, if there is one; the padding token is CTC's blank."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    bands: PositiveInt = 80  # of the spectrogram
    width: PositiveInt = 256
    heads: PositiveInt = 4
    depth: PositiveInt = 16
    ffn_width: PositiveInt = 1024
    kernel: PositiveInt = 31  # frames that the convolution of a block reads
    dropout: Fraction = 0.1
    ctc: bool = True  # whether frames are labelled
    decoder_depth: NonNegativeInt = 0

    @property
    def usual_source(self) -> int:
        """The frames of ten seconds, for which costs are planned unless another length is given."""
        return 1000

    @model_validator(mode="after")
    def _check(self) -> "ConformerConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        refuse_even("kernel", self.kernel)
        if not self.ctc and not self.decoder_depth:
            raise ConfigError("ctc = false: leaves a model without a decoder nothing to say; set decoder_depth above 0")
        return self


class Heard(NamedTuple):
    """The logits of every frame, the frames that are real, and the logits of every next token, as far as there are."""

    frames: Float[Tensor, "B T V"] | None
    mask: Bool[Tensor, "B T"] | None  # None: all frames are real
    taught: Taught | None


class Conformer(nn.Module):
    """Spectrograms in; labels of frames, or tokens one by one, out."""

    def __init__(self, config: ConformerConfig):
        super().__init__()
        self.config = c = config
        self.subsampling = Subsampling(c.bands, c.width, c.dropout)
        table = DistanceTable(c.width)
        self.encoder = nn.ModuleList(
            ConformerBlock(c.width, c.heads, c.ffn_width, c.kernel, c.dropout, table) for _ in range(c.depth)
        )
        self.label = nn.Linear(c.width, c.vocab) if c.ctc else None
        self.decoder: TransformerGridDecoder | None = None
        if c.decoder_depth:
            self.decoder = TransformerGridDecoder(
                c.vocab, width=c.width, heads=c.heads, depth=c.decoder_depth, ffn_width=c.ffn_width, attention="soft",
                dropout=c.dropout,
            )  # fmt: skip

    def forward(
        self,
        features: Float[Tensor, "B T F"],
        mask: Bool[Tensor, "B T"] | None = None,
        inputs: Int[Tensor, "B L"] | None = None,
        inputs_mask: Bool[Tensor, "B L"] | None = None,
        *,
        factored: bool = False,
    ) -> Heard:
        """The labels of all frames and, with `inputs`, the logits of every next token given the true one before it."""
        x, real = self.encode(features, mask)
        taught: Float[Tensor, "B L V"] | Factors | None = None
        if self.decoder is not None and inputs is not None:
            seen = None if real is None else masks.padding(real)
            taught, _ = self.decoder(x, inputs, inputs_mask, grid_mask=seen, factored=factored)
        return Heard(None if self.label is None else self.label(x), real, taught)

    def encode(
        self, features: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"] | None]:
        """The frames of the encoder, and which of them are real; the mask is None where all are."""
        x, mask = self.subsampling(features, mask)
        for block in self.encoder:
            x = block(x, mask)
        return x, mask

    def start(self, features: Float[Tensor, "S T F"], mask: Bool[Tensor, "S T"] | None = None) -> EncoderDecoderState:
        """Listen to S recordings, with one hypothesis each."""
        assert self.decoder is not None
        x, real = self.encode(features, mask)
        return self.decoder.first_state(x, None if real is None else masks.padding(real))

    def step(self, tokens: Int[Tensor, "S W"], state: EncoderDecoderState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S recordings; returns the logits of the next."""
        assert self.decoder is not None
        return self.decoder.step(tokens, state)


def _transcribe(model: Conformer, rows: int, source: int, target: int) -> Heard:
    features, words = torch.zeros(rows, source, model.config.bands), blank_tokens(rows, target)
    return model(features, all_real(rows, source), words, all_real(rows, target), factored=True)


def _start(model: Conformer, rows: int, source: int) -> Any:
    return model.start(torch.zeros(rows, source, model.config.bands)) if model.decoder is not None else None


EXAMPLE = Example(_transcribe, "target", "recordings of {source} frames with {target} tokens", start=_start)
