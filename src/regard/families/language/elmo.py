"""Words in their context: ELMo (Peters et al. 2018), two LSTM language models that read a text from both of its ends.

A word's characters (UTF-8 bytes) pass convolutions, highways (Srivastava et al. 2015) and a projection. Forward LSTMs
and backward LSTMs read the resulting vectors; they predict the next and the previous word with one output matrix. An
embedding is a mix of all layers, γ Σ s_j h_j with s a softmax, whose weights a later task learns.

Presets: tiny (for two cores), small (for a GPU).
Deviations: LSTMs have no projection; the softmax is over the whole vocabulary; words come from a vocabulary, whose
spellings are saved with the model. With a byte-level BPE vocabulary the model can read any text.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.layers.blocks import Factors
from regard.layers.convolution import CharacterEncoder
from regard.layers.example import ENCODED
from regard.layers.recurrent import Recurrent, reverse

BEGIN, END, NOTHING = 256, 257, 258  # begin and end of a word and padding, after the 256 bytes
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "filters": ((1, 16), (2, 32), (3, 48)), "characters": 10, "highways": 1},
    "small": {"width": 512, "dropout": 0.3},
}


class ElmoConfig(Config):
    """Sizes and choices of an ELMo."""

    text_order: ClassVar = "both_ways"  # how training presents a text; see modelling.py

    vocab: PositiveInt
    width: PositiveInt = 512  # of each direction
    depth: PositiveInt = 2
    characters: int = Field(24, gt=2)  # of a word, begin and end included; longer words are cut
    character_width: PositiveInt = 16
    # (width, number) of the filters
    filters: tuple[tuple[PositiveInt, PositiveInt], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256))
    highways: NonNegativeInt = 2
    dropout: Fraction = 0.1
    head: Literal["language", "classify"] = "language"
    labels: PositiveInt = 2
    label_names: tuple[str, ...] = ()
    label_kind: Literal["one", "several", "value"] = "one"
    max_length: PositiveInt = 512  # the most tokens of a text that is embedded or classified

    @model_validator(mode="after")
    def _check_filters(self) -> "ElmoConfig":
        widest = max((width for width, _ in self.filters), default=0)
        if not 0 < widest <= self.characters:
            raise ConfigError(
                f"filters = {self.filters}: one at least is needed, and none wider than a word of {self.characters} "
                "characters"
            )
        return self

    @property
    def longest(self) -> int:
        return self.max_length

    @property
    def segments(self) -> int:
        """The number of segment types: none."""
        return 0


class ElmoOutput(NamedTuple):
    """The output of a pass: every token in its context, and the output of the head."""

    hidden: Float[Tensor, "B T D"]
    logits: Float[Tensor, "B *rest"] | Factors  # of every next token [B T V], or of a text's label [B L]
    previous: Float[Tensor, "B T V"] | Factors | None  # logits of every previous token, read from the end


class Elmo(nn.Module):
    """A forward and a backward LSTM language model over one text."""

    spelling: Int[Tensor, "V C"]

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.config = c = config
        self.register_buffer("spelling", torch.full((c.vocab, c.characters), NOTHING, dtype=torch.int16))
        self.words = CharacterEncoder(NOTHING + 1, c.character_width, c.filters, c.highways, c.width)
        self.forwards = nn.ModuleList(Recurrent("lstm", c.width, c.width) for _ in range(c.depth))
        self.backwards = nn.ModuleList(Recurrent("lstm", c.width, c.width) for _ in range(c.depth))
        self.dropout = Dropout(c.dropout)
        self.mix, self.scale = nn.Parameter(torch.zeros(c.depth + 1)), nn.Parameter(torch.ones(()))
        outputs = (c.width, c.vocab) if c.head == "language" else (2 * c.width, c.labels)
        self.output = nn.Linear(*outputs)

    def learn_spelling(self, words: Sequence[str]) -> None:
        """Store the spelling of every word of the vocabulary, in the order of ids."""
        for number, word in enumerate(words):
            spelled = [BEGIN, *word.encode()[: self.config.characters - 2], END]
            self.spelling[number, : len(spelled)] = torch.tensor(spelled, dtype=torch.int16)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> ElmoOutput:
        """Read texts that may be padded at the end; `segments` are ignored.

        With `factored`, the logits of words are returned unmultiplied.
        """
        layers = self.layers(tokens, mask)
        hidden = self.mixed(layers)
        if self.config.head == "language":
            ahead, back = self.dropout(layers[-1]).chunk(2, dim=-1)
            if factored:
                return ElmoOutput(hidden, *(Factors(x, self.output.weight, self.output.bias) for x in (ahead, back)))
            return ElmoOutput(hidden, self.output(ahead), self.output(back))
        real = torch.ones_like(tokens, dtype=hidden.dtype) if mask is None else mask.to(hidden.dtype)
        pooled = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return ElmoOutput(hidden, self.output(self.dropout(pooled)), None)

    def encode(
        self,
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Every token in its context."""
        return self.mixed(self.layers(tokens, mask))

    def layers(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None
    ) -> list[Float[Tensor, "B T D"]]:
        """The word vectors, repeated twice, then both directions of every layer, concatenated."""
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        words = self.words(self.spelling[tokens].long())
        ahead, back = words, reverse(words, mask)
        layers = [torch.cat([words, words], dim=-1)]  # upper layers add to what they read
        for number, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            # Padding comes last in both directions, so real tokens do not depend on it.
            read, read_back = forwards(self.dropout(ahead))[0], backwards(self.dropout(back))[0]
            ahead, back = (ahead + read, back + read_back) if number else (read, read_back)
            layers.append(torch.cat([ahead, reverse(back, mask)], dim=-1))
        return layers

    def mixed(self, layers: Sequence[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T D"]:
        """γ Σ s_j h_j, where s = softmax(w)."""
        shares = self.mix.softmax(0)
        return self.scale * torch.stack([share * layer for share, layer in zip(shares, layers, strict=True)]).sum(0)


EXAMPLE = ENCODED
