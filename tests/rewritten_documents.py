"""Documents translated by upper case, so that a test sees what was taken for words."""

from pathlib import Path

from regard.documents.document_job import Report
from regard.documents.translate import translate_document


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def rewrite(folder: Path, name: str, raw: bytes, translate=shout, **options) -> tuple[bytes, Report]:
    path, out = folder / name, folder / f"out.{name}"
    path.write_bytes(raw)
    report = translate_document(path, out, translate, "en", "de", **options)
    return out.read_bytes(), report
