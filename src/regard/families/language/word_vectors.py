"""Word vectors: neighbours, analogies, and word2vec's text format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.data.arguments import all_texts
from regard.data.files import atomic_text
from regard.data.formats.lines import read_lines, refuse
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, warn_of_unknown
from regard.errors import DataError, UsageError
from regard.families.language.word2vec import Word2Vec
from regard.search.pipeline import load_for_pipeline


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
        """The size of a vector."""
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
        """The cosine of two words."""
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
