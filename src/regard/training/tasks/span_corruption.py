"""Span corruption (Raffel et al. 2020): spans are cut out of a plain text, and the model writes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from regard.data.loader import Loader, Rows
from regard.data.parts import Part
from regard.data.text.span_corruption import SpanTexts, sentinels
from regard.data.text.token_blocks import block_starts, plan_blocks, split_rows
from regard.training.losses import cross_entropy
from regard.training.prepare.texts import TextPreparation
from regard.training.safeguards import Poll
from regard.training.tasks.base import Values, loader_options
from regard.training.tasks.language_modelling import encode_lines
from regard.training.tasks.span_corruption_recipe import SpansRecipe
from regard.training.tasks.text_base import TextToTextTask, no_validation


class SpanCorruptionTask(TextToTextTask):
    """Plain text in blocks. Spans are cut out of each block, and the model restores them."""

    recipe: SpansRecipe

    @classmethod
    def prepare(cls, recipe: SpansRecipe, folder: Path, poll: Poll) -> None:
        """Learn the vocabulary and encode the texts."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: SpansRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, self.data = recipe, device, recipe.data
        self.corpus = _preparation(recipe).open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()
        self.loader = Loader(self._plan, self._texts("train", recipe.seed), **loader_options(recipe.training, device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and perplexity of the spans of the validation text."""
        return self._measured(model, "valid", poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same of the test text; empty if the recipe has none."""
        return self._measured(model, "test", poll) if len(self.corpus.test.tokens) > 1 else {}

    @torch.inference_mode()
    def _measured(self, model: nn.Module, part: Part, poll: Poll) -> Values:
        texts, total, tokens = self._texts(part, seed=0), 0.0, 0
        starts = self._usable(block_starts(len(texts.store.tokens) + 1, self.data.block), len(texts.store.tokens))
        for rows in split_rows(starts, max(1, self.recipe.training.batch_tokens // self.data.block)):
            poll()
            batch = texts(rows).to(self.device)
            logits = model(batch.source, batch.source_mask, batch.inputs, factored=self.factored)
            total += cross_entropy(logits, batch.labels, batch.labels_mask).item()
            tokens += batch.tokens
        return {"loss": total / tokens, "perplexity": math.exp(min(total / tokens, 100.0))}

    def _texts(self, part: Part, seed: int) -> SpanTexts:
        store = getattr(self.corpus, part)
        data, marks = self.data, sentinels(self.tokenizer)
        return SpanTexts(store, self.tokenizer, marks, data.block, data.density, data.span, seed)

    def _plan(self, epoch: int) -> list[Rows]:
        tokens, training = len(self.corpus.train.tokens), self.recipe.training
        plan = plan_blocks(
            tokens + 1, self.data.block, batch_tokens=training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )
        usable = (self._usable(rows, tokens) for rows in plan)
        return [rows for rows in usable if len(rows)]

    def _usable(self, starts: Rows, tokens: int) -> Rows:
        """The blocks of at least two tokens; nothing can be cut out of one token."""
        return starts[np.minimum(starts + self.data.block, tokens) - np.maximum(starts, 0) >= 2]


def _preparation(recipe: SpansRecipe) -> TextPreparation:
    data = recipe.data
    return TextPreparation(data, recipe.model, recipe.tokenizer, "terminated", encode_lines, data.sentinels)
