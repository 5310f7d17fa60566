"""Checks of the texts that callers pass; anything else is an error of one line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.data.images.files import SUFFIXES
from regard.errors import UsageError

LONGEST_PATH = 255  # characters; operating systems reject longer file names


def all_texts(given: object) -> list[str]:
    """One text or several, as a list."""
    texts: list[Any] = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"expected a text or a list of texts; {text!r:.60} came, of type {type(text).__name__}")
    return texts


def refuse_images(texts: Iterable[str]) -> None:
    """Refuse an image file where a text is expected: its path would be read as the text."""
    for text in texts:
        if text.lower().endswith(SUFFIXES) and len(text) <= LONGEST_PATH and Path(text).is_file():
            raise UsageError(f"{text} is the file of an image, but this model reads texts; choose a model of images")


def refuse_missing_image(text: str) -> None:
    """Refuse the name of an image that does not exist where nobody would mean it as a text: with a typo in its name, a
    file would otherwise be looked at as the text of its name."""
    if text.lower().endswith(SUFFIXES) and len(text.split()) == 1 and not Path(text).exists():
        raise UsageError(f"{text}: there is no such image, and this model reads texts; choose a model of images")
