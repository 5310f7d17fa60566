"""regard translate --input FILE --output FILE: a whole document, in its own format."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.verbs.inputs import Unknown

if TYPE_CHECKING:
    from regard.documents.markup import Translated
    from regard.families.translation.memory import Remembered
    from regard.families.translation.pivot import Pivot
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator


LOOKED_AT = 1000  # texts checked for their language; later ones are not checked


class Foreign:
    """Finds texts that are surely in another language; reports each typed text, else the number of texts."""

    def __init__(self, source: str | Sequence[str], target: str, *, typed: bool, unit: str = "lines") -> None:
        self.sources = list(filter(None, [source] if isinstance(source, str) else source))
        self.target, self.typed, self.unit = target, typed, unit
        self.seen, self.foreign, self.first = 0, 0, ""

    def watch(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts unchanged; report after the last one what was found."""
        for text in texts:
            self.note(text)
            yield text
        self.tell()

    def note(self, text: str) -> None:
        from regard.data.formats.languages import language_name, same_language
        from regard.documents.language_id import foreign_language

        if not self.sources or self.seen >= LOOKED_AT:
            return
        self.seen += 1
        if not (found := foreign_language(text, self.sources)):
            return
        self.foreign += 1
        already = " already, the language it is translated into" if same_language(found, self.target) else ""
        what = f"{language_name(found)} ({found}){already}"
        if self.typed:
            self._say(f"the text {text[:40]!r} seems to be {what}; this model reads {self._read}")
        self.first = self.first or f"number {self.seen} is {what}"

    def tell(self) -> None:
        if self.foreign and not self.typed:
            self._say(
                f"{self.foreign} of {self.seen} {self.unit} looked at seem to be in another language than "
                f"{self._read}, which this model reads; {self.first}"
            )

    @property
    def _read(self) -> str:
        from regard.data.formats.languages import language_name

        return " or ".join(map(language_name, self.sources))

    @staticmethod
    def _say(words: str) -> None:
        print(f"regard: warning: {words}", file=sys.stderr)


def _translated(answer: Translation, *, quality: bool) -> Translated:
    """A translation as documents take it: with the links by which markup is put back and, if asked, its quality."""
    from regard.documents.markup import Translated

    assert answer.translator is not None
    judged = (answer.quality, answer.flags) if quality else (None, ())
    return Translated(answer.text, answer.alignment if answer.translator.alignment else (), *judged)


def translate_file(
    translator: Translator,
    models: list[str],
    source: Path,
    target: Path,
    languages: tuple[str, str],
    encoding: str,
    changes: dict[str, Any],
    remembered: Remembered | Pivot,
    *,
    overwrite: bool,
    review: bool,
    review_below: float,
) -> None:
    """Translate a document from one file into another; under torchrun, each process translates a part of it."""
    import torch

    from regard.data.files import Parts
    from regard.documents.translate import translate_document, translate_in_processes
    from regard.training.distributed import joined

    def answers(texts: list[str]) -> list[Translated]:
        found = remembered.translate(texts, **changes)
        for each in found:
            unknown.note(each.source, each.unknown)
            foreign.note(each.source)
        return [_translated(each, quality=bool(review_below)) for each in found]

    unknown = Unknown(translator.unknown_words, typed=False, unit="segments")
    foreign = Foreign(translator.source_languages, languages[1], typed=False, unit="segments")
    about = {key: str(value) for key, value in changes.items()} | {"memory": remembered.name}
    parts = Parts.of(target, source, models=models, languages=languages, options=about)
    if parts.wanted():
        with joined(torch.device("cpu")) as ranks:
            report = translate_in_processes(source, target, answers, languages[0], parts, ranks.wait, encoding)
    else:
        report = translate_document(
            source, target, answers, *languages, overwrite=overwrite, review=review, review_below=review_below,
            encoding=encoding,
        )  # fmt: skip
    unknown.tell()
    foreign.tell()
    print(f"{report}, written to {target}", file=sys.stderr)
