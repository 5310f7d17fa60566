"""regard translate --input FILE --output FILE: a whole document, in its own format."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.files import Parts, write_whole
from regard.errors import UsageError
from regard.verbs.inputs import Unknown

if TYPE_CHECKING:
    from regard.documents.markup import Translated
    from regard.families.translation.memory import Remembered
    from regard.families.translation.pivot import Pivot
    from regard.families.translation.translation import Translation
    from regard.verbs.progress import Progress


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


class DocumentTranslator:
    """Translates the texts of a document batch by batch. Every batch is stored as a part, so that nothing that is done
    is lost, and is taken from there where it is."""

    def __init__(
        self, translator: Remembered | Pivot, changes: dict[str, Any], parts: Parts, progress: Progress, *, judged: bool
    ) -> None:
        self.translator, self.changes, self.parts, self.progress = translator, changes, parts, progress
        self.judged, self.batches = judged, 0
        self.see: Callable[[Translation], object] = lambda answer: None

    def __call__(self, texts: list[str]) -> list[Translated]:
        place, self.batches = self.parts.place(self.batches), self.batches + 1
        rows = json.loads(place.read_text("utf-8")) if place.exists() else []
        earlier = [row["source"] for row in rows] == texts
        if not earlier:
            rows = [self._row(answer) for answer in self._answers(texts)]
            write_whole(place, json.dumps(rows, ensure_ascii=False).encode())
        self.progress.advance(len(texts), earlier=earlier)
        return [self._translated(row) for row in rows]

    def _answers(self, texts: list[str]) -> list[Translation]:
        answers = self.translator.translate(texts, **self.changes)
        for each in answers:
            self.see(each)
        return answers

    def _row(self, answer: Translation) -> dict[str, Any]:
        """What of a translation a document needs: also to align its words, if they have to be."""
        quality, flags = (answer.quality, list(answer.flags)) if self.judged else (None, [])
        row = {"source": answer.source, "text": answer.text, "quality": quality, "flags": flags}
        return row | {"similarity": answer.remembered, "parts": self.translator.parts_of(answer)}

    def _translated(self, row: dict[str, Any]) -> Translated:
        from regard.documents.markup import LaterLinks, Translated

        links = LaterLinks(row["parts"], self.translator.align) if self.translator.aligns else ()
        return Translated(row["text"], links, row["quality"], row["flags"], row["similarity"])


def translate_file(
    source: Path,
    target: Path,
    languages: tuple[str, str],
    translate: DocumentTranslator,
    *,
    overwrite: bool,
    review: bool,
    review_below: float,
    encoding: str,
) -> None:
    """Translate a document from one file into another."""
    from regard.documents.translate import count_texts, translate_document

    options: dict[str, Any] = {"overwrite": overwrite, "encoding": encoding}
    if translate.progress.shown:
        translate.progress.total = count_texts(source, *languages, **options)
    reader = translate.translator.first
    unknown = Unknown(reader.unknown_words, typed=False, unit="segments")
    foreign = Foreign(reader.source_languages, languages[1], typed=False, unit="segments")

    def see(answer: Translation) -> None:
        unknown.note(answer.source, answer.unknown)
        foreign.note(answer.source)

    translate.see = see
    report = translate_document(
        source, target, translate, *languages, review=review, review_below=review_below, **options
    )
    translate.parts.remove()
    unknown.tell()
    foreign.tell()
    print(f"{report}, written to {target}", file=sys.stderr)


@contextmanager
def kept_parts(parts: Parts, resume: bool) -> Iterator[Callable[[], None]]:
    """Work in parts that outlive a signal or an error; yields what waits for the other processes.

    Parts that an interrupted command left are used if it is to `resume`, or by the processes that torchrun starts
    again."""
    if parts.share.count > 1:
        import torch

        from regard.training.distributed import joined

        with joined(torch.device("cpu")) as ranks:
            yield ranks.wait
        return
    if parts.begun() and not resume:
        raise UsageError(
            f"{parts.folder} has what an interrupted command has translated; go on with --resume, or remove the folder"
        )
    if resume and not parts.begun():
        print("regard: there is nothing to resume; it begins anew", file=sys.stderr)
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        parts.settle()
        yield lambda: None
    finally:
        signal.signal(signal.SIGTERM, before)
        if parts.begun():
            print(
                f"regard: what is translated is kept in {parts.folder}; the same command with --resume goes on",
                file=sys.stderr,
            )
        else:
            parts.remove()


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)
