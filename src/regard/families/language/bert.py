"""BERT and its relatives: an encoder that reads a text in both directions at once (Devlin et al. 2019).

Presets: tiny to large (BERT; Turc et al. 2019 for the small ones), minilm (Wang 2020), roberta (Liu 2019), distilbert
(Sanh 2019), albert (Lan 2020), esm2 (Lin 2023, of proteins): options of one model. RoBERTa counts positions from the
padding token's id on and has no next-sentence task; DistilBERT has no segments; ALBERT factorises the embedding and
shares one layer's weights. ESM-2 has rotary positions, norms before the branches and one at the end, masked tokens
without a vector, and a layer that predicts contacts of residues from attention.
Deviations: the output matrix is always the embedding; classifiers always use the pooler, which holds the extra layers
of RoBERTa and DistilBERT; of RoBERTa's two dropouts around it, only the second is kept; ESM-2's embeddings, too, have
dropout.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.packing import packed, packing_for, unpacked
from regard.attention.positions import LearnedPositions, Rotary
from regard.config import Config, Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import ACTIVATIONS, Activation, EncoderLayer, Factors, FeedForward
from regard.layers.example import Example, all_real, blank_tokens

Head = Literal["none", "masked", "pretraining", "classify", "tags", "answer"]
LabelKind = Literal["one", "several", "value"]  # a text has one label, any number of labels, or a numeric value

MASKED = 0.15 * 0.8  # share of the tokens that were masked in the training of ESM-2

ESM2: dict[str, Any] = {
    "positions": "rotary", "order": "pre", "embedding_norm": False, "mask_token": 32, "token_dropout": True,
    "contacts": True, "segments": 0, "pad": 1, "max_length": 1026, "norm_eps": 1e-5, "dropout": 0.0,
    "attention_dropout": 0.0, "pooler": False,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 2, "depth": 2, "ffn_width": 512},
    "mini": {"width": 256, "heads": 4, "depth": 4, "ffn_width": 1024},
    "small": {"width": 512, "heads": 8, "depth": 4, "ffn_width": 2048},
    "base": {"width": 768, "heads": 12, "depth": 12, "ffn_width": 3072},
    "large": {"width": 1024, "heads": 16, "depth": 24, "ffn_width": 4096},
    "minilm": {"width": 384, "heads": 12, "depth": 6, "ffn_width": 1536},
    "roberta": {"segments": 1, "pad": 1, "positions_after_pad": True, "max_length": 514, "norm_eps": 1e-5},
    "distilbert": {"depth": 6, "segments": 0, "pooler_activation": "relu"},
    "albert": {"embedding_width": 128, "shared_layers": True, "activation": "gelu_new", "dropout": 0.0},
    "esm2-8m": {**ESM2, "width": 320, "heads": 20, "depth": 6, "ffn_width": 1280},
    "esm2-650m": {**ESM2, "width": 1280, "heads": 20, "depth": 33, "ffn_width": 5120},
}


class BertConfig(Config):
    """Sizes and choices of a BERT; the defaults are BERT-base without a head."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    width: PositiveInt = 768
    heads: PositiveInt = 12
    depth: PositiveInt = 12
    ffn_width: PositiveInt = 3072
    max_length: PositiveInt = 512  # rows of the position table; of rotary positions, what the model was trained on
    positions: Literal["learned", "rotary"] = "learned"
    positions_after_pad: bool = False  # positions count real tokens only, from pad + 1 on (RoBERTa)
    segments: NonNegativeInt = 2  # segment types; 0: none
    embedding_width: NonNegativeInt = 0  # width of embeddings that a matrix projects to `width` (ALBERT); 0: `width`
    shared_layers: bool = False  # all layers have the same weights (ALBERT)
    order: Literal["post", "pre"] = "post"  # where norms are; pre has one more after the last layer (ESM-2)
    embedding_norm: bool = True
    mask_token: NonNegativeInt | None = None  # its id, where `token_dropout` needs it
    token_dropout: bool = False  # masked tokens have no vector, and the others are scaled by their number (ESM-2)
    contacts: bool = False  # a layer that predicts contacts from all attention weights (ESM-2)
    pooler: bool = True
    pooler_activation: Literal["tanh", "relu"] = "tanh"
    activation: Activation = "gelu"
    norm_eps: PositiveFloat = 1e-12
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1
    head: Head = "none"
    head_dropout: Fraction = 0.1
    labels: PositiveInt = 2  # outputs of the heads that classify texts or tokens
    label_names: tuple[str, ...] = ()
    label_kind: LabelKind = "one"

    @model_validator(mode="after")
    def _check(self) -> "BertConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.head in ("classify", "pretraining") and not self.pooler:
            raise ConfigError(f"head = {self.head!r}: reads the pooled text; set pooler = true")
        if self.label_names and len(self.label_names) != self.labels:
            raise ConfigError(f"label_names: names {len(self.label_names)} labels, but labels = {self.labels}")
        if self.head in ("answer", "pretraining") and self.labels != 2:
            raise ConfigError(f"head = {self.head!r}: always has 2 outputs, but labels = {self.labels}")
        if self.token_dropout and self.mask_token is None:
            raise ConfigError("token_dropout = true: needs mask_token, the id of the token that stands for hidden ones")
        if self.longest < 1:
            raise ConfigError(f"max_length = {self.max_length}: leaves no position; the first is {self.first_position}")
        return self

    @property
    def first_position(self) -> int:
        return self.pad + 1 if self.positions_after_pad and self.positions == "learned" else 0

    @property
    def longest(self) -> int:
        """The most tokens the model reads at once."""
        return self.max_length - self.first_position


class BertOutput(NamedTuple):
    """The output of a pass: every token in its context, and the outputs of the pooler and the head."""

    hidden: Float[Tensor, "B T D"]
    pooled: Float[Tensor, "B D"] | None
    # [B T V] masked (or their factors), [B L] classify, [B T L] tags, [B T 2] answer
    logits: Float[Tensor, "B *rest"] | Factors | None
    next_sentence: Float[Tensor, "B 2"] | None


class MaskedHead(nn.Module):
    """Predicts masked tokens: a dense layer, whose output is multiplied by every token's embedding."""

    def __init__(self, config: BertConfig, embedding: nn.Embedding):
        super().__init__()
        self.dense = nn.Linear(config.width, embedding.embedding_dim)
        self.norm = nn.LayerNorm(embedding.embedding_dim, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, hidden: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest E"]:
        return self.norm(self.activation(self.dense(hidden)))


class Bert(nn.Module):
    """Embeddings, encoder layers in which every token attends to all others, and a head."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = c = config
        narrow = c.embedding_width or c.width
        self.embedding = nn.Embedding(c.vocab, narrow)
        self.positions = LearnedPositions(narrow, c.max_length) if c.positions == "learned" else None
        self.segments = nn.Embedding(c.segments, narrow) if c.segments else None
        self.embedding_norm = nn.LayerNorm(narrow, eps=c.norm_eps) if c.embedding_norm else nn.Identity()
        self.dropout, self.head_dropout = Dropout(c.dropout), Dropout(c.head_dropout)
        self.widen = nn.Linear(narrow, c.width) if c.embedding_width else nn.Identity()
        layers = [self._layer() for _ in range(c.depth)]
        self.encoder = nn.ModuleList(_sharing(layers) if c.shared_layers else layers)
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.order == "pre" else nn.Identity()
        self.contacts = nn.Linear(c.depth * c.heads, 1) if c.contacts else None
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        self.masked = MaskedHead(c, self.embedding) if c.head in ("masked", "pretraining") else None
        self.next_sentence = nn.Linear(c.width, 2) if c.head == "pretraining" else None
        outputs = {"classify": c.labels, "tags": c.labels, "answer": 2}.get(c.head)
        self.output = nn.Linear(c.width, outputs) if outputs else None
        self.apply(initialise)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> BertOutput:
        """Read token ids, padded on the right; without `segments` all tokens are of the first segment type.

        With `factored`, the logits of masked tokens are returned unmultiplied.
        """
        hidden = self.encode(tokens, mask, segments)
        pooled = self.pool(hidden)
        following = self.next_sentence(pooled) if self.next_sentence is not None else None
        answer = self.factors(hidden) if factored else self._answer(hidden, pooled)
        return BertOutput(hidden, pooled, answer, following)

    def encode(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], segments: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Every token in its context: the last layer's output."""
        x, visible = self.embed(tokens, segments, mask), masks.padding(mask)
        packing = packing_for(x, mask)
        x = packed(x, packing)
        for layer in self.encoder:
            x = layer(x, visible, packing=packing)
        return unpacked(self.norm(x), packing)

    def embed(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"] | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The input of the first layer: embeddings of tokens, positions and segments."""
        x = self.embedding(tokens)
        if self.config.token_dropout:
            x = _without_masked(x, tokens.eq(self.config.mask_token or 0), mask)
        if self.positions is not None:
            x = x + self._places(self.positions, tokens)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        return self.widen(self.dropout(self.embedding_norm(x)))

    def _places(self, positions: LearnedPositions, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "*B T D"]:
        """The position vectors; RoBERTa counts real tokens only, so padding may be on either side."""
        if self.config.positions_after_pad:
            return positions.counted(tokens != self.config.pad, self.config.pad)
        return positions(tokens.shape[1])

    def pool(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"] | None:
        """The first token's vector after one more layer, which represents the whole text."""
        if self.pooler is None:
            return None
        pooled = self.pooler(hidden[:, 0])
        return pooled.tanh() if self.config.pooler_activation == "tanh" else pooled.relu()

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The logits of hidden tokens that the stream after any layer would give."""
        return self.predict(stream)

    def predict(self, hidden: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest V"]:
        """Logits of masked tokens at any chosen positions."""
        return functional.linear(*self.factors(hidden))

    def factors(self, hidden: Float[Tensor, "*rest D"]) -> Factors:
        """The unmultiplied logits of `predict`; a loss multiplies them only at masked positions."""
        if self.masked is None:
            raise ConfigError(f"a model with the head {self.config.head!r} guesses no tokens; use head = 'masked'")
        return Factors(self.masked(hidden), self.embedding.weight, self.masked.bias)

    def _answer(self, hidden: Tensor, pooled: Tensor | None) -> Tensor | None:
        if self.masked is not None:
            return self.predict(hidden)
        if self.output is None:
            return None
        match self.config.head:
            case "classify":
                assert pooled is not None
                return self.output(self.head_dropout(pooled))
            case "tags":
                return self.output(self.head_dropout(hidden))
        return self.output(hidden)

    def _layer(self) -> EncoderLayer:
        c = self.config
        prepare = Rotary(c.width // c.heads) if c.positions == "rotary" else None
        attention = MultiHeadAttention(c.width, c.heads, dropout=c.attention_dropout, prepare=prepare)
        feed_forward = FeedForward(c.width, c.ffn_width, c.activation)
        return EncoderLayer(attention, feed_forward, c.dropout, c.order, partial(nn.LayerNorm, eps=c.norm_eps))


def _without_masked(
    x: Float[Tensor, "B T D"], masked: Bool[Tensor, "B T"], real: Bool[Tensor, "B T"] | None
) -> Float[Tensor, "B T D"]:
    """Vectors of tokens, of which masked ones are 0; the others are scaled as if dropout had taken the masked ones."""
    count = masked.shape[1] if real is None else real.sum(dim=1)
    share = masked.sum(dim=1) / count
    return x.masked_fill(masked[..., None], 0.0) * ((1 - MASKED) / (1 - share))[:, None, None].to(x.dtype)


def _sharing(layers: list[EncoderLayer]) -> list[EncoderLayer]:
    """Layers with the weights of the first; each keeps its own attention module, so that it can be recorded."""
    first = layers[0]
    for layer in layers[1:]:
        layer.feed_forward = first.feed_forward
        layer.after_attention, layer.after_feed_forward = first.after_attention, first.after_feed_forward
        for part in ("query", "key", "value", "output"):
            setattr(layer.attention, part, getattr(first.attention, part))
    return layers


def initialise(module: nn.Module) -> None:
    """The initial weights of linear layers and embeddings."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _read(model: Bert, rows: int, source: int, target: int) -> BertOutput:
    guesses = model.config.head in ("masked", "pretraining")
    return model(blank_tokens(rows, source), all_real(rows, source), factored=guesses)


# The share of the tokens that training masks is that of Devlin et al. 2019.
EXAMPLE = Example(_read, "source", "texts of {source} tokens", scored=0.15)
