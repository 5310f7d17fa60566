"""Word vectors: skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a, 2013b).

Also neighbours and analogies of words, and word2vec's text format.

Presets: tiny (for small corpora), skipgram and cbow with the sizes of the authors' program (100 numbers, windows of 5,
5 noise words).
Deviations: all words around a word share its noise words (the loss has the same expectation); CBoW follows the gradient
of its mean, which the authors' program does not divide by the number of words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.data.arguments import all_texts
from regard.data.files import atomic_text
from regard.data.formats.lines import read_lines, refuse
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, warn_of_unknown
from regard.errors import DataError, UsageError
from regard.layers.example import Example
from regard.search.pipeline import load_for_pipeline

if TYPE_CHECKING:
    from regard.families.conversion import Conversion

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 50, "window": 3},
    "skipgram": {"kind": "skipgram"},
    "cbow": {"kind": "cbow"},
}


class Word2VecConfig(Config):
    """Sizes and choices of word vectors."""

    vocab: PositiveInt
    width: PositiveInt = 100
    kind: Literal["skipgram", "cbow"] = "skipgram"  # a word predicts its neighbours, or they predict it
    window: PositiveInt = 5  # the most words on either side; the number is drawn for each word
    negatives: PositiveInt = 5  # noise words per word


class Lookups(NamedTuple):
    """What a batch reads: a word is known by Σ shares · words[inputs], and scored against around[targets].

    The first `true` targets should be scored high, the others (noise) low; a weight of 0 leaves a target out.
    """

    inputs: Int[Tensor, "B I"]
    shares: Float[Tensor, "B I"]
    targets: Int[Tensor, "B P"]
    weights: Float[Tensor, "B P"]
    true: int


class Scores(NamedTuple):
    """Scores of true words, which should be high, and of noise words, which should be low, with the weight of each."""

    true: Float[Tensor, "B P"]
    true_weight: Float[Tensor, "B P"]
    noise: Float[Tensor, "B K"]
    noise_weight: Float[Tensor, "B K"]


class Word2Vec(nn.Module):
    """Two vectors for every word: one as input (`words`), one as output (`around`)."""

    def __init__(self, config: Word2VecConfig):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.width)
        self.around = nn.Embedding(config.vocab, config.width)
        nn.init.uniform_(self.words.weight, -0.5 / config.width, 0.5 / config.width)
        nn.init.zeros_(self.around.weight)

    def forward(
        self,
        words: Int[Tensor, B],
        around: Int[Tensor, "B C"],
        mask: Bool[Tensor, "B C"],
        noise: Int[Tensor, "B K"],
    ) -> Scores:
        """Score the neighbours of each word (skip-gram), or each word (cbow), against noise; `mask` marks real ones."""
        looked = self.lookups(words, around, mask, noise)
        scores = torch.bmm(_rows(self.around, looked.targets), self.known(looked)[..., None])[..., 0]
        true, weights = looked.true, looked.weights
        return Scores(scores[:, :true], weights[:, :true], scores[:, true:], weights[:, true:])

    def lookups(
        self,
        words: Int[Tensor, B],
        around: Int[Tensor, "B C"],
        mask: Bool[Tensor, "B C"],
        noise: Int[Tensor, "B K"],
    ) -> Lookups:
        """The rows that a batch reads. Noise words that equal a true word do not count."""
        real = mask.to(self.words.weight.dtype)
        if self.config.kind == "skipgram":
            inputs, shares, true, weight = words[:, None], torch.ones_like(real[:, :1]), around, real
        else:
            inputs, shares, true = around, real / real.sum(1, keepdim=True).clamp(min=1), words[:, None]
            weight = real.amax(1, keepdim=True)  # a word without context is not predicted
        wrong = ((noise[:, :, None] != true[:, None]) | (weight[:, None] == 0)).all(-1)
        weights = torch.cat([weight, wrong * weight.sum(1, keepdim=True)], 1)
        return Lookups(inputs, shares, torch.cat([true, noise], 1), weights, true.shape[1])

    def known(self, looked: Lookups) -> Float[Tensor, "B D"]:
        """The vector that each word is known by."""
        return functional.embedding_bag(looked.inputs, self.words.weight, mode="sum", per_sample_weights=looked.shares)


def _rows(table: nn.Embedding, tokens: Int[Tensor, "B P"]) -> Float[Tensor, "B P D"]:
    """`table(tokens)`, by an operation whose gradient takes half the time on a CPU."""
    return table.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)


def _read_windows(model: Word2Vec, rows: int, source: int, target: int) -> Scores:
    """The words of `rows` texts, each with a full window of neighbours."""
    c, count = model.config, rows * target
    around, noise = (torch.zeros(count, size, dtype=torch.long) for size in (2 * c.window, c.negatives))
    return model(around[:, 0], around, torch.ones_like(around, dtype=torch.bool), noise)


EXAMPLE = Example(_read_windows, "target", "texts of {target} tokens")


class Neighbour(NamedTuple):
    """A word, and the cosine of its vector with the query."""

    word: str
    similarity: float


class WordVectors:
    """Words with their vectors."""

    pipeline: ClassVar[str] = "word_vectors"

    def __init__(self, words: Sequence[str], vectors: Float[Tensor, "N D"], *, lowercase: bool = False, name: str = ""):
        self.words, self.vectors, self.lowercase, self.name = list(words), vectors, lowercase, name
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.warns = True  # warn about texts that are mostly unknown

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> WordVectors:
        """Read a model folder, or a file in word2vec's text format."""
        if Path(folder).is_file():
            return cls.read(Path(folder))
        loaded = load_for_pipeline("word_vectors", folder, device, allow_pickle)
        assert isinstance(loaded.model, Word2Vec)
        library = TextTokenizer.load(loaded.folder).library
        special = {token.content for token in library.get_added_tokens_decoder().values()}
        known = {number: word for word, number in library.get_vocab().items() if word.strip() and word not in special}
        rows = sorted(known)
        vectors = loaded.model.words.weight.detach()[rows]
        return cls([known[row] for row in rows], vectors, lowercase=library.normalizer is not None, name=str(folder))

    @classmethod
    def read(cls, path: Path) -> WordVectors:
        """Read word2vec's text format: the number of words and the size of a vector, then one word and its vector per
        line."""
        lines = read_lines(path, refuse)
        try:
            count, width = map(int, next(lines, "").split())
            rows = [line.rstrip(" ").rsplit(" ", width) for line in lines if line.strip()]
            vectors = np.array([row[1:] for row in rows], dtype=np.float32).reshape(len(rows), width)
        except ValueError as error:
            raise DataError(
                f"{path} is not a text file of word vectors, a word and its numbers a line: {error}"
            ) from None
        if len(rows) != count:
            raise DataError(f"{path} announces {count:,} words, but has {len(rows):,}; it may have been cut")
        return cls([row[0] for row in rows], torch.from_numpy(vectors), name=path.name)

    def write(self, path: Path) -> None:
        """Write word2vec's text format; `read`, gensim and the original program read it."""
        with atomic_text(path) as file:
            print(*self.vectors.shape, file=file)
            for word, vector in zip(self.words, self.vectors.tolist(), strict=True):
                print(word, *(f"{number:.9g}" for number in vector), file=file)

    @cached_property
    def directions(self) -> Float[Tensor, "N D"]:
        """The vectors scaled to length 1."""
        return functional.normalize(self.vectors.float(), dim=-1)

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of words of each text."""
        return [len(text.split()) for text in texts]

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that have no vector."""
        return [
            UnknownWord(match[0], *match.span())
            for match in re.finditer(r"\S+", text)
            if (match[0].lower() if self.lowercase else match[0]) not in self.numbers
        ]

    def __getitem__(self, word: str) -> Float[Tensor, D]:
        return self.vectors[self.number(word)]

    def number(self, word: str) -> int:
        """The index of a known word."""
        number = self.numbers.get(word.lower() if self.lowercase else word)
        if number is None:
            near = difflib.get_close_matches(word, self.words, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "try a more common one"
            raise DataError(f"the word {word!r} is not among the {len(self.words):,} known ones; {hint}")
        return number

    def similarity(self, one: str, other: str) -> float:
        return (self.directions[self.number(one)] @ self.directions[self.number(other)]).item()

    def neighbours(self, word: str, top: int = 10) -> list[Neighbour]:
        """The words most similar to a word."""
        return self._nearest(self.directions[self.number(word)], [word], top)

    def analogy(self, one: str, other: str, third: str, top: int = 10) -> list[Neighbour]:
        """The words x for which `one` : `other` = `third` : x, nearest to other - one + third (3CosAdd, Levy 2014)."""
        a, b, c = (self.directions[self.number(word)] for word in (one, other, third))
        return self._nearest(b - a + c, [one, other, third], top)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str = "",
        prompt: str = "",
        normalise: bool = True,
        truncate: bool = False,
    ) -> Float[Tensor, "N D"]:
        """One vector for each text: the mean of the vectors of its known words. Texts have no length limit."""
        if pooling not in ("", "mean"):
            raise UsageError(f"pooling is {pooling!r}; word vectors know only mean")
        if prompt:
            raise UsageError(f"prompt is {prompt!r}; word vectors have no prompts")
        texts = all_texts(texts)
        found = torch.stack([self._mean(text) for text in texts])
        if self.warns:
            warn_of_unknown(texts, self.unknown_words)
        return functional.normalize(found, dim=-1) if normalise else found

    def _mean(self, text: str) -> Float[Tensor, D]:
        words = (text.lower() if self.lowercase else text).split()
        known = [self.numbers[word] for word in words if word in self.numbers]
        if not known:
            raise DataError(f"not one word of {text[:40]!r} is among the {len(self.words):,} known ones")
        return self.vectors[known].float().mean(0)

    def _nearest(self, vector: Float[Tensor, D], without: Sequence[str], top: int) -> list[Neighbour]:
        cosines = self.directions @ functional.normalize(vector, dim=-1)
        cosines[[self.number(word) for word in without]] = -torch.inf
        best, rows = cosines.topk(max(0, min(top, len(cosines) - len(set(without)))))
        return [Neighbour(self.words[row], cosine) for row, cosine in zip(rows.tolist(), best.tolist(), strict=True)]


def convert_to_text(conversion: Conversion, target: Path) -> None:
    """Write word vectors as word2vec's text file."""
    WordVectors.load(conversion.loaded.folder).write(target)
