"""ViLBERT: a stream of words and a stream of regions of an image that attend to each other (Lu et al. 2019).

Words pass through the layers of a BERT; regions (a feature vector and location numbers) through layers of their own.
Between them are co-attentional layers, in which the queries of each stream meet the keys and values of the other.
VLN-BERT (Majumdar et al. 2020) is the same model with the steps of a path in place of regions and head = "score".
Presets: base (the paper's, after BERT-base; co-attention before layers 6-11 of words and 0-5 of regions) and smaller
ones: small, wide (mini with streams of 256), mini, tiny.
Deviations: the classifier of answers has no weight norm; the layers that read regions begin with weights of 1/√inputs
instead of 0.02, since five location numbers would otherwise hardly change the sum with hundreds of features, and
`initial_gain` lets all layers begin so: 0.02 suits the paper's widths, while a narrow stream that begins with it reads
hardly anything of the other.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.checkpoints import load_model
from regard.checkpoints.models import own_tensors
from regard.config import Config, Fraction, refuse_uneven
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError, UsageError
from regard.families.catalog import MODELS
from regard.families.language.bert import Bert, BertConfig, MaskedHead, initialise
from regard.layers.blocks import (
    ACTIVATIONS,
    Activation,
    CoAttentionLayer,
    CrossLayer,
    EncoderLayer,
    Factors,
    FeedForward,
)
from regard.layers.example import Example, all_real, blank_tokens
from regard.training.initial_model import build_model, check_vocabulary, copy_body, initial_folder
from regard.training.recipe.sections import ModelSection

Head = Literal["none", "pretraining", "score", "point", "answer"]
MATCHES = 0  # the output of the match head that means that the text belongs to the image

MINI: dict[str, Any] = {
    "width": 128, "heads": 4, "depth": 4, "ffn_width": 512, "max_length": 128,
    "region_features": 192, "region_width": 128, "region_heads": 4, "region_depth": 3, "region_ffn_width": 256,
    "link_width": 128, "link_heads": 4, "word_links": (1, 2, 3), "region_links": (0, 1, 2), "region_classes": 6,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 64, "heads": 4, "depth": 3, "ffn_width": 128, "max_length": 128,
        "region_features": 192, "region_width": 64, "region_heads": 4, "region_depth": 2, "region_ffn_width": 128,
        "link_width": 64, "link_heads": 4, "word_links": (1, 2), "region_links": (0, 1), "region_classes": 6,
    },
    "mini": MINI,
    "wide": {
        **MINI, "width": 256, "heads": 8, "ffn_width": 1024, "region_width": 256, "region_heads": 8,
        "region_ffn_width": 512, "link_width": 256, "link_heads": 8,
    },
    "small": {
        "width": 256, "heads": 8, "depth": 6, "ffn_width": 1024, "max_length": 128,
        "region_features": 768, "region_width": 256, "region_heads": 8, "region_depth": 3, "region_ffn_width": 512,
        "link_width": 256, "link_heads": 8, "word_links": (3, 4, 5), "region_links": (0, 1, 2), "region_classes": 6,
    },
    "base": {},
}  # fmt: skip


class VilbertConfig(Config):
    """Sizes and choices of a ViLBERT; the defaults are the paper's, without a head."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    width: PositiveInt = 768  # of the stream of words, as in a BERT
    heads: PositiveInt = 12
    depth: PositiveInt = 12
    ffn_width: PositiveInt = 3072
    max_length: PositiveInt = 512
    segments: NonNegativeInt = 2
    word_values: dict[str, Any] = Field(default_factory=dict)  # further values of the BERT that reads the words
    region_features: PositiveInt = 2048  # numbers that say what a region looks like
    region_places: PositiveInt = 5  # numbers that say where it is: x1, y1, x2, y2 and the share of the area
    region_width: PositiveInt = 1024
    region_heads: PositiveInt = 8
    region_depth: PositiveInt = 6
    region_ffn_width: PositiveInt = 1024
    link_width: PositiveInt = 1024  # of co-attention, and of the pooled streams
    link_heads: PositiveInt = 8
    word_links: tuple[NonNegativeInt, ...] = (6, 7, 8, 9, 10, 11)  # a co-attentional layer comes before each of these
    region_links: tuple[NonNegativeInt, ...] = (0, 1, 2, 3, 4, 5)  # and before the layer of regions at the same place
    initial_gain: PositiveFloat | None = None  # weights begin with gain / √inputs; None: with 0.02, as in the paper
    co_attention: bool = True  # False: the streams meet in the product of their pooled vectors alone
    activation: Activation = "gelu"
    norm_eps: PositiveFloat = 1e-12
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1
    head: Head = "none"
    head_dropout: Fraction = 0.1
    region_classes: PositiveInt = 1601
    region_targets: Literal["classes", "features"] = "classes"  # what is predicted of a masked region
    labels: PositiveInt = 2  # of the answers
    label_names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "VilbertConfig":
        refuse_uneven("region_width", self.region_width, "region_heads", self.region_heads)
        refuse_uneven("link_width", self.link_width, "link_heads", self.link_heads)
        if len(self.word_links) != len(self.region_links):
            raise ConfigError(
                f"word_links = {self.word_links}: as many layers of words as of regions are linked, "
                f"but region_links = {self.region_links}"
            )
        for key, links, depth in (
            ("word_links", self.word_links, self.depth), ("region_links", self.region_links, self.region_depth)
        ):  # fmt: skip
            if list(links) != sorted(set(links)) or any(link >= depth for link in links):
                raise ConfigError(f"{key} = {links}: expected rising numbers of layers below {depth}")
        if self.label_names and len(self.label_names) != self.labels:
            raise ConfigError(f"label_names: names {len(self.label_names)} labels, but labels = {self.labels}")
        self.word_config()
        return self

    def word_config(self) -> BertConfig:
        """The BERT that reads the words; it has no pooler and no head of its own."""
        shared = {key: getattr(self, key) for key in _SHARED}
        return BertConfig.parse({**self.word_values, **shared, "pooler": False, "head": "none"})

    def with_words(self, words: BertConfig) -> "VilbertConfig":
        """The same model with the stream of words of a given BERT."""
        further = {key: getattr(words, key) for key in BertConfig.model_fields if key not in _SHARED | _OF_HEADS}
        return self.replace(**{key: getattr(words, key) for key in _SHARED}, word_values=further)

    @property
    def longest(self) -> int:
        """The most tokens the model reads at once."""
        return self.word_config().longest


_OF_HEADS = {"pooler", "pooler_activation", "head", "head_dropout", "labels", "label_names", "label_kind"}
_SHARED = (BertConfig.model_fields.keys() & VilbertConfig.model_fields.keys()) - _OF_HEADS


class VilbertOutput(NamedTuple):
    """Every word and region in the context of both, and the outputs of the heads."""

    words: Float[Tensor, "B T D"]
    regions: Float[Tensor, "B R E"]
    fused: Float[Tensor, "B L"] | None  # the product of both pooled streams; None with head = "point"
    word_logits: Float[Tensor, "B T V"] | Factors | None = None
    region_logits: Float[Tensor, "B R C"] | None = None  # classes or features of masked regions
    match: Float[Tensor, "B 2"] | None = None
    logits: Float[Tensor, "B *rest"] | None = None  # [B] score, [B R] point, [B A] answer

    @property
    def score(self) -> Float[Tensor, "B"]:
        """How well text and image fit: the output of head = "score", or the log-odds of the match head."""
        if self.match is not None:
            return self.match[:, MATCHES] - self.match[:, 1 - MATCHES]
        if self.logits is None or self.logits.dim() != 1:
            raise ConfigError(
                "this model does not say how well a text fits; use one with head 'score' or 'pretraining'"
            )
        return self.logits


class MaskedHeads(nn.Module):
    """The heads of pre-training: masked words, masked regions, and whether text and image belong together."""

    def __init__(self, config: VilbertConfig, embedding: nn.Embedding):
        super().__init__()
        c = config
        self.words = MaskedHead(c.word_config(), embedding)
        self.dense, self.norm = nn.Linear(c.region_width, c.region_width), nn.LayerNorm(c.region_width, eps=c.norm_eps)
        self.activation = ACTIVATIONS[c.activation]
        outputs = c.region_classes if c.region_targets == "classes" else c.region_features
        self.regions = nn.Linear(c.region_width, outputs)
        self.match = nn.Linear(c.link_width, 2)

    def of_regions(self, regions: Float[Tensor, "B R E"]) -> Float[Tensor, "B R C"]:
        return self.regions(self.norm(self.activation(self.dense(regions))))


class Vilbert(nn.Module):
    """Two streams of layers, co-attentional layers between them, and a head."""

    def __init__(self, config: VilbertConfig):
        super().__init__()
        self.config = c = config
        self.feature, self.place = (nn.Linear(size, c.region_width) for size in (c.region_features, c.region_places))
        self.region_norm, self.dropout = nn.LayerNorm(c.region_width, eps=c.norm_eps), Dropout(c.dropout)
        self.regions = nn.ModuleList(self._region_layer() for _ in range(c.region_depth))
        self.links = nn.ModuleList(self._link() for _ in c.word_links if c.co_attention)
        widths = {"words": c.width, "regions": c.region_width}
        pooled = c.head != "point"
        self.pooler = nn.ModuleDict({name: nn.Linear(width, c.link_width) for name, width in widths.items() if pooled})
        self.head_dropout = Dropout(c.head_dropout)
        self.output = self._output()
        self.words = Bert(c.word_config())
        self.masked = MaskedHeads(c, self.words.embedding) if c.head == "pretraining" else None
        self.apply(initialise)
        for layer in self.modules():
            if layer in (self.feature, self.place):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            elif isinstance(layer, nn.Linear) and c.initial_gain is not None:
                nn.init.normal_(layer.weight, std=c.initial_gain * layer.in_features**-0.5)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        features: Float[Tensor, "B R F"],
        places: Float[Tensor, "B R P"],
        region_mask: Bool[Tensor, "B R"],
        segments: Int[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> VilbertOutput:
        """Read texts and regions, both padded on the right; region 0 stands for the whole image.

        With `factored`, the logits of masked words are returned unmultiplied.
        """
        words, regions = self.words.embed(tokens, segments), self.embed(features, places)
        visible, visible_regions = masks.padding(mask), masks.padding(region_mask)
        c, word, region = self.config, 0, 0
        # where both streams stop for each other, and their ends
        stops = [*zip(c.word_links, c.region_links, strict=True), (c.depth, c.region_depth)]
        for number, (word_end, region_end) in enumerate(stops):
            for layer in self.words.encoder[word:word_end]:
                words = layer(words, visible)
            for layer in self.regions[region:region_end]:
                regions = layer(regions, visible_regions)
            if number < len(self.links):
                words, regions = self.links[number](words, regions, visible, visible_regions)
            word, region = word_end, region_end
        return self._read(words, regions, region_mask, factored)

    def embed(self, features: Float[Tensor, "B R F"], places: Float[Tensor, "B R P"]) -> Float[Tensor, "B R E"]:
        """The input of the first layer of regions."""
        return self.dropout(self.region_norm(self.feature(features) + self.place(places)))

    def fuse(self, words: Float[Tensor, "B T D"], regions: Float[Tensor, "B R E"]) -> Float[Tensor, "B L"]:
        """The product of both streams' first places after one more layer each."""
        return self.pooler["words"](words[:, 0]).relu() * self.pooler["regions"](regions[:, 0]).relu()

    def _read(self, words: Tensor, regions: Tensor, region_mask: Tensor, factored: bool) -> VilbertOutput:
        """What the heads make of both streams."""
        fused = self.fuse(words, regions) if self.pooler else None
        if self.masked is not None:
            factors = Factors(self.masked.words(words), self.words.embedding.weight, self.masked.words.bias)
            logits = factors if factored else functional.linear(*factors)
            match = self.masked.match(self.head_dropout(fused))
            return VilbertOutput(words, regions, fused, logits, self.masked.of_regions(regions), match)
        if self.output is None:
            return VilbertOutput(words, regions, fused)
        answers = self.output(self.head_dropout(regions if fused is None else fused))
        if self.config.head != "answer":
            answers = answers[..., 0]
        if self.config.head == "point":
            answers = answers.masked_fill(~region_mask, torch.finfo(answers.dtype).min)
        return VilbertOutput(words, regions, fused, logits=answers)

    def _output(self) -> nn.Module | None:
        c = self.config
        match c.head:
            case "point":
                return nn.Linear(c.region_width, 1)
            case "score":
                return nn.Linear(c.link_width, 1)
            case "answer":
                return FeedForward(c.link_width, 2 * c.link_width, "relu", c.head_dropout, outputs=c.labels)
        return None

    def _region_layer(self) -> EncoderLayer:
        c = self.config
        attention = MultiHeadAttention(c.region_width, c.region_heads, dropout=c.attention_dropout)
        feed_forward = FeedForward(c.region_width, c.region_ffn_width, c.activation)
        return EncoderLayer(attention, feed_forward, c.dropout, "post", partial(nn.LayerNorm, eps=c.norm_eps))

    def _link(self) -> CoAttentionLayer:
        c = self.config

        def side(width: int, other: int, ffn_width: int) -> CrossLayer:
            cross = MultiHeadAttention(
                width, c.link_heads, kv_width=other, head_width=c.link_width // c.link_heads,
                dropout=c.attention_dropout,
            )  # fmt: skip
            feed_forward = FeedForward(width, ffn_width, c.activation)
            return CrossLayer(cross, feed_forward, c.dropout, partial(nn.LayerNorm, eps=c.norm_eps))

        words = side(c.width, c.region_width, c.ffn_width)
        return CoAttentionLayer(words, side(c.region_width, c.width, c.region_ffn_width))


def build_two_streams(section: ModelSection, words: str, tokenizer: TextTokenizer, **changes: Any) -> nn.Module:
    """A model of two streams as `build_model` makes it; `words` may name the folder of a BERT whose weights a new
    model's stream of words starts from."""
    if section.init or not words:
        return build_model(section, tokenizer, **changes)
    loaded = load_model(initial_folder(words))
    config = section.config(source_vocab=tokenizer.size, target_vocab=tokenizer.size, pad=tokenizer.pad)
    if not isinstance(loaded.config, BertConfig) or not isinstance(config, VilbertConfig):
        raise UsageError(
            f"words.init is {words!r}, a {loaded.name} model for the stream of words of a {section.name}; expected a "
            "BERT for a model of two streams"
        )
    model = MODELS[section.name].model(config.replace(**changes).with_words(loaded.config))
    assert isinstance(model, Vilbert)
    check_vocabulary(words, tokenizer, model.config)
    copy_body(own_tensors(loaded.model), own_tensors(model.words), words)
    return model


def read_text_and_regions(model: Any, rows: int, source: int, target: int, **options: Any) -> Any:
    """The pass of a model that reads texts of `source` tokens beside `target` regions or steps."""
    c = model.config
    features, places = (torch.zeros(rows, target, width) for width in (c.region_features, c.region_places))
    return model(
        blank_tokens(rows, source), all_real(rows, source), features, places, all_real(rows, target), **options
    )


EXAMPLE = Example(
    partial(read_text_and_regions, factored=True), reads="texts of {source} tokens with {target} regions each",
    scored=0.15,  # the share of the words that pre-training masks
)  # fmt: skip
