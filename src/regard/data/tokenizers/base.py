"""What every tokenizer of one language side can do: text to ids of pieces, and back, word by word."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

SPACE = "▁"  # stands for the space before a word inside pieces, as in SentencePiece
OPENINGS = "¿¡"  # what Spanish puts before a question or an exclamation


class Tokenizer(ABC):
    """One side of a pair: text becomes ids of pieces in which `▁` stands for a space."""

    def __init__(
        self, vocabulary: Sequence[str], *, pad: int, start: int, end: int, unknown: int, capital: int | None = None
    ) -> None:
        """`capital` is the token that gives the word after it a capital letter, in tokenizers that mark case."""
        self.vocabulary, self.capital = vocabulary, capital
        self.pad, self.start, self.end, self.unknown = pad, start, end, unknown
        self.tags: Mapping[str, int] = {
            piece[2:-2]: i for i, piece in enumerate(vocabulary) if piece.startswith(">>") and piece.endswith("<<")
        }
        self.specials = frozenset((pad, start, end, unknown, *self.tags.values()))

    @property
    def size(self) -> int:
        return len(self.vocabulary)

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text without any special token; text never turns into a special token other than `unknown`."""

    @abstractmethod
    def words_in(self, text: str) -> list[int]:
        """For each id of `text` the index of the whitespace word of `text` it stands for, unknown tokens included."""

    def reads(self, texts: Sequence[str]) -> list[bool]:
        """Of each text, whether the tokenizer knows all of it: no part becomes the unknown token."""
        return [self.unknown not in ids for ids in self.encode(texts)]

    def copied(self, word: str) -> str:
        """What is copied of a whitespace word that has no translation."""
        return word

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The display form of each id."""
        return [self.vocabulary[i] for i in ids]

    def decode(self, ids: Iterable[int], unknown: Iterable[str] = ()) -> str:
        """The text of `ids`, words one space apart: special tokens are skipped, except that the unknown ones are
        written as the words of `unknown`, one after another, where they are given."""
        return " ".join("".join(self._written(ids, unknown)).replace(SPACE, " ").split())

    def words_of(self, ids: Sequence[int], unknown: Iterable[str] = ()) -> list[int]:
        """For each id the index of the whitespace word of `decode(ids, unknown)` it belongs to; -1 if skipped."""
        written = self._written(ids, unknown)
        words = iter(words_of_pieces([piece for piece in written if piece]))
        return [next(words) if piece else -1 for piece in written]

    def _written(self, ids: Iterable[int], unknown: Iterable[str]) -> list[str]:
        words = (SPACE + word for word in unknown)
        ids = list(ids)
        written = [
            self.vocabulary[i] if i not in self.specials else next(words, "") if i == self.unknown else "" for i in ids
        ]
        return written if self.capital is None else self._joined(ids, written)

    def _joined(self, ids: Sequence[int], written: Sequence[str]) -> list[str]:
        """Pieces whose capitals are marked: a mark is the space before a word, an opening is one with its word."""
        joined, raising, glued = list[str](), False, False
        for i, piece in zip(ids, written, strict=True):
            if i == self.capital:
                joined.append(SPACE)
                raising = True
                continue
            if glued:
                piece = piece.removeprefix(SPACE)
            if raising and any(map(str.isalpha, piece)):
                piece, raising = _raised(piece), False
            joined.append(piece)
            glued = (glued and not piece) or piece.strip(SPACE) in (*OPENINGS,)
        return joined


def _raised(piece: str) -> str:
    """The piece with its first letter as a capital."""
    place = next(place for place, character in enumerate(piece) if character.isalpha())
    return piece[:place] + piece[place].upper() + piece[place + 1 :]


def words_of_pieces(pieces: Sequence[str]) -> list[int]:
    """The word of each piece of a text: the one its first letter is in.

    A piece that is only a space belongs to the word after it, or to the last word when none follows (-1 without words).
    """
    words = words_of_characters("".join(pieces))
    begins = accumulate((len(piece) for piece in pieces[:-1]), initial=0)
    return [words[begin] for begin, _ in zip(begins, pieces, strict=False)]


def words_of_characters(text: str) -> list[int]:
    """The word of each character; a space belongs to the word after it, or to the last when none follows."""
    words, word, inside = [], 0, False
    for character in text.replace(SPACE, " "):
        word += inside and character.isspace()
        inside = not character.isspace()
        words.append(word)
    last = word if inside else word - 1
    return [min(word, last) for word in words]


def well_formed(text: str) -> str:
    """The text with lone surrogates, which no encoder accepts, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
