"""What the sentences of the phrasebook are made of, in no language yet, and what English makes of verbs."""

from __future__ import annotations

from typing import Any, NamedTuple

from regard.data.synthetic.phrasebook.morphology import PERSONS, PLURAL_THIRD, THIRD, Adjective, Name, Noun, Verb

ENGLISH_BE = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}

QUESTION_WORDS = ("who", "what", "where", "when", "why")


class Pronoun(NamedTuple):
    """A personal pronoun, as a subject (`I`) or as an object (`me`)."""

    english: str
    person: int = THIRD
    feminine: bool = False


class Named(NamedTuple):
    """One person or city, or two people joined by `and`."""

    names: tuple[Name, ...]


class NounPhrase(NamedTuple):
    """A noun with what surrounds it; an owner (`Ana's`) stands instead of a determiner."""

    noun: Noun
    plural: bool = False
    determiner: str = ""
    owner: NounPhrase | Named | None = None
    adjective: Adjective | None = None
    relative: Clause | None = None


Nominal = Pronoun | Named | NounPhrase


class Time(NamedTuple):
    """When: `word` (tomorrow), `in` a month, `on` a weekday or a date, `at` an hour, `every`, `last` or `next` day."""

    how: str
    what: Any
    day: int = 0


class Place(NamedTuple):
    """Where: a preposition, by its key in the lexicon, and what follows it."""

    preposition: str
    nominal: Nominal


class Clause(NamedTuple):
    """Who does what to whom, where and when.

    A `verb` of None is `to be`, and with an object `there is`; a subject of None is the missing one of a relative
    clause or of a question with `who`."""

    subject: Nominal | None
    verb: Verb | None
    tense: str
    negated: bool = False
    object: Nominal | None = None
    recipient: Nominal | None = None
    adjective: Adjective | None = None
    place: Place | None = None
    time: Time | None = None
    question: str = ""  # `whether` or the question word


def person_of(nominal: Nominal) -> int:
    """Which of the five verb forms a subject asks for."""
    if isinstance(nominal, Pronoun):
        return nominal.person
    many = nominal.plural if isinstance(nominal, NounPhrase) else len(nominal.names) > 1
    return PLURAL_THIRD if many else THIRD


def agreement_of(nominal: Nominal, language: str) -> int:
    """Which of the four forms an adjective takes: masculine, feminine, and their plurals."""
    if isinstance(nominal, Pronoun):
        feminine = nominal.feminine
    elif isinstance(nominal, Named):
        feminine = all(name.feminine for name in nominal.names)
    else:
        feminine = nominal.noun.feminine[language]
    return feminine + 2 * (person_of(nominal) >= PERSONS.index("we"))


def is_person(nominal: Nominal | None) -> bool:
    """Whether Spanish puts its personal `a` before this object."""
    if isinstance(nominal, NounPhrase):
        return nominal.noun.kind in ("person", "kin")
    return isinstance(nominal, Named) and not nominal.names[0].is_city


def is_place(nominal: Nominal | None) -> bool:
    """Whether this object is itself a place, so that no other place goes with it."""
    if isinstance(nominal, NounPhrase):
        return nominal.noun.kind in ("place", "sight")
    return isinstance(nominal, Named) and nominal.names[0].is_city


def english_article(following: str) -> str:
    """`a` or `an`, by the sound of what follows: an apple, an American, a university."""
    return "an" if following[0] in "aeiouA" and not following.startswith("uni") else "a"


def english_verb(clause: Clause, person: int) -> tuple[str, str]:
    """The English auxiliary, empty where there is none, and the main verb."""
    tense = clause.tense
    if clause.verb is None:
        return ("will", "be") if tense == "future" else (ENGLISH_BE[tense][person], "")
    forms, third = clause.verb.english, person == THIRD
    if tense == "future":
        return "will", forms["base"]
    if tense == "perfect":
        return "has" if third else "have", forms["participle"]
    if tense in ("progressive", "soon"):
        return ENGLISH_BE["present"][person], forms["gerund"]
    if clause.negated or (clause.question and clause.subject is not None):
        return "did" if tense == "past" else "does" if third else "do", forms["base"]
    return "", forms["past" if tense == "past" else "third" if third else "base"]
