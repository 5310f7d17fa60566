"""Message files: their texts, each with its place, are translated and written back; everything else is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from regard.documents.document_job import DocumentJob, batches
from regard.documents.icu_messages import has_letters, translate_messages


class Edit(NamedTuple):
    """A part of a file to replace."""

    start: int
    end: int
    text: str


class FoundText(NamedTuple):
    """A text of a file, as people read it, and its place in the file."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text with its edits, which do not overlap."""
    parts, done = [], 0
    for start, end, new in sorted(edits):
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def translated_edits(
    job: DocumentJob, found: Sequence[FoundText], write: Callable[[FoundText, str], str]
) -> list[Edit]:
    """The edits that translate texts; `write` spells a translation. A text without letters is left as it is."""
    todo = [each for each in found if has_letters(each.text)]
    edits = []
    for batch in batches(todo):
        done = translate_messages([each.text for each in batch], job.translate)
        edits += [Edit(each.start, each.end, write(each, new))
                  for each, new in zip(batch, done, strict=True) if new != each.text]  # fmt: skip
    job.report.translated += len(todo)
    return edits
