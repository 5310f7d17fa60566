"""Word and character error rates by jiwer, of normalised text: case and punctuation do not count."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

NORMALISATION = "NFKC, lower case, no punctuation"  # printed beside every rate
NO_WORD = re.compile(r"[^\w\s']|_|(?<!\w)'|'(?!\w)")  # punctuation, except apostrophes within words


class ErrorRates(NamedTuple):
    """Errors per word (WER) and per character (CER) of the references, the kinds of word errors, and the share of
    texts that are not exactly right. Rates are above 1 if too much was heard."""

    wer: float
    cer: float
    words: int  # of the references
    substitutions: int
    deletions: int  # words of the references that are missing
    insertions: int
    wrong_texts: float


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """The error rates of pairs of texts, of which there is at least one, after normalisation."""
    import jiwer

    said, heard = ([normalise(text) for text in texts] for texts in (references, hypotheses))
    words = jiwer.process_words(said, heard)
    wrong = sum(one != other for one, other in zip(said, heard, strict=True))
    return ErrorRates(
        wer=float(words.wer),
        cer=float(jiwer.process_characters(said, heard).cer),
        words=words.hits + words.substitutions + words.deletions,
        substitutions=words.substitutions,
        deletions=words.deletions,
        insertions=words.insertions,
        wrong_texts=wrong / len(said),
    )


def normalise(text: str) -> str:
    """A text in lower case without punctuation, as error rates are usually reported."""
    return " ".join(NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).split())
