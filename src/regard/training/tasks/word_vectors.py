"""Word vectors from plain text (Mikolov et al. 2013): neighbours of a word are told from words drawn at random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from regard.data.formats.plain_text import Line
from regard.data.loader import Loader, Rows
from regard.data.text.skipgram import WindowBatch, WordWindows
from regard.data.text.token_blocks import EncodedLine, TokenStore
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.models.word2vec import Word2Vec, Word2VecConfig
from regard.training import word_updates
from regard.training.losses import Loss, negative_sampling
from regard.training.prepare.initial_model import build_model
from regard.training.prepare.texts import TextPreparation, chunks
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values, loader_options
from regard.training.tasks.text_base import TextTask, no_validation
from regard.training.tasks.word_vectors_recipe import WordsRecipe

VALIDATION_EPOCH = 0  # every validation uses the random draws of this epoch


class WordVectorTask(TextTask[WindowBatch]):
    """Words of plain text with their neighbours, line by line."""

    recipe: WordsRecipe

    @classmethod
    def prepare(cls, recipe: WordsRecipe, folder: Path, poll: Poll) -> None:
        """Learn the vocabulary and encode the texts."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: WordsRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.updates = recipe.training.optimizer == "sgd"
        self.divisible = not self.updates  # every process would change vectors of its own
        self.corpus = _preparation(recipe).open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()
        self.windows = self._windows(self.corpus.train)
        self.loader = Loader(self._plan, self.windows, **loader_options(recipe.training, device))

    def _windows(self, store: TokenStore) -> WordWindows:
        config = self.recipe.model.config(source_vocab=8, target_vocab=8, pad=0)
        assert isinstance(config, Word2VecConfig)
        return WordWindows(
            store, self.tokenizer.size, config.window, config.negatives, self.recipe.data.subsample, self.recipe.seed
        )

    def _plan(self, epoch: int) -> list[Rows]:
        plan = self.windows.plan(epoch, self.recipe.training.batch_tokens)
        if not plan:
            raise DataError(f"data.subsample = {self.recipe.data.subsample} leaves no word of the text; raise it")
        return plan

    def build(self) -> nn.Module:
        """Two vectors for every word of the vocabulary."""
        return build_model(self.recipe.model, self.tokenizer)

    def loss(self, model: Forward, batch: WindowBatch) -> Loss:
        """Negative sampling, summed over the neighbours of all words of a batch."""
        total = negative_sampling(*model(batch.words, batch.around, batch.mask, batch.noise))
        return Loss(total, batch.mask.new_tensor(batch.tokens, dtype=torch.long))

    def update(self, model: nn.Module, batch: WindowBatch, rate: float) -> Loss:
        """Gradient descent after every few words."""
        assert isinstance(model, Word2Vec)
        total = word_updates.update(model, batch, rate)
        return Loss(total, total.new_tensor(batch.tokens, dtype=torch.long))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The loss of a word, with the same noise in every validation."""
        return self._measured(model, self.corpus.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same over the test text; empty if the recipe has none."""
        return self._measured(model, self.corpus.test, poll) if len(self.corpus.test.tokens) > 1 else {}

    @torch.inference_mode()
    def _measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        windows, total, words = self._windows(store), 0.0, 0
        for index, rows in enumerate(windows.plan(VALIDATION_EPOCH, self.recipe.training.batch_tokens)):
            poll()
            batch = windows(rows, (VALIDATION_EPOCH, index))
            total += self.loss(model, batch.to(self.device)).total.item()
            words += batch.tokens
        return {"loss": total / max(words, 1)}


def _preparation(recipe: WordsRecipe) -> TextPreparation:
    return TextPreparation(recipe.data, recipe.model, recipe.tokenizer, "separated", encode_words)


def encode_words(tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
    """The words of lines; words outside the vocabulary are left out."""
    for some in chunks(lines):
        cut = tokenizer.library.encode_batch_fast([line.text.strip() for line in some], add_special_tokens=False)
        for line, encoding in zip(some, cut, strict=True):
            yield EncodedLine([each for each in encoding.ids if each != tokenizer.unknown], line.first)
