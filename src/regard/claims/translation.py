"""A made-up language, and small translators of it, trained alike: models of the catalog, and one of convolutions alone.

A sentence is a row of phrases. A phrase is up to two adjectives and a noun. Its translation has the noun first and its
adjectives after it, the last one first ("European Economic Area", "zone économique européenne"), and each adjective
agrees with the gender of its noun. So a translator needs the right word, its place, and another word at the same time.
Small networks learn the task in seconds, and the links between words are known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import LearnedPositions
from regard.claims.contest import Scores, fit
from regard.claims.measurements import operations
from regard.families.catalog import MODELS
from regard.families.translation.seq2seq import Seq2Seq
from regard.layers.convolution import ConvolutionEncoder, GatedConvolution
from regard.training.losses import guidance

PAD, BEGIN, END = 0, 1, 2
FIRST = 3  # the first word, after the special tokens
NOUNS, ADJECTIVES, LONGEST_PHRASE = 8, 8, 3
SOURCE_VOCAB = FIRST + NOUNS + ADJECTIVES
TARGET_VOCAB = FIRST + NOUNS + 2 * ADJECTIVES  # an adjective has a form for each gender
Links = tuple[int, ...]  # the source word of every target word


@dataclass(frozen=True)
class Sentences:
    """Sentences with their translations, padded; `links` has the source word of every target word, -1 for none."""

    source: Int[Tensor, "B S"]
    inputs: Int[Tensor, "B T"]  # begins with BEGIN
    targets: Int[Tensor, "B T"]  # ends with END
    links: Int[Tensor, "B T"]

    @property
    def source_mask(self) -> Bool[Tensor, "B S"]:
        return self.source != PAD

    @property
    def target_mask(self) -> Bool[Tensor, "B T"]:
        return self.targets != PAD

    @property
    def reversed(self) -> Sentences:
        """The same sentences from the second language to the first."""
        words = self.targets.masked_fill(self.targets == END, PAD)[:, :-1]
        back = torch.full_like(self.links, -1)
        rows, places = (self.links >= 0).nonzero(as_tuple=True)
        back[rows, self.links[rows, places]] = places
        inputs = torch.cat([torch.full_like(self.source[:, :1], BEGIN), self.source], dim=1)
        ends = torch.cat([self.source, torch.zeros_like(self.source[:, :1])], dim=1)
        ends[torch.arange(len(ends)), (self.source != PAD).sum(dim=1)] = END
        return Sentences(words, inputs, ends, back)


def draw_pair(random: Random, words: int) -> tuple[list[int], list[int], Links]:
    """A sentence of so many words, its translation, and the source word of every target word."""
    source, target, links = list[int](), list[int](), list[int]()
    while len(source) < words:
        size = min(random.randint(1, LONGEST_PHRASE), words - len(source))
        start, noun = len(source), random.randrange(NOUNS)
        adjectives = [random.randrange(ADJECTIVES) for _ in range(size - 1)]
        source += [FIRST + NOUNS + adjective for adjective in adjectives] + [FIRST + noun]
        target += [FIRST + noun] + [FIRST + NOUNS + 2 * each + noun % 2 for each in reversed(adjectives)]
        links += [start + size - 1, *range(start + size - 2, start - 1, -1)]
    return source, target, tuple(links)


def sentences(random: Random, count: int, words: tuple[int, int]) -> Sentences:
    """A batch of sentences, each of a number of words drawn from this range."""
    pairs = [draw_pair(random, random.randint(*words)) for _ in range(count)]
    longest = max(len(source) for source, _, _ in pairs)
    return Sentences(
        padded([source for source, _, _ in pairs], longest, PAD),
        padded([[BEGIN, *target] for _, target, _ in pairs], longest + 1, PAD),
        padded([[*target, END] for _, target, _ in pairs], longest + 1, PAD),
        padded([links for _, _, links in pairs], longest + 1, -1),
    )


def batches(seed: int, size: int, words: tuple[int, int]) -> Iterator[Sentences]:
    """Batches without end, all of them new."""
    random = Random(seed)
    while True:
        yield sentences(random, size, words)


def padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Int[Tensor, "B T"]:
    """Rows of one length."""
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


Values = tuple[tuple[str, object], ...]
Words = tuple[int, int]  # the fewest and the most words of a sentence
CONVOLUTION = "convolution"  # not in the catalog: it exists for one claim
RNN: Values = (("embedding", 32), ("width", 64), ("cell", "gru"), ("dropout", 0.0))
TRANSFORMER: Values = (
    ("width", 64), ("heads", 4), ("encoder_depth", 1), ("decoder_depth", 1), ("ffn_width", 128), ("dropout", 0.0),
)  # fmt: skip
BATCH, TESTED, TEST_SEED = 32, 300, 1_000_003
LEARNT: Words = (1, 8)
BY_LENGTH: tuple[Words, ...] = ((1, 4), (5, 8), (9, 12))  # the last is longer than anything learnt


@dataclass(frozen=True)
class Translation:
    """A model that learns to translate sentences of some lengths, and what is measured: exact translations by length.

    `guide` is the weight of a loss that tells attention where to look. With `backwards` it translates from the second
    language to the first. `flops` limits the operations of the training: fewer steps are made where one costs more.
    """

    model: str
    values: Values
    rate: float
    words: Words = LEARNT
    tested: tuple[Words, ...] = BY_LENGTH
    guide: float = 0.0
    scaled: bool = True
    backwards: bool = False
    flops: float | None = None

    def __call__(self, seed: int, steps: int) -> Scores:
        """Train with a seed for some steps, and measure."""
        torch.manual_seed(seed)
        model = build(self.model, dict(self.values), swapped=self.backwards)
        if not self.scaled:
            unscale(model)
        if self.flops is not None:
            steps = max(1, min(steps, int(self.flops / flops_of_step(model, self.words))))
        begin = time.process_time()
        examples = (self._turned(batch) for batch in batches(seed, BATCH, self.words))
        fit(model, examples, lambda batch: self._loss(model, batch), steps=steps, rate=self.rate)
        cost = {"steps": float(steps), "seconds": time.process_time() - begin}
        return {**cost, **self._measured(model)}

    def _turned(self, batch: Sentences) -> Sentences:
        return batch.reversed if self.backwards else batch

    def _loss(self, model: nn.Module, batch: Sentences) -> Tensor:
        if not self.guide:
            return _cross_entropy(model(batch.source, batch.source_mask, batch.inputs), batch)
        logits, seen = model(batch.source, batch.source_mask, batch.inputs, attended=True)
        links = functional.one_hot(batch.links.clamp(min=0), batch.source.shape[1]) * (batch.links >= 0)[..., None]
        told = guidance(seen.probabilities.clamp(min=1e-9).log(), links.bool(), batch.source_mask)
        return _cross_entropy(logits, batch) + self.guide * told / batch.target_mask.sum()

    @torch.no_grad()
    def _measured(self, model: nn.Module) -> Scores:
        found: Scores = {}
        for words in self.tested:
            batch = self._turned(sentences(Random(TEST_SEED), TESTED, words))
            found[of_length("exact", words)] = exact(model, batch)
            if isinstance(model, Seq2Seq) and model.cross is not None:
                found[of_length("aligned", words)] = aligned(model, batch)
        return found


def of_length(what: str, words: Words) -> str:
    """The name of what is measured on sentences of these lengths."""
    return f"{what}, {words[0]}-{words[1]} words"


def exact(model: nn.Module, batch: Sentences) -> float:
    """The share of sentences that greedy search translates without a mistake.

    It finds the true translation if and only if, after every true prefix, the most probable token is the true one: one
    pass with the true translation decides.
    """
    best = model(batch.source, batch.source_mask, batch.inputs).argmax(dim=-1)
    return float(((best == batch.targets) | ~batch.target_mask).all(dim=1).float().mean())


def aligned(model: Seq2Seq, batch: Sentences) -> float:
    """The share of target words whose heaviest source word is the one that they translate."""
    _, seen = model(batch.source, batch.source_mask, batch.inputs, attended=True)
    linked = batch.links >= 0
    return float((seen.probabilities.argmax(dim=-1) == batch.links)[linked].float().mean())


def build(name: str, values: dict[str, object], *, swapped: bool = False) -> nn.Module:
    """A model of the two vocabularies."""
    vocabularies = (TARGET_VOCAB, SOURCE_VOCAB) if swapped else (SOURCE_VOCAB, TARGET_VOCAB)
    if name == CONVOLUTION:
        return ConvolutionTranslator(*vocabularies, **values)  # type: ignore[arg-type]
    entry = MODELS[name]
    sizes = dict(zip(("source_vocab", "target_vocab"), vocabularies, strict=True))
    return entry.model(entry.config.parse({**values, **sizes}))


def unscale(model: nn.Module) -> None:
    """Leave out the division of scores by √width, in every attention layer."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.scale = 1.0


def flops_of_step(model: nn.Module, words: Words) -> int:
    """Operations of a training step on a batch of usual lengths."""
    batch = sentences(Random(0), BATCH, words)
    found = operations(lambda: _cross_entropy(model(batch.source, batch.source_mask, batch.inputs), batch).backward())
    model.zero_grad()
    return found


class ConvolutionTranslator(nn.Module):
    """Gated convolutions as encoder, and causal ones as decoder, each followed by a look at the source (Gehring 2017).

    It only computes what a claim needs, the logits of all places at once; it has no state for decoding token by token.
    """

    def __init__(self, source_vocab: int, target_vocab: int, *, width: int, depth: int, kernel: int, longest: int):
        super().__init__()
        self.source_embedding, self.target_embedding = (
            nn.Embedding(vocabulary, width) for vocabulary in (source_vocab, target_vocab)
        )
        self.source_positions, self.target_positions = (LearnedPositions(width, longest) for _ in range(2))
        self.encoder = ConvolutionEncoder(width, depth, kernel)
        self.decoder = nn.ModuleList(GatedConvolution(width, kernel, 0.0, causal=True) for _ in range(depth))
        self.cross = nn.ModuleList(MultiHeadAttention(width, 1) for _ in range(depth))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, target_vocab)

    def forward(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"], inputs: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits of every next target token."""
        x = self.source_embedding(source) + self.source_positions(source.shape[1])
        memory, visible = self.encoder(x, source_mask), masks.padding(source_mask)
        y = self.target_embedding(inputs) + self.target_positions(inputs.shape[1])
        for convolution, cross in zip(self.decoder, self.cross, strict=True):
            y = convolution(y.transpose(1, 2), None).transpose(1, 2)
            y = y + cross(y, memory, mask=visible)
        logits: Tensor = self.output(self.norm(y))
        return logits


def _cross_entropy(logits: Float[Tensor, "B T V"], batch: Sentences) -> Float[Tensor, ""]:
    return functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=PAD)
