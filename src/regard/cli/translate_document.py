"""regard translate --input FILE --output FILE: a whole document, in its own format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.answering import unknown_to
from regard.cli.foreign import Foreign

if TYPE_CHECKING:
    from regard.documents.markup import Translated
    from regard.inference.pipelines.pivot import Pivot
    from regard.inference.pipelines.remembered import Remembered
    from regard.inference.pipelines.translation import Translation
    from regard.inference.pipelines.translator import Translator


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
    target_language: str,
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

    from regard.data.work_files import Parts
    from regard.documents.translate import translate_document, translate_in_processes
    from regard.training.distributed import joined

    def answers(texts: list[str]) -> list[Translated]:
        found = remembered.translate(texts, **changes)
        for each in found:
            unknown.note(each.source, each.unknown)
            foreign.note(each.source)
        return [_translated(each, quality=bool(review_below)) for each in found]

    unknown = unknown_to(translator, models, typed=False, unit="segments")
    languages = translator.tokenizer.source_language, target_language
    foreign = Foreign(*languages, typed=False, unit="segments")
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
