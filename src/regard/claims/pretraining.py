"""Pre-training on text without labels, then a few labelled sentences: is this sentence right? (GLUE's CoLA is such.)

The text is the second language of `language.py`, in which adjectives agree with their noun. In a wrong sentence one
adjective has the other gender.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.claims.contest import Scores, fit
from regard.claims.language import BEGIN, END, FIRST, NOUNS, PAD, TARGET_VOCAB, draw_pair
from regard.families.catalog import MODELS
from regard.families.language.bert import Bert
from regard.families.language.gpt import Gpt

WORDS, LABELLED, TESTED, BATCH = (3, 8), 128, 400, 32
TEST_SEED = 1_000_003  # of no training; Random takes the absolute value of a negative one
MASK, MASKED = TARGET_VOCAB, 0.3  # a token of its own, and the share of words that are hidden
SIZES = {"width": 64, "heads": 4, "depth": 2, "ffn_width": 128, "vocab": TARGET_VOCAB + 1, "dropout": 0.0}
Model = Bert | Gpt
Texts = Int[Tensor, "B T"]
Labelled = tuple[Texts, Int[Tensor, "B"]]


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
        fit(judge, _labelled_batches(seed), lambda batch: functional.cross_entropy(judge(batch[0]), batch[1]),
            steps=min(steps, self.tuned_steps), rate=self.tuned_rate)  # fmt: skip
        texts, labels = _labelled(Random(self.test_seed), TESTED)
        with torch.no_grad():
            return {"judged rightly": float((judge(texts).argmax(dim=1) == labels).float().mean())}


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
    """Fill what is masked (BERT), or predict every next word (GPT)."""
    real = texts != PAD
    if isinstance(model, Gpt):
        return _cross_entropy(model(texts[:, :-1], real[:, :-1]), texts[:, 1:], real[:, 1:])
    hidden = (torch.rand(texts.shape) < MASKED) & (texts >= FIRST)
    logits = model(texts.masked_fill(hidden, MASK), real).logits
    assert isinstance(logits, Tensor)
    return _cross_entropy(logits, texts, hidden)


def _cross_entropy(logits: Float[Tensor, "B T V"], texts: Texts, counted: Bool[Tensor, "B T"]) -> Tensor:
    return functional.cross_entropy(logits[counted], texts[counted])


def _sentence(random: Random) -> list[int]:
    return draw_pair(random, random.randint(*WORDS))[1]


def _padded(rows: list[list[int]]) -> Texts:
    whole = [[BEGIN, *row, END] for row in rows]
    return torch.tensor([[*row, *[PAD] * (WORDS[1] + 2 - len(row))] for row in whole])


def _texts(seed: int) -> Iterator[Texts]:
    random = Random(seed)
    while True:
        yield _padded([_sentence(random) for _ in range(BATCH)])


def _labelled(random: Random, count: int) -> Labelled:
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
    return _padded(rows), torch.arange(count) % 2


def _labelled_batches(seed: int) -> Iterator[Labelled]:
    texts, labels = _labelled(Random(seed), LABELLED)
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(0, LABELLED, (BATCH,), generator=generator)
        yield texts[chosen], labels[chosen]
