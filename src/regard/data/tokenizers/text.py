"""Tokenizers of pre-trained text models, as Hugging Face folders hold them: whole texts in, numbered pieces out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders

from regard.data.tokenizers.base import SPACE, well_formed, words_of_characters
from regard.data.tokenizers.huggingface import FILES, read_tokenizer, special_tokens
from regard.errors import CheckpointError

VISIBLE = str.maketrans({" ": SPACE, "\n": "⏎", "\r": "␍", "\t": "⇥"})


class Encoded(NamedTuple):
    """A text or text pair with special tokens; `segments` has 0 or 1 for each token: the first or second text."""

    ids: list[int]
    segments: list[int]


class Marked(str):
    """A text that contains all its special tokens by name, such as a rendered chat."""

    __slots__ = ()


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer of a model of single texts. Equal if their files are equal."""

    files: Mapping[str, bytes] = field(repr=False)  # what `save` writes: the folder's own

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read the tokenizer of a model folder."""
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        tokenizer = cls(files)
        try:
            tokenizer.library  # noqa: B018 - read now, so that a damaged file is found here
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        except Exception as error:  # `tokenizers` raises bare Exception for a damaged file
            raise CheckpointError(f"cannot read the tokenizer in {folder}: {error}") from error
        return tokenizer

    def save(self, folder: Path) -> None:
        """Write the files it was read from into an existing or new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}  # the library's own pickle forgets some of its settings

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The tokenizer that treats the names of special tokens as ordinary text."""
        library = read_tokenizer(self.files)
        library.encode_special_tokens = True
        return library

    @cached_property
    def marking(self) -> tokenizers.Tokenizer:
        """The tokenizer that reads the names of special tokens, such as [MASK], as these tokens."""
        return read_tokenizer(self.files)

    @cached_property
    def specials(self) -> dict[str, int]:
        """The ids of the special tokens by role."""
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        return {role: vocabulary[token] for role, token in special_tokens(self.files, self.library).items()}

    @property
    def pad(self) -> int:
        return self.specials.get("pad", 0)

    @property
    def unknown(self) -> int | None:
        return self.specials.get("unknown")

    @property
    def only_unknown(self) -> int | None:
        """The unknown token, if it has no other role: GPT-2's is its end token and never represents unknown text."""
        return None if self.unknown in (self.start, self.end) else self.unknown

    @property
    def start(self) -> int | None:
        return self.specials.get("start")

    @property
    def end(self) -> int | None:
        return self.specials.get("end")

    @property
    def separator(self) -> int | None:
        return self.specials.get("separator")

    @property
    def mask(self) -> int | None:
        return self.specials.get("mask")

    @cached_property
    def size(self) -> int:
        """The vocabulary size that a model needs: the largest id plus one."""
        return max(self.library.get_vocab(with_added_tokens=True).values()) + 1

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        longest: int | None = None,
        marked: bool = False,
    ) -> list[Encoded]:
        """The ids of each text, or of each text with its partner in `pairs`, with special tokens.

        Longer inputs are truncated to `longest` tokens at the end, the longer text of a pair first. With `marked`, the
        names of special tokens are read as these tokens.
        """
        library = self.marking if marked else self.library
        firsts = [well_formed(text) for text in texts]
        seconds = None if pairs is None else [well_formed(text) for text in pairs]
        rows = firsts if seconds is None else list(zip(firsts, seconds, strict=True))
        complete = all(isinstance(text, Marked) for text in texts)
        found = (self.marking if complete else library).encode_batch(rows, add_special_tokens=not complete)
        if longest is not None:
            for number, cut in enumerate(found):
                if len(cut.ids) > longest:
                    found[number] = self._truncated(library, rows[number], longest)
        return [Encoded(cut.ids, cut.type_ids) for cut in found]

    def reads(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether no part of it becomes the unknown token."""
        found = self.library.encode_batch([well_formed(text) for text in texts], add_special_tokens=False)
        return [self.unknown not in cut.ids for cut in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are skipped."""
        return self.library.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The display form of each id."""
        pieces = [self.library.id_to_token(i) or "" for i in ids]
        if isinstance(self.library.decoder, decoders.ByteLevel):  # written in stand-ins for bytes
            special = {*self.specials.values()}
            return [
                piece if i in special else self.library.decoder.decode([piece]).replace(" ", SPACE)
                for i, piece in zip(ids, pieces, strict=True)
            ]
        return pieces

    def shown(self, ids: Sequence[int]) -> list[str]:
        """The display form of each id with visible white space, for tokens that are shown alone."""
        return [piece.translate(VISIBLE) for piece in self.pieces(ids)]

    def running(self, ids: Sequence[int]) -> list[str]:
        """The display form of each id in a text: if no token has spaces, those that begin a word get one."""
        shown = self.shown(ids)
        if isinstance(self.library.decoder, decoders.WordPiece):
            return [token.removeprefix("##") if token.startswith("##") else f" {token}" for token in shown]
        return [f" {token}" for token in shown] if self.library.decoder is None else shown

    def spelled(self, token: int) -> tuple[str, bool]:
        """The text of a token, and whether it continues the word before it."""
        (piece,) = self.pieces([token])
        if isinstance(self.library.decoder, decoders.WordPiece):
            return piece.removeprefix("##"), piece.startswith("##")
        return piece.replace(SPACE, " ").strip(), not piece.startswith(SPACE)

    def word_numbers(self, ids: Sequence[int]) -> list[int]:
        """The number of the word, of those with spaces between them, that each token of a text belongs to."""
        return [max(0, len(self.decode(ids[: place + 1]).split()) - 1) for place in range(len(ids))]

    def words_of(self, text: str, pair: str | None = None, *, marked: bool = False) -> list[int]:
        """For each id of `encode`, the index of its whitespace word; the second text's words are numbered after the
        first's. -1 for special tokens."""
        texts = [well_formed(text), *([] if pair is None else [well_formed(pair)])]
        words = [words_of_characters(each) for each in texts]
        before = [0, len(texts[0].split())]
        cut = (self.marking if marked else self.library).encode(texts[0], texts[1] if pair is not None else None)
        return [
            -1 if side is None or not words[side] else before[side] + words[side][max(end, 1) - 1]
            for side, (_, end) in zip(cut.sequence_ids, cut.offsets, strict=True)
        ]

    def spans(self, text: str, pair: str | None = None) -> list[tuple[int, int, int]]:
        """For each id of `encode`: which text it is of (0, 1; -1 for special tokens), and its first character and the
        one after its last."""
        second = None if pair is None else well_formed(pair)
        cut = self.library.encode(well_formed(text), second)
        return [
            (-1 if side is None else side, begin, end)
            for side, (begin, end) in zip(cut.sequence_ids, cut.offsets, strict=True)
        ]

    @staticmethod
    def _truncated(library: tokenizers.Tokenizer, row: str | tuple[str, str], longest: int) -> tokenizers.Encoding:
        parts = [library.encode(text, add_special_tokens=False) for text in ([row] if isinstance(row, str) else row)]
        room = max(0, longest - library.num_special_tokens_to_add(is_pair=len(parts) > 1))
        lengths = _shorten_longest([len(part.ids) for part in parts], room)
        for part, length in zip(parts, lengths, strict=True):
            part.truncate(length)
        return library.post_process(parts[0], parts[1] if len(parts) > 1 else None)


def _shorten_longest(lengths: list[int], room: int) -> list[int]:
    """Lengths whose sum is at most `room`; the longest is shortened first."""
    while sum(lengths) > room:
        longest = lengths.index(max(lengths))
        others = [length for place, length in enumerate(lengths) if place != longest]
        lengths[longest] -= min(sum(lengths) - room, max(1, lengths[longest] - max(others, default=0)))
    return lengths
