"""Questions about texts, whose answers are parts of the text: files as SQuAD has them (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import DataError


class Question(NamedTuple):
    """A question, the text to read, and the answers that count as right; none if the text does not have the answer.

    `begin` is where the first answer stands in the text.
    """

    question: str
    context: str
    answers: list[str]
    begin: int = 0


def read_questions(path: str | Path) -> Iterator[Question]:
    """The questions of a file in SQuAD's JSON (1.1 or 2.0; also .gz)."""
    place = Path(path)
    try:
        content = gzip.decompress(place.read_bytes()) if place.suffix == ".gz" else place.read_bytes()
        articles = json.loads(content)["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield _question(asked, paragraph["context"], path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: cannot be read as SQuAD's JSON ({type(error).__name__}: {error}); expected data > paragraphs > "
            "context, qas > question, answers > text, answer_start"
        ) from None


def _question(asked: dict[str, Any], context: str, path: str | Path) -> Question:
    answers = asked["answers"]
    if not answers:
        return Question(asked["question"], context, [])
    text, begin = answers[0]["text"], answers[0]["answer_start"]
    if context[begin : begin + len(text)] != text:
        raise DataError(
            f"{path}: the answer {text!r} of {asked['question']!r} does not stand at character {begin} of its context; "
            "correct answer_start"
        )
    return Question(asked["question"], context, [each["text"] for each in answers], begin)
