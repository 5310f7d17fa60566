"""Small translators of the made-up language: models of the catalog, and one of convolutions alone, trained alike."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import core as masks
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import LearnedPositions
from regard.claims.contest import Scores, fit
from regard.claims.language import PAD, SOURCE_VOCAB, TARGET_VOCAB, Sentences, batches, sentences
from regard.families.catalog import MODELS
from regard.families.translation.seq2seq import Seq2Seq
from regard.layers.convolution import ConvolutionEncoder, GatedConvolution
from regard.training.losses import guidance

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
    # The fused kernel's operations are not counted, those of attention written out are.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        _cross_entropy(model(batch.source, batch.source_mask, batch.inputs), batch).backward()
    model.zero_grad()
    return counter.get_total_flops()


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
