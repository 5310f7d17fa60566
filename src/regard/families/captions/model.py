"""Captions of images: a text is written while the model looks at the grid of an image (Xu et al. 2015, "Show, Attend
and Tell").

Any model of the catalog that yields feature maps is the body; the vectors of one of its maps are the annotation
vectors. The decoder is recurrent, with soft, hard or no attention, as in the paper, or a Transformer over the same
grid.
Presets: tiny (scenes of 32 pixels, on two cores), scenes (of 64 pixels, on a GPU), small (photographs of about 100
pixels), xu (the sizes of the paper's Flickr8k models, with a grid of 14 x 14 of a ResNet-50 in place of VGG); and
tiny-transformer, scenes-transformer and small-transformer.
Deviations: annotation vectors are projected to the width of the decoder, normalised, and get learned position vectors;
the deep output has a tanh, and its matrix is that of the word vectors.
"""

from typing import Any, Literal

from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.attention.scores import Attended, Estimator
from regard.config import Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.layers.encoder_decoder import EncoderDecoderState
from regard.layers.example import Example, all_real, blank_images, blank_tokens
from regard.layers.recurrent_decoder import (
    Looking,
    RecurrentDecoderState,
    RecurrentGridDecoder,
    Taught,
    TransformerGridDecoder,
)
from regard.layers.vision import BodyConfig, GridPositions

SCENES: dict[str, Any] = {
    "image_size": 32, "body": "resnet", "body_preset": "tiny", "embedding": 64, "width": 128, "heads": 4, "depth": 1,
    "ffn_width": 256, "dropout": 0.1, "body_values": {"stem_width": 8, "widths": [8, 32, 96]},
}  # fmt: skip
SHARP: dict[str, Any] = {
    **SCENES, "image_size": 64, "width": 256, "embedding": 128,
    "body_values": {"stem_width": 24, "widths": [24, 48, 96, 128], "depths": [1, 1, 1, 1]},
}  # fmt: skip
PHOTOGRAPHS: dict[str, Any] = {
    "image_size": 112, "body": "resnet", "width": 256, "embedding": 256, "heads": 4, "ffn_width": 512, "dropout": 0.4,
    "body_values": {
        "stem": "large", "stem_width": 48, "block": "basic", "widths": [48, 96, 192], "depths": [2, 2, 2],
    },
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": SCENES,
    "tiny-transformer": {**SCENES, "decoder": "transformer", "depth": 2},
    "scenes": SHARP,
    "scenes-transformer": {**SHARP, "decoder": "transformer", "depth": 2, "ffn_width": 512},
    "small": PHOTOGRAPHS,
    "small-transformer": {**PHOTOGRAPHS, "decoder": "transformer", "depth": 2},
    "xu": {
        "body": "resnet", "body_values": {"widths": [256, 512, 1024], "depths": [3, 4, 6]}, "embedding": 512,
        "width": 1000, "dropout": 0.5,
    },
}  # fmt: skip


class CaptionerConfig(BodyConfig):
    """The body and the sizes of the decoder."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    body: str = "resnet"
    level: NonNegativeInt = 0  # the map of the body whose vectors are looked at: 0 is the coarsest, 1 the one before
    decoder: Literal["lstm", "gru", "transformer"] = "lstm"
    attention: Looking = "soft"  # none: the mean of the grid
    estimator: Estimator = "reinforce"  # of the gradient of a hard reading's draws
    expected: Fraction = 0.5  # share of captions for which a hard reading reads the soft weights in training
    embedding: PositiveInt = 256  # width of the word vectors of a recurrent decoder
    width: PositiveInt = 512  # of the decoder and of the annotation vectors
    depth: PositiveInt = 1
    heads: PositiveInt = 8  # of a Transformer decoder
    ffn_width: PositiveInt = 1024  # of a Transformer decoder
    dropout: Fraction = 0.3

    @model_validator(mode="after")
    def _check_decoder(self) -> "CaptionerConfig":
        maps = len(self.body_config().map_widths())
        if self.level >= maps:
            raise ConfigError(f"level = {self.level}: the body has {maps} maps, of which the finest is {maps - 1}")
        if self.decoder == "transformer":
            refuse_uneven("width", self.width, "heads", self.heads)
            if self.width % 2:
                raise ConfigError(f"width = {self.width}: sinusoidal positions need an even width")
            if self.attention == "hard":
                raise ConfigError("attention = 'hard': a Transformer decoder looks softly; set decoder to 'lstm'")
        return self

    @property
    def grid_side(self) -> int:
        """The side of the grid of annotation vectors, for images of `image_size`."""
        return self.body_config().map_sides()[-1 - self.level]


class Captioner(nn.Module):
    """A body that yields a grid of vectors, and a decoder that says what they show."""

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = c = config
        self.body = c.build_body()
        self.annotate = nn.Linear(c.body_config().map_widths()[-1 - c.level], c.width)
        self.norm, self.dropout = nn.LayerNorm(c.width), Dropout(c.dropout)
        self.positions = GridPositions(c.width, c.grid_side)
        self.decoder: RecurrentGridDecoder | TransformerGridDecoder
        if c.decoder == "transformer":
            self.decoder = TransformerGridDecoder(
                c.vocab, width=c.width, heads=c.heads, depth=c.depth, ffn_width=c.ffn_width, attention=c.attention,
                dropout=c.dropout,
            )  # fmt: skip
        else:
            self.decoder = RecurrentGridDecoder(
                c.vocab, embedding=c.embedding, width=c.width, cell=c.decoder, depth=c.depth, attention=c.attention,
                estimator=c.estimator, expected=c.expected, dropout=c.dropout,
            )  # fmt: skip

    def forward(
        self,
        images: Float[Tensor, "B C H W"],
        inputs: Int[Tensor, "N T"],
        inputs_mask: Bool[Tensor, "N T"] | None = None,
        *,
        factored: bool = False,
    ) -> tuple[Taught, Attended | None]:
        """The logits of every next word of N captions, each given the true word before it, and what every step of a
        recurrent decoder looked at. Every image has N / B captions, one after another; its grid is computed once."""
        grid = self.grid(images)
        captions = len(inputs) // len(images)
        grid = grid if captions == 1 else grid.repeat_interleave(captions, dim=0)
        return self.decoder(grid, inputs, inputs_mask, factored=factored)

    def start(self, images: Float[Tensor, "S C H W"]) -> RecurrentDecoderState | EncoderDecoderState:
        """Look at S images, with one hypothesis each."""
        return self.decoder.first_state(self.grid(images))

    def step(self, tokens: Int[Tensor, "S W"], state: Any) -> Float[Tensor, "S W V"]:
        """Feed one word to W hypotheses of each of S images; returns the logits of the next."""
        return self.decoder.step(tokens, state)

    def grid(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L D"]:
        """The annotation vectors, row by row."""
        chosen: Tensor = self.body.features(images)[-1 - self.config.level]  # type: ignore[operator]
        rows, columns = chosen.shape[2:]
        vectors = self.norm(self.annotate(chosen.flatten(2).transpose(1, 2)))
        return self.dropout(vectors + self.positions((rows, columns)))


def _caption(model: Captioner, rows: int, source: int, target: int) -> Any:
    images, words = blank_images(model.config, rows), blank_tokens(rows, target)
    return model(images, words, all_real(rows, target), factored=True)[0]


def _start(model: Captioner, rows: int, source: int) -> Any:
    return model.start(blank_images(model.config, rows))


EXAMPLE = Example(_caption, "target", start=_start)
