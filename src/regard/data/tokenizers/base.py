"""The interface of tokenizers for one side of a sentence pair: text to ids and back, with word indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

SPACE = "▁"  # represents the space before a word in pieces, as in SentencePiece
OPENINGS = "¿¡"  # Spanish opening marks


class Tokenizer(ABC):
    """One side of a pair: text becomes ids of pieces in which `▁` represents a space."""

    def __init__(
        self, vocabulary: Sequence[str], *, pad: int, start: int, end: int, unknown: int, capital: int | None = None
    ) -> None:
        """`capital` is the token that capitalises the next word, in tokenizers that mark case."""
        self.vocabulary, self.capital = vocabulary, capital
        self.pad, self.start, self.end, self.unknown = pad, start, end, unknown
        self.tags: Mapping[str, int] = {
            piece[2:-2]: i for i, piece in enumerate(vocabulary) if piece.startswith(">>") and piece.endswith("<<")
        }
        self.specials = frozenset((pad, start, end, unknown, *self.tags.values()))

    @property
    def size(self) -> int:
        return len(self.vocabulary)

    def prompt(self, to: str) -> list[int]:
        """The ids before a source that is to be translated into `to`: its tag, if it has one."""
        return [self.tags[to]] if to in self.tags else []

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text without special tokens; text never becomes a special token other than `unknown`."""

    @abstractmethod
    def words_in(self, text: str) -> list[int]:
        """For each id of `text`, the index of its whitespace word, unknown tokens included."""

    def reads(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether no part of it becomes the unknown token."""
        return [self.unknown not in ids for ids in self.encode(texts)]

    def copied(self, word: str) -> str:
        """The part of an untranslatable whitespace word that is copied to the output."""
        return word

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The display form of each id."""
        return [self.vocabulary[i] for i in ids]

    def decode(self, ids: Iterable[int], unknown: Iterable[str] = ()) -> str:
        """The text of `ids`, words separated by one space. Special tokens are skipped; unknown tokens are replaced by
        the words of `unknown` in order, if given."""
        return " ".join("".join(self._written(ids, unknown)).replace(SPACE, " ").split())

    def words_of(self, ids: Sequence[int], unknown: Iterable[str] = ()) -> list[int]:
        """For each id, the index of its whitespace word in `decode(ids, unknown)`; -1 if skipped."""
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
        """Apply capital tokens: each becomes the space before its word, and opening marks are joined to their word."""
        joined, capitalise_next, glued = list[str](), False, False
        for i, piece in zip(ids, written, strict=True):
            if i == self.capital:
                joined.append(SPACE)
                capitalise_next = True
                continue
            if glued:
                piece = piece.removeprefix(SPACE)
            if capitalise_next and any(map(str.isalpha, piece)):
                piece, capitalise_next = _capitalise(piece), False
            joined.append(piece)
            glued = (glued and not piece) or piece.strip(SPACE) in (*OPENINGS,)
        return joined


def _capitalise(piece: str) -> str:
    """The piece with its first letter as a capital."""
    place = next(place for place, character in enumerate(piece) if character.isalpha())
    return piece[:place] + piece[place].upper() + piece[place + 1 :]


def words_of_pieces(pieces: Sequence[str]) -> list[int]:
    """The word index of each piece of a text: that of its first letter.

    A piece that is only a space belongs to the next word, or to the last word if none follows (-1 without words).
    """
    words = words_of_characters("".join(pieces))
    begins = accumulate((len(piece) for piece in pieces[:-1]), initial=0)
    return [words[begin] for begin, _ in zip(begins, pieces, strict=False)]


def words_of_characters(text: str) -> list[int]:
    """The word index of each character; a space belongs to the next word, or to the last if none follows."""
    words, word, inside = [], 0, False
    for character in text.replace(SPACE, " "):
        word += inside and character.isspace()
        inside = not character.isspace()
        words.append(word)
    last = word if inside else word - 1
    return [min(word, last) for word in words]


def read_languages(given: str | Sequence[str]) -> tuple[str, ...]:
    """The source languages of a tokenizer's settings, which hold one or a list of them."""
    return (given,) if isinstance(given, str) else tuple(given)


def written_languages(given: str | Sequence[str]) -> str | list[str]:
    """The inverse of `read_languages`: one language is written as itself."""
    languages = read_languages(given)
    return languages[0] if len(languages) == 1 else list(languages)


def well_formed(text: str) -> str:
    """The text with lone surrogates, which no encoder accepts, replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
