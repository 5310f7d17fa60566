"""Measuring a captioner on held-out images: loss, and scores of the captions that it writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.batch import CaptionBatch, ImageRowsBatch
from regard.data.loader import Place, Rows
from regard.data.tokenizers.text import TextTokenizer
from regard.inference.decoding.captions import write_captions
from regard.inference.decoding.settings import SearchSettings
from regard.training.evaluation.caption_scores import caption_scores
from regard.training.evaluation.translation import SAMPLES, Sample
from regard.training.losses import cross_entropy
from regard.training.safeguards import Poll


class CaptionEvaluation:
    """Held-out images with their captions; `decoded` of them, evenly spread, are also described by the model."""

    def __init__(
        self,
        texts: Sequence[Sequence[str]],
        make: Callable[[Rows, Place], CaptionBatch],
        read: Callable[[ImageRowsBatch], Float[Tensor, "B C H W"]],
        tokenizer: TextTokenizer,
        *,
        decoding: SearchSettings,
        decoded: int,
        batch: int,
        device: torch.device,
    ) -> None:
        self.texts, self.make, self.read, self.tokenizer = texts, make, read, tokenizer
        self.decoding, self.batch, self.device = decoding.replace(n_best=1), batch, device
        self.decoded = np.linspace(0, len(texts), min(decoded, len(texts)), endpoint=False).astype(np.int64)
        self.samples: list[Sample] = []  # captions of the last call, of the same images each time

    def __call__(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """All metrics of a model in evaluation mode; `poll` is called between batches and may raise."""
        values = {"loss": self._loss(model, poll)}
        return values | self._scores(model, poll) if len(self.decoded) else values

    @torch.inference_mode()
    def _loss(self, model: nn.Module, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in self._batches(np.arange(len(self.texts))):
            poll()
            logits, _ = model(self.read(batch), batch.inputs, batch.labels_mask, factored=True)
            total += cross_entropy(logits, batch.labels, batch.labels_mask)
            tokens += batch.tokens
        return total.item() / tokens

    def _scores(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        found: list[str] = []
        for batch in self._batches(self.decoded):
            poll()
            hypotheses = write_captions(model, self.read(batch), self.decoding, self.tokenizer)
            found += [self.tokenizer.decode(best[0].tokens) for best in hypotheses]
        references = [self.texts[row] for row in self.decoded]
        self.samples = _samples(found, references)
        scores = caption_scores(found, references)
        right = sum(text in known for text, known in zip(found, references, strict=True))
        return {"bleu4": scores["bleu4"], "cider": scores["cider"], "exact": right / len(found)}

    def _batches(self, rows: Rows) -> Iterator[CaptionBatch]:
        for number, some in enumerate(np.array_split(rows, max(1, -(-len(rows) // self.batch)))):
            yield self.make(some, (0, number)).to(self.device)


def _samples(found: Sequence[str], references: Sequence[Sequence[str]]) -> list[Sample]:
    """A few evenly spread captions, each beside a reference."""
    chosen = range(0, len(found), max(1, math.ceil(len(found) / SAMPLES)))
    return [Sample(source=f"image {i}", target=references[i][0], output=found[i]) for i in chosen]
