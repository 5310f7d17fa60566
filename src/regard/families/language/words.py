"""Word vectors from plain text (Mikolov et al. 2013): neighbours of a word are told from words drawn at random."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard import native
from regard.data.batch import TensorBatch
from regard.data.formats.lines import Line
from regard.data.loader import Loader, Place, Rows
from regard.data.text.token_blocks import EncodedLine, TokenStore, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.families.language.data import CorpusRecipe, CorpusTask, Encode, encoded
from regard.families.language.recipe import WordsRecipe
from regard.families.language.word_vectors import Word2Vec, Word2VecConfig
from regard.training.initial_model import build_model, planned_config
from regard.training.losses import Loss, negative_sampling
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options

NOISE = 0.75  # noise words are drawn in proportion to their frequency to this power
RUN = 64  # neighbouring words that stay together when an epoch is shuffled: their windows share most of their words
THINNING, ORDER, DRAWS = range(3)  # uses of random numbers; each has its own stream


@dataclass(frozen=True)
class WindowBatch(TensorBatch):
    """B words of a text, the C words of the window around each of them, and K words drawn at random."""

    words: Int[Tensor, B]
    around: Int[Tensor, "B C"]
    mask: Bool[Tensor, "B C"]  # real neighbours: within reach, in the same line, and not the word itself
    noise: Int[Tensor, "B K"]


class AliasTable(NamedTuple):
    """A distribution from which one number is drawn in constant time (Walker 1977): a column is drawn evenly, and it
    holds at most two numbers, itself and its alias."""

    own: NDArray[np.float64]  # the probability that a column gives itself
    alias: NDArray[np.int32]

    @classmethod
    def of(cls, weights: NDArray[np.floating[Any]]) -> Self:
        """The table of numbers with these weights."""
        own, alias = weights * (len(weights) / weights.sum()), np.arange(len(weights), dtype=np.int32)
        small, large = np.flatnonzero(own < 1).tolist(), np.flatnonzero(own >= 1).tolist()
        while small and large:  # a column below 1 is filled up from one above
            column, other = small.pop(), large[-1]
            alias[column] = other
            own[other] -= 1 - own[column]
            if own[other] < 1:
                small.append(large.pop())
        own[small + large] = 1.0  # what is left differs from 1 by rounding alone
        return cls(own, alias)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """Independent draws."""
        column = rng.integers(len(self.own), size=shape, dtype=np.int32)
        return np.where(rng.random(shape) < self.own[column], column, self.alias[column])


class KeptWords(NamedTuple):
    """The words that subsampling keeps in an epoch, with a margin of a window at both ends."""

    words: NDArray[np.int32]
    lines: NDArray[np.int32]  # of each word; -1 in the margins


@dataclass(frozen=True)
class WordWindows:
    """Makes batches of words with their neighbours in the same line, the same for the same (seed, epoch, index)."""

    store: TokenStore
    vocabulary: int
    window: int  # the most words on either side
    negatives: int
    subsample: float  # words with a greater share of the text than this are subsampled; 0 keeps all
    seed: int
    _kept: dict[int, KeptWords] = field(default_factory=dict, repr=False, compare=False)  # cache of the latest epoch

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each word occurs."""
        return np.bincount(self.store.tokens, minlength=self.vocabulary)

    @cached_property
    def keeping(self) -> NDArray[np.float64]:
        """The probability that an occurrence of a word is kept: √(t/f) + t/f, at most 1, as in word2vec's program; the
        paper has √(t/f)."""
        if not self.subsample:
            return np.ones(self.vocabulary)
        ratio = self.subsample * self.counts.sum() / np.maximum(self.counts, 1)
        return np.minimum(np.sqrt(ratio) + ratio, 1.0)

    @cached_property
    def noise(self) -> AliasTable:
        """The distribution of noise words."""
        return AliasTable.of(self.counts**NOISE)

    def kept(self, epoch: int) -> KeptWords:
        """The words that subsampling keeps in an epoch. It is done before windows are formed."""
        if epoch not in self._kept:
            self._kept.clear()
            drawn = np.random.default_rng([self.seed, epoch, THINNING]).random(len(self.store.tokens))
            places = np.flatnonzero(drawn < self.keeping[self.store.tokens])
            lines = np.repeat(np.arange(len(self.store.lines.offsets) - 1), self.store.lines.lengths())
            self._kept[epoch] = KeptWords(
                np.pad(self.store.tokens[places].astype(np.int32), self.window),
                np.pad(lines[places].astype(np.int32), self.window, constant_values=-1),
            )
        return self._kept[epoch]

    def plan(self, epoch: int, size: int) -> list[Rows]:
        """The words of each batch of an epoch, as indices into `kept` without its margin: runs in random order."""
        count = len(self.kept(epoch).words) - 2 * self.window
        runs = np.random.default_rng([self.seed, epoch, ORDER]).permutation(-(-count // RUN))
        order = (runs[:, None] * RUN + np.arange(RUN)).ravel()
        return split_rows(order[order < count], size)

    def __call__(self, rows: Rows, place: Place) -> WindowBatch:
        rng, kept, middle = np.random.default_rng([self.seed, *place, DRAWS]), self.kept(place[0]), self.window
        reach = rng.integers(1, self.window + 1, size=(len(rows), 1), dtype=np.int8)
        distances = np.abs(np.arange(-middle, middle + 1, dtype=np.int8))
        near = rows[:, None] + np.arange(2 * middle + 1)
        words, lines = kept.words[near], kept.lines[near]
        mask = (lines == lines[:, middle : middle + 1]) & (distances <= reach) & (distances > 0)
        noise = self.noise.draw(rng, (len(rows), self.negatives))
        return WindowBatch(*map(torch.from_numpy, (words[:, middle].copy(), words, mask, noise)))

    def __getstate__(self) -> dict[str, Any]:
        names = ("store", "vocabulary", "window", "negatives", "subsample", "seed")
        return {**{name: getattr(self, name) for name in names}, "_kept": {}}  # each worker fills its own caches


SOURCE = Path(__file__).with_name("word_updates.cpp")
CHUNK = 64  # words that read the same vectors: torch takes a chunk at once; few enough not to read outdated vectors
Pointer, Long = ctypes.c_void_p, ctypes.c_int64


class Words(ctypes.Structure):
    _fields_ = [
        ("centre", Pointer), ("around", Pointer), ("noise", Pointer), ("mask", Pointer), ("count", Long),
        ("places", Long), ("negatives", Long),
    ]  # fmt: skip


class Tables(ctypes.Structure):
    _fields_ = [("words", Pointer), ("around", Pointer), ("width", Long)]


@cache
def library() -> Any:
    """The compiled code; None if it is switched off or cannot be compiled."""
    found = native.load(SOURCE, (), "word vectors are learnt by torch, slower")
    if found is None:
        return None
    found.learn.argtypes = [Pointer, Pointer, Long, ctypes.c_int32, ctypes.c_float]
    found.learn.restype = ctypes.c_double
    return found


@torch.no_grad()
def update(model: Word2Vec, batch: WindowBatch, rate: float) -> Tensor:
    """Change the vectors by `rate` times the negative gradient of the loss, chunk by chunk; returns the summed loss."""
    if batch.words.is_cpu and library() is not None:
        return torch.tensor(_update_compiled(model, batch, rate))
    total = batch.words.new_zeros((), dtype=torch.float32)
    for chunk in zip(
        *(each.split(CHUNK) for each in (batch.words, batch.around, batch.mask, batch.noise)), strict=True
    ):
        total += _update_chunk(model, WindowBatch(*chunk), rate)
    return total


def _update_compiled(model: Word2Vec, batch: WindowBatch, rate: float) -> float:
    around, noise = batch.around, batch.noise
    ids = [each.int().contiguous() for each in (batch.words, around, noise)]
    mask, weights = batch.mask.contiguous(), (model.words.weight, model.around.weight)
    assert all(weight.is_contiguous() and weight.dtype == torch.float32 for weight in weights)
    words = Words(*(each.data_ptr() for each in (*ids, mask)), len(around), around.shape[1], noise.shape[1])
    tables = Tables(*(weight.data_ptr() for weight in weights), model.config.width)
    return library().learn(ctypes.byref(words), ctypes.byref(tables), CHUNK, model.config.kind == "cbow", rate)


def _update_chunk(model: Word2Vec, batch: WindowBatch, rate: float) -> Tensor:
    """The same by torch, for all words of a chunk at once."""
    looked = model.lookups(batch.words, batch.around, batch.mask, batch.noise)
    known, rows = model.known(looked), model.around.weight[looked.targets]
    scores, true, weights = torch.bmm(rows, known[..., None])[..., 0], looked.true, looked.weights
    labels = torch.zeros_like(scores)
    labels[:, :true] = 1
    steps = rate * weights * (labels - torch.sigmoid(scores))
    change = torch.bmm(steps[:, None], rows)
    _add_rows(model.around.weight, looked.targets, steps[..., None] * known[:, None])
    _add_rows(model.words.weight, looked.inputs, looked.shares[..., None] * change)
    return negative_sampling(scores[:, :true], weights[:, :true], scores[:, true:], weights[:, true:])


def _add_rows(table: Float[Tensor, "V D"], rows: Int[Tensor, "B P"], values: Float[Tensor, "B P D"]) -> None:
    table.index_add_(0, rows.flatten(), values.flatten(0, 1))


VALIDATION_EPOCH = 0  # every validation uses the random draws of this epoch


class WordVectorTask(CorpusTask[WindowBatch]):
    """Words of plain text with their neighbours, line by line."""

    recipe: WordsRecipe

    @classmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        return encode_words

    def __init__(self, recipe: WordsRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.updates = recipe.training.optimizer == "sgd"
        self.divisible = not self.updates  # every process would change vectors of its own
        self.windows = self._windows(self.corpus.train)
        self.loader = Loader(self._plan, self.windows, **loader_options(recipe.training, device))

    def _windows(self, store: TokenStore) -> WordWindows:
        config = planned_config(self.recipe.model, Word2VecConfig)
        return WordWindows(
            store, self.tokenizer.size, config.window, config.negatives, self.recipe.data.subsample, self.recipe.seed
        )

    def _plan(self, epoch: int) -> list[Rows]:
        plan = self.windows.plan(epoch, self.recipe.training.batch_tokens)
        if not plan:
            raise DataError(f"data.subsample = {self.recipe.data.subsample} leaves no word of the text; raise it")
        return plan

    def build(self) -> nn.Module:
        return build_model(self.recipe.model, self.tokenizer)

    def loss(self, model: Forward, batch: WindowBatch) -> Loss:
        """Negative sampling, summed over the neighbours of all words of a batch."""
        total = negative_sampling(*model(batch.words, batch.around, batch.mask, batch.noise))
        return Loss(total, batch.mask.new_tensor(batch.tokens, dtype=torch.long))

    def update(self, model: nn.Module, batch: WindowBatch, rate: float) -> Loss:
        """Gradient descent after every few words."""
        assert isinstance(model, Word2Vec)
        total = update(model, batch, rate)
        return Loss(total, total.new_tensor(batch.tokens, dtype=torch.long))

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        """The loss of a word, with the same noise in every validation."""
        windows, total, words = self._windows(store), 0.0, 0
        for index, rows in enumerate(windows.plan(VALIDATION_EPOCH, self.recipe.training.batch_tokens)):
            poll()
            batch = windows(rows, (VALIDATION_EPOCH, index))
            total += self.loss(model, batch.to(self.device)).total.item()
            words += batch.tokens
        return {"loss": total / max(words, 1)}


def encode_words(tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
    """The words of lines; words outside the vocabulary are left out."""
    for line, ids in encoded(tokenizer, (line._replace(text=line.text.strip()) for line in lines)):
        yield EncodedLine([token for token in ids if token != tokenizer.unknown], line.first)
