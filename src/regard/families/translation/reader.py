"""Reading sentence pairs: translators, by the loss of every target token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from regard.data.formats.pairs import Pair, read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.errors import UsageError
from regard.families.translation.translator import Translator
from regard.look.reader import (
    PHRASEBOOK,
    Example,
    Source,
    SourceReader,
)

WORD = 3  # tokens of a word of built-in data, at most


class PairReader(SourceReader):
    """A translator that reads a sentence and its translation."""

    built_in: ClassVar = (PHRASEBOOK,)

    def __init__(self, pipeline: Translator) -> None:
        if len(pipeline.models) > 1:
            raise UsageError("an ensemble has a place of its own in each of its models; give one translator")
        super().__init__(pipeline, pipeline.models[0], pipeline.settings)
        self.tokenizer = pipeline.tokenizer

    def pairs(self, source: Source) -> Iterator[Pair]:
        languages = [source.to] if source.to else list(self.tokenizer.target_languages)
        if source.path == PHRASEBOOK:
            each, longest = -(-source.count // len(languages)), source.block // WORD
            for to in languages:
                yield from phrases(to, part=source.part, count=each, seed=source.seed, max_words=longest)
            return
        if len(languages) > 1:
            raise UsageError(f"this model translates into {', '.join(languages)}; say which with data.to")
        for pair in read_pairs(source.path, self.tokenizer.source_language, languages[0]):
            yield Pair(pair.source, pair.target, to=languages[0])

    def source_ids(self, text: str, to: str) -> list[int]:
        return self.tokenizer.source_ids([text], to)[0]

    def target_ids(self, text: str) -> list[int]:
        return self.tokenizer.target_ids([text])[0]

    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        return (self.tokenizer.source if side == "source" else self.tokenizer.target).pieces(ids)

    def given(self, text: str) -> Example:
        """A text with the model's own translation into its first language."""
        return self.answered(text, self.tokenizer.target_languages[0])

    def answer(self, example: Example, position: int) -> str:
        """The translation of the whole sentence."""
        return self.tokenizer.target.decode(self.said(example[0]))
