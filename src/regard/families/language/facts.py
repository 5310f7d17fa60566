"""Short texts about people, places and times, for models that tag words or answer questions about a text.

Each text tells three facts. Nobody and no place is told of twice, so that every question has one answer, which can only
be found by reading which fact the question is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple
from zlib import crc32

from regard.data.sources import Part
from regard.families.language.formats import Question, TaggedText

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
        if _part(text.tagged.text) == part:
            found += 1
            yield text


def _part(text: str) -> Part:
    return {0: "test", 1: "valid"}.get(crc32(text.encode()) % 20, "train")  # type: ignore[return-value]


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
