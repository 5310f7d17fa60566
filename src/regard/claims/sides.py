"""Sides of contests beside translators: networks that recall a symbol, that see pictures, and that judge sentences.

Sentences are judged after pre-training on text without labels, then on a few labelled ones: is this sentence right?
(GLUE's CoLA is such.) The text is the second language of `translation.py`, in which adjectives agree with their noun.
In a wrong sentence one adjective has the other gender.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.claims.contest import Scores, fit
from regard.claims.translation import BEGIN, END, FIRST, NOUNS, PAD, TARGET_VOCAB, draw_pair, padded
from regard.data.synthetic.shapes import SHAPE_NAMES, Part, scenes
from regard.families.catalog import MODELS
from regard.families.language.bert import Bert
from regard.families.language.gpt import Gpt
from regard.layers.recurrent import Kind, Recurrent

BATCH = 32
Labelled = tuple[Tensor, Int[Tensor, "B"]]  # what is read, and what it is


def _learn(model: nn.Module, batches: Iterator[Labelled], steps: int, rate: float) -> None:
    fit(model, batches, lambda batch: functional.cross_entropy(model(batch[0]), batch[1]), steps=steps, rate=rate)


def _drawn_again(inputs: Tensor, labels: Int[Tensor, N], seed: int) -> Iterator[Labelled]:
    """Batches without end of the same examples."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(0, len(inputs), (BATCH,), generator=generator)
        yield inputs[chosen], labels[chosen]


@torch.no_grad()
def _share_right(model: nn.Module, inputs: Tensor, labels: Int[Tensor, B]) -> float:
    return float((model(inputs).argmax(dim=1) == labels).float().mean())


# Recall the first symbol of a sequence

SYMBOLS, SEQUENCES = 8, 256


@dataclass(frozen=True)
class Recall:
    """A recurrent network that learns, for each distance anew, to say which symbol came so many steps before."""

    kind: Kind
    distances: tuple[int, ...]
    width: int = 32
    rate: float = 1e-2

    def __call__(self, seed: int, steps: int) -> Scores:
        """Train with a seed for some steps, and measure recall, and how much of the gradient arrives at the symbol."""
        found: Scores = {}
        for distance in self.distances:
            torch.manual_seed(seed)
            model = _Network(self.kind, self.width)
            _learn(model, _sequences(seed, BATCH, distance), steps, self.rate)
            x, first = next(_sequences(0, SEQUENCES, distance))
            found[f"recalled, {distance} steps"] = _share_right(model, x, first)
            found[f"gradient, {distance} steps"] = _arriving(model, x)
        return found


class _Network(nn.Module):
    def __init__(self, kind: Kind, width: int):
        super().__init__()
        self.embedding = nn.Embedding(2 * SYMBOLS, width)  # what is to be recalled, and what comes between
        self.recurrent = Recurrent(kind, width, width)
        self.output = nn.Linear(width, SYMBOLS)

    def forward(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B symbols"]:
        return self.read(self.embedding(x))

    def read(self, vectors: Float[Tensor, "B T D"]) -> Float[Tensor, "B symbols"]:
        outputs, _ = self.recurrent(vectors)
        answer: Tensor = self.output(outputs[:, -1])
        return answer


def _sequences(seed: int, size: int, distance: int) -> Iterator[Labelled]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(0, SYMBOLS, (size, 1), generator=generator)
        others = torch.randint(SYMBOLS, 2 * SYMBOLS, (size, distance), generator=generator)
        yield torch.cat([first, others], dim=1), first[:, 0]


def _arriving(model: _Network, x: Int[Tensor, "B T"]) -> float:
    """The gradient of the answers with respect to the first vector, relative to that of the last."""
    vectors = model.embedding(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.read(vectors).square().sum(), vectors)
    norms = gradient.norm(dim=(0, 2))
    return float(norms[0] / norms[-1])


# Built-in scenes of one object each: which of six shapes is it?

SIDE, PICTURES = 16, 500
VIT = (("patch", 4), ("width", 48), ("heads", 4), ("depth", 3), ("ffn_width", 96))
RESNET = (("stem", "small"), ("block", "basic"), ("stem_width", 12), ("widths", (12, 24, 48)), ("depths", (1, 1, 1)))
SWIN = (("patch", 2), ("width", 24), ("depths", (2, 2)), ("heads", (2, 4)), ("window", 4), ("drop_path", 0.0))


@dataclass(frozen=True)
class Pictures:
    """A model that learns from so many images, each seen again and again in another order."""

    model: str
    values: tuple[tuple[str, object], ...]
    counts: tuple[int, ...]
    rate: float = 3e-3

    def __call__(self, seed: int, steps: int) -> Scores:
        """Train with a seed for some steps, once for each number of images, and measure the accuracy on others."""
        found: Scores = {}
        for count in self.counts:
            torch.manual_seed(seed)
            model, begin = self.build(), time.process_time()
            _learn(model, _drawn_again(*_scenes("train", count, seed), seed), steps, self.rate)
            found[f"seconds, {count} images"] = time.process_time() - begin
            found[f"accuracy, {count} images"] = _share_right(model, *_scenes("test", PICTURES, 0))
        return found

    def build(self) -> nn.Module:
        """The model, untrained."""
        entry = MODELS[self.model]
        values = {**dict(self.values), "image_size": SIDE, "classes": len(SHAPE_NAMES)}
        return entry.model(entry.config.parse(values))


@cache
def _scenes(part: Part, count: int, seed: int) -> Labelled:
    drawn = list(scenes(part=part, count=count, seed=seed, size=SIDE, most=1))
    pixels = torch.from_numpy(np.stack([scene.pixels for scene in drawn])).float() / 127.5 - 1
    return pixels, torch.tensor([scene.label for scene in drawn])


# Judge sentences after pre-training, or without it

WORDS, LABELLED, SENTENCES = (3, 8), 128, 400
TEST_SEED = 1_000_003  # of no training; Random takes the absolute value of a negative one
MASK, MASKED = TARGET_VOCAB, 0.3  # a token of its own, and the share of words that are hidden
SIZES = {"width": 64, "heads": 4, "depth": 2, "ffn_width": 128, "vocab": TARGET_VOCAB + 1, "dropout": 0.0}
Model = Bert | Gpt
Texts = Int[Tensor, "B T"]


@dataclass(frozen=True)
class Acceptability:
    """A model that is pre-trained for some steps, or not at all, and then learns from labelled sentences."""

    model: str  # "bert" fills masked words, "gpt" predicts the next one
    pretrained: bool
    rate: float = 3e-3
    tuned_steps: int = 150
    tuned_rate: float = 1e-3
    test_seed: int = TEST_SEED  # a setting, so that runs that were kept with another one are made again

    def __call__(self, seed: int, steps: int) -> Scores:
        """Pre-train with a seed, fine-tune, and measure the share of sentences that are judged rightly."""
        torch.manual_seed(seed)
        model = _build(self.model)
        if self.pretrained:
            fit(model, _texts(seed), lambda texts: _unlabelled(model, texts), steps=steps, rate=self.rate)
        judge = _Judge(model)
        examples = _drawn_again(*_sentences(Random(seed), LABELLED), seed)
        _learn(judge, examples, min(steps, self.tuned_steps), self.tuned_rate)
        return {"judged rightly": _share_right(judge, *_sentences(Random(self.test_seed), SENTENCES))}


class _Judge(nn.Module):
    """A linear layer on what the model makes of the text: the mean of its tokens (BERT), or the last one (GPT)."""

    def __init__(self, model: Model):
        super().__init__()
        self.model, self.output = model, nn.Linear(model.config.width, 2)

    def forward(self, texts: Texts) -> Float[Tensor, "B 2"]:
        real = texts != PAD
        if isinstance(self.model, Bert):
            hidden = self.model.encode(texts, real)
            text = (hidden * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)
        else:
            text = self.model(texts, real, factored=True).hidden[torch.arange(len(texts)), real.sum(dim=1) - 1]
        answer: Tensor = self.output(text)
        return answer


def _build(name: str) -> Model:
    values: dict[str, object] = {**SIZES, "attention_dropout": 0.0, "max_length": 2 + WORDS[1]}
    values |= {"head": "masked", "segments": 0} if name == "bert" else {"embedding_dropout": 0.0}
    model = MODELS[name].model(MODELS[name].config.parse(values))
    assert isinstance(model, Bert | Gpt)
    return model


def _unlabelled(model: Model, texts: Texts) -> Tensor:
    """The loss of filling what is masked (BERT), or of predicting every next word (GPT)."""
    real = texts != PAD
    if isinstance(model, Gpt):
        logits, words, counted = model(texts[:, :-1], real[:, :-1]), texts[:, 1:], real[:, 1:]
    else:
        words, counted = texts, (torch.rand(texts.shape) < MASKED) & (texts >= FIRST)
        logits = model(texts.masked_fill(counted, MASK), real).logits
    assert isinstance(logits, Tensor)
    return functional.cross_entropy(logits[counted], words[counted])


def _sentence(random: Random) -> list[int]:
    return draw_pair(random, random.randint(*WORDS))[1]


def _enclosed(rows: list[list[int]]) -> Texts:
    return padded([[BEGIN, *row, END] for row in rows], WORDS[1] + 2, PAD)


def _texts(seed: int) -> Iterator[Texts]:
    random = Random(seed)
    while True:
        yield _enclosed([_sentence(random) for _ in range(BATCH)])


def _sentences(random: Random, count: int) -> Labelled:
    """Sentences with adjectives; in every second one an adjective has the other gender."""
    rows: list[list[int]] = []
    while len(rows) < count:
        row = _sentence(random)
        adjectives = [at for at, word in enumerate(row) if word >= FIRST + NOUNS]
        if not adjectives:
            continue
        if len(rows) % 2:
            at = random.choice(adjectives)
            row[at] = FIRST + NOUNS + ((row[at] - FIRST - NOUNS) ^ 1)
        rows.append(row)
    return _enclosed(rows), torch.arange(count) % 2
