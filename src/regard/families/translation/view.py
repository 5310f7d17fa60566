"""What `regard look` shows of a translator: a sentence and its translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import UsageError
from regard.families.translation.shipped import ShippedTranslator
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.look.inspection import WORDS, Recorded, TextInspection, refuse_options


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
