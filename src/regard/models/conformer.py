"""Speech recognition by attention and convolution (Gulati et al. 2020, "Conformer").

The encoder reads a log-mel spectrogram, four frames as one. Its frames are labelled by CTC (Graves 2006), read by a
Transformer decoder (`decoder_depth` above 0), or both (joint CTC and attention; Kim et al. 2017).
Presets: small, medium and large are the paper's S, M and L; tiny is for two cores, digits for short recordings of few
words on a GPU; tiny-attention and digits-attention have a decoder.
Deviations: kernels are odd (31 for the paper's 32), and a decoder is a Transformer where the paper has one LSTM of a
transducer. Without it the encoders have 8.7, 27.3 and 115.1 million parameters of the paper's 10.3, 30.7 and 118.8.
"""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.relative import DistanceTable
from regard.config import Config, Fraction, refuse_even, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import Factors
from regard.layers.conformer import ConformerBlock, Subsampling
from regard.layers.encoder_decoder import EncoderDecoderState
from regard.layers.grid_decoders import Taught, TransformerGridDecoder

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
