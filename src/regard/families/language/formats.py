"""Texts with something to say of each: tables of labels, SQuAD's questions, CoNLL's tagged words, built-in facts."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from regard.data.formats.lines import read_lines, refuse
from regard.data.sources import Part
from regard.errors import DataError

Place = str | int  # a column: its name in the header, or its index if there is no header


class Example(NamedTuple):
    """A text, the second text of a pair (else empty), and the index of its label or its numeric value."""

    text: str
    pair: str
    target: float


@dataclass(frozen=True)
class Table:
    """The columns of texts and labels in a table; without `labels` the label column has numbers."""

    text: Place
    pair: Place | None
    label: Place
    labels: Sequence[str]

    def read(self, path: str | Path) -> Iterator[Example]:
        """The rows of a file (also .gz)."""
        lines = enumerate(read_lines(path, refuse), 1)
        wanted = (self.text, self.label) if self.pair is None else (self.text, self.label, self.pair)
        header = next(lines, (0, ""))[1].split("\t") if any(isinstance(place, str) for place in wanted) else None
        columns = [_column(place, header, path) for place in wanted]
        for number, line in lines:
            cells = line.split("\t")
            if not line.strip():
                continue
            if len(cells) <= max(columns):
                raise DataError(
                    f"{path}, line {number}: {len(cells)} columns, but column {max(columns) + 1} is needed; "
                    "columns are separated by tabs"
                )
            text, label, *pair = (cells[column] for column in columns)
            yield Example(text, pair[0] if pair else "", target_of(label, self.labels, f"{path}, line {number}"))


def target_of(label: str, labels: Sequence[str], where: str) -> float:
    """The number of a label, or a value where there are no labels; `where` names its line in errors."""
    label = label.strip()
    if labels:
        if label not in labels:
            raise DataError(f"{where}: the label {label!r} is none of the model's (data.labels): {', '.join(labels)}")
        return float(labels.index(label))
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {label!r} is not a number; if it is a label, list the labels in data.labels")
    return value


def _column(place: Place, header: Sequence[str] | None, path: str | Path) -> int:
    if isinstance(place, int):
        return place
    if header is None or place not in header:
        raise DataError(f"{path}: there is no column {place!r}; the first line has {', '.join(header or ())}")
    return header.index(place)


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


BEGINS_DOCUMENT = "-DOCSTART-"  # CoNLL 2003 writes it where a document begins; it is no word


class TaggedText(NamedTuple):
    """The words of a text and the tag of each."""

    words: list[str]
    tags: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read_tagged(path: str | Path, column: int | None = None) -> Iterator[TaggedText]:
    """The texts of a file (also .gz). Columns are separated by tabs or spaces; the first has the words, and `column`,
    or else the last, the tags."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path, refuse), 1):
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == BEGINS_DOCUMENT:
            if words:
                yield TaggedText(words, tags)
            words, tags = [], []
            continue
        place = len(cells) - 1 if column is None else column
        if not 0 < place < len(cells) or len(cells[0].split()) != 1 or not cells[place].strip():
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns; expected one word in the first and its tag in "
                f"{'the last' if column is None else f'column {column}, from 0'}, separated by a tab or spaces"
            )
        words.append(cells[0].strip())
        tags.append(cells[place].strip())
    if words:
        yield TaggedText(words, tags)


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """The phrases that tags B-KIND, I-KIND, O mark: kind, first word, word after the last.

    A phrase also begins at an I-KIND after another kind or after O, as CoNLL's own scorer reads it. Tags without such a
    prefix are phrases of one word, but for O.
    """
    found, kind, begin = set[tuple[str, int, int]](), "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        marked = prefix in ("B", "I") and bool(name)
        goes_on = prefix == "I" and marked and name == kind
        if kind and not goes_on:
            found.add((kind, begin, place))
            kind = ""
        if marked and not goes_on:
            kind, begin = name, place
        elif not marked and tag != "O":
            found.add((tag, place, place + 1))
    return found


# Built-in facts: short texts about people, places and times. Each tells three facts. Nobody and no place is told of
# twice, so that every question has one answer, which can only be found by reading which fact the question is about.

FACTS = "builtin:facts"
TOLD = 3  # facts of a text
FIRST = "Anna Ben Carla David Elena Felix Grace Hugo Irene Jonas Karin Lucas Maria Nina Oscar Paula Rosa Simon"
FAMILY = "Adler Brandt Costa Duarte Evans Fischer Gomez Hansen Ivanov Jensen Keller Lopez Moreau Novak Olsen"
PLACES = (
    "Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Havana", "Kyoto", "Lima", "Madrid", "New York", "Oslo", "Paris",
    "Rio de Janeiro", "San Francisco", "Sydney", "Tokyo", "Vienna",
)  # fmt: skip
MONTHS = "January February March April May June July August September October November December"


class Fact(NamedTuple):
    """A sentence with slots for a person, a place and a time, and a question for some of them."""

    sentence: str
    questions: dict[str, str]


KINDS = (
    Fact("PER lives in LOC .", {"LOC": "Where does PER live ?", "PER": "Who lives in LOC ?"}),
    Fact("PER moved to LOC in TIME .", {"LOC": "Where did PER move to ?", "TIME": "When did PER move ?"}),
    Fact("In TIME PER visited LOC .", {"TIME": "When did PER visit LOC ?", "PER": "Who visited LOC ?"}),
    Fact("PER was born in LOC .", {"LOC": "Where was PER born ?", "PER": "Who was born in LOC ?"}),
    Fact("The train to LOC leaves in TIME .", {"TIME": "When does the train to LOC leave ?"}),
)


class Text(NamedTuple):
    """A text with the tag of each word, and a question about it."""

    tagged: TaggedText
    question: Question


def facts(part: Part, count: int, seed: int) -> Iterator[Text]:
    """Texts of one part; a hash of the text decides its part (5 % test, 5 % valid), so that none is in two parts."""
    random, found = Random(f"{part} {seed}"), 0
    while found < count:
        text = _draw(random)
        if {0: "test", 1: "valid"}.get(crc32(text.tagged.text.encode()) % 20, "train") == part:
            found += 1
            yield text


def _draw(random: Random) -> Text:
    places, months = random.sample(PLACES, TOLD), random.sample(MONTHS.split(), TOLD)
    people = [f"{first} {random.choice(FAMILY.split())}" for first in random.sample(FIRST.split(), TOLD)]
    told = [
        (random.choice(KINDS), {"PER": who, "LOC": where, "TIME": when})
        for who, where, when in zip(people, places, months, strict=True)
    ]
    words, tags, begins = list[str](), list[str](), list[dict[str, int]]()
    for kind, slots in told:
        begins.append({})
        for word in kind.sentence.split():
            begins[-1][word] = len(" ".join(words)) + bool(words)
            filled = slots[word].split() if word in slots else [word]
            words += filled
            tags += [f"{'I' if number else 'B'}-{word}" if word in slots else "O" for number in range(len(filled))]
    number = random.randrange(TOLD)
    kind, slots = told[number]
    slot = random.choice(sorted(kind.questions))
    asked = " ".join(slots.get(word, word) for word in kind.questions[slot].split())
    tagged = TaggedText(words, tags)
    return Text(tagged, Question(asked, tagged.text, [slots[slot]], begins[number][slot]))
