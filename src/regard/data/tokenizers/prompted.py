"""The tokenizer of a text-to-text model such as T5, for sentence pairs: a prompt names the target language.

A model folder with `translation.json` beside the tokenizer of single texts is a translator. The prompt is the one that
T5 was trained with ("translate English to German: "), so a language that the model knows needs no new token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from regard.data.formats.languages import language_name
from regard.data.tokenizers.base import SPACE, Tokenizer, read_languages
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError

PROMPTS = "translation.json"


class PromptedTokenizer(Tokenizer):
    """Both sides of a text-to-text model; answers begin with its padding token."""

    def __init__(self, text: TextTokenizer, prompts: Mapping[str, str]) -> None:
        if text.end is None or text.unknown is None:
            raise CheckpointError("its tokenizer has no end token or no unknown token, which translations need")
        vocabulary = [text.library.id_to_token(i) or "<unk>" for i in range(text.size)]
        if not any(piece.startswith(SPACE) for piece in vocabulary):
            raise CheckpointError(f"its tokenizer does not mark words with {SPACE}, as SentencePiece does")
        super().__init__(vocabulary, pad=text.pad, start=text.pad, end=text.end, unknown=text.unknown)
        self._text = text
        self._prompts = dict(zip(prompts, self.encode(list(prompts.values())), strict=True))

    def __reduce__(self) -> tuple[type[PromptedTokenizer], tuple[TextTokenizer, dict[str, str]]]:
        return PromptedTokenizer, (self._text, {code: self.decode(ids) for code, ids in self._prompts.items()})

    def prompt(self, to: str) -> list[int]:
        return self._prompts.get(to, [])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[i for i in row.ids if i != self.end] for row in self._text.encode(texts)]

    def words_in(self, text: str) -> list[int]:
        return [word for word in self._text.words_of(text) if word >= 0]


def prompt_for(source: str, target: str) -> str:
    """The prompt for a direction, in T5's words."""
    return f"translate {language_name(source)} to {language_name(target)}:"


def prompted_files(files: Mapping[str, bytes], source: str, targets: Sequence[str]) -> dict[str, bytes]:
    """The files of a text-to-text model's tokenizer, with a prompt for each target language."""
    given = json.loads(files.get(PROMPTS, b"{}"))
    prompts = given.get("targets", {}) | {code: prompt_for(source, code) for code in targets}
    values = {"source": given.get("source") or source, "targets": prompts}
    return {**files, PROMPTS: json.dumps(values, indent=2, ensure_ascii=False).encode()}


def prompted_sides(files: Mapping[str, bytes]) -> tuple[Tokenizer, Tokenizer, tuple[str, ...], tuple[str, ...]]:
    """Both sides of such a tokenizer, and its languages."""
    values = json.loads(files[PROMPTS])
    text = TextTokenizer({name: content for name, content in files.items() if name != PROMPTS})
    side = PromptedTokenizer(text, values["targets"])
    return side, side, read_languages(values["source"]), tuple(values["targets"])
