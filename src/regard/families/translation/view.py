"""What a translation attends to, as a report, and the reader of pairs: the loss of every target token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from regard.data.formats.pairs import Pair, read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.errors import UsageError
from regard.families.translation.shipped import ShippedTranslator
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.look.inspection import WORDS, Recorded, TextInspection, refuse_options
from regard.look.reader import PHRASEBOOK, Example, Source, SourceReader


class TranslationInspection(TextInspection):
    """A sentence and its translation: the model's own as token ids, or a given one as a text."""

    def __init__(self, translator: Translator, source: str, answer: str | Sequence[int], *, to: str, said: str):
        tokenizer, target = translator.tokenizer, translator.tokenizer.target
        ids = target.encode([answer])[0] if isinstance(answer, str) else list(answer)
        texts = {
            "source": tokenizer.source.pieces(tokenizer.source_ids([source], to)[0]),
            "target": target.pieces([target.start, *ids]),  # the decoder's input at each step
        }
        texts |= dict(zip(WORDS, (said.split(), source.split()), strict=True))
        super().__init__(translator.name, translator.models[0], source, texts, said)
        self.translator, self.answer, self.to, self.meta = translator, answer, to, {"translation": said}
        if translator.alignment is not None and said:
            self.alignment_layer = translator.alignment.layer

    def run(self) -> object:
        target = self.translator.tokenizer.target
        ids = target.encode([self.answer])[0] if isinstance(self.answer, str) else self.answer
        return self.translator.log_probabilities(self.title, ids, to=self.to)

    def names(self, ids: Sequence[int]) -> list[str]:
        return self.translator.tokenizer.target.pieces(list(ids))

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Recorded:
        (seen,) = self.translator.passes([self.title], [self.answer], to=self.to, layers=layers, scores=scores)
        aligned = not scores and self.alignment_layer in seen.weights
        return Recorded(seen.weights, seen.words(self.translator.aligning()) if aligned else None)


def inspect_translator(
    translator: Translator | ShippedTranslator,
    text: str,
    *,
    pair: str = "",
    to: str = "",
    target: str = "",
    **generation: Any,
) -> TextInspection:
    """One sentence with the model's own translation, or with a given one."""
    if isinstance(translator, ShippedTranslator):
        translator, to = translator.translator_for(text, to)
    refuse_options(translator, {"a second text": pair, **generation})
    if target:
        return TranslationInspection(translator, text, target, to=translator.target_language(to), said=target)
    return inspect_translation(translator, translator.translate(text, to=to))


def inspect_translation(translator: Translator, answer: Translation) -> TextInspection:
    """A finished translation of one sentence."""
    if not answer.parts:
        raise UsageError("there is nothing to look at: the text is empty")
    if len(answer.parts) > 1:
        raise UsageError(
            f"the text is too long to look at as a whole: it was translated as {len(answer.parts)} sentences; "
            "look at one of them"
        )
    ((source, ids),) = answer.parts
    inspection = TranslationInspection(translator, source, ids, to=answer.to, said=answer.text)
    inspection.meta["score"] = f"{answer.score:.4f}"
    return inspection


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
