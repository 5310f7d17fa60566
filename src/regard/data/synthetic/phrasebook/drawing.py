"""Draws random clauses of the phrasebook and joins them to sentences of about a wanted length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from regard.data.synthetic.phrasebook.grammar import (
    Clause,
    Named,
    Nominal,
    NounPhrase,
    Place,
    Pronoun,
    Time,
    is_person,
    is_place,
)
from regard.data.synthetic.phrasebook.interpreter import Interpreter
from regard.data.synthetic.phrasebook.morphology import FRAMES, Lexicon, Name, Noun, Tongue, Verb

Item = TypeVar("Item")

SPEAKERS = (Pronoun("I", 0), Pronoun("you", 1), Pronoun("we", 3))
SUBJECTS = (*SPEAKERS, *SPEAKERS, Pronoun("he"), Pronoun("she", feminine=True), Pronoun("they", 4))
ANYONE = tuple(Pronoun(word) for word in ("me", "you", "him", "her", "us", "them"))
IT, THEM = Pronoun("it"), Pronoun("them")
REFLEXIVE = {("I", "me"), ("I", "us"), ("we", "me"), ("we", "us"), ("you", "you")}

OWNERS = ("my", "your", "his", "her", "our", "their")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MASS = ("the",) * 4 + OWNERS
KNOWN_ONE, KNOWN_MANY = (*MASS, "this", "this"), (*MASS, "these", "these")
ONE, MANY = KNOWN_ONE + ("a",) * 5, (*KNOWN_MANY, "many", *NUMBERS)
BARE = ("",) * 6
DETERMINERS: dict[tuple[str, str], tuple[str, ...]] = {  # an object may be bare, what is described is known
    **{("mass", role): MASS for role in ("subject", "described")},
    **{("one", role): ONE for role in ("subject", "object")},
    ("mass", "object"): MASS + BARE,
    ("many", "object"): MANY + BARE,
    ("many", "subject"): MANY,
    ("one", "described"): KNOWN_ONE,
    ("many", "described"): KNOWN_MANY,
}
NEVER_BARE = ("person", "kin", "place", "sight")

FRAME_NAMES = tuple(FRAMES)
CONNECTIVES = {
    "past": ("and", "but", "because", "so", "although", "when"),
    "present": ("and", "but", "because", "so", "although", "when", "if", "while"),
    "future": ("and", "but", "because", "so", "although"),
}
OPENERS = {"past": ("", "when"), "present": ("when", "if", "while"), "future": ("",)}
AFTER_COMMA = ("but", "so", "although")
SHORT_CLAUSE, RICH_CLAUSE, LONG_QUESTION = 5, 11, 14  # English words


def draw_sentence(random: Callable[[], float], words: Lexicon, tongue: Tongue, length: int) -> Interpreter:
    """A sentence of about `length` English words: clauses of one time frame, joined until it is long enough."""
    speech, draw = Interpreter(tongue), Drawing(random, words)
    frame = draw.pick(FRAME_NAMES)

    def left() -> int:
        return length - len(speech.english)

    def state(connective: str, comma: bool = False) -> None:
        draw.spread(left())
        speech.add(connective, draw.statement(frame), comma)

    if length <= LONG_QUESTION and random() < 0.25:
        draw.spread(length)
        speech.add("", draw.question(frame))
        if left() >= SHORT_CLAUSE and frame != "future":
            state("when")
        return speech
    connective = draw.pick(OPENERS[frame]) if length >= 2 * SHORT_CLAUSE and random() < 0.2 else ""
    state(connective)
    if connective:
        state("", comma=True)
    while left() >= SHORT_CLAUSE:
        connective = draw.pick([word for word in CONNECTIVES[frame] if word != connective])
        comma = connective in AFTER_COMMA
        if frame == "present" and left() > 2 * SHORT_CLAUSE and random() < 0.15:
            speech.add(connective, draw.report(), comma)
            connective, comma = "that", False
        state(connective, comma)
    return speech


class Drawing:
    """Random parts of a clause; `richness`, from 0 to 1, scales the chance of every part that could be left out."""

    def __init__(self, random: Callable[[], float], words: Lexicon, richness: float = 0.0):
        self.random, self.words, self.richness = random, words, richness

    def spread(self, room: int) -> None:
        """Let the next clause use the words that are left."""
        self.richness = min(1.0, max(0.0, (room - 3) / (RICH_CLAUSE - 3)))

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def extra(self, chance: float, always: float = 0.0) -> bool:
        """Whether to add an optional part."""
        return self.random() < always + chance * self.richness

    def statement(self, frame: str) -> Clause:
        """A clause with a verb of action, with `to be`, or with `there is`."""
        kind = self.random()
        if kind < 0.08 * self.richness and frame != "future":
            return self.there(frame)
        return self.being(frame) if kind > 0.8 else self.action(frame)

    def question(self, frame: str) -> Clause:
        """A yes/no question, or one that asks for a part of the clause."""
        clause = self.being(frame) if self.random() < 0.15 else self.action(frame)._replace(negated=False)
        kinds = ["whether", "whether", "why"]
        if clause.verb is None:
            kinds += ["where", "where"] if clause.place else []
        else:
            kinds += ["who"]
            kinds += ["where"] if not clause.verb.way and not is_place(clause.object) else []
            kinds += ["when"] if clause.time is None and clause.tense in ("past", "future") else []
            if isinstance(clause.object, NounPhrase) and clause.object.determiner and not is_person(clause.object):
                kinds += ["what", "what"]
        kind = self.pick(kinds)
        if isinstance(clause.subject, NounPhrase):
            clause = clause._replace(subject=clause.subject._replace(relative=None))
        if kind == "what":
            clause = clause._replace(object=None)
        elif kind == "where":
            clause = clause._replace(place=None)
        elif kind == "who":
            clause = clause._replace(subject=None)
        return clause._replace(question=kind)

    def report(self) -> Clause:
        """What `that` follows: Ana knows."""
        subject = self.pick(SUBJECTS) if self.random() < 0.5 else self.person()
        return Clause(subject, self.pick(self.words.reports), "present")

    def there(self, frame: str) -> Clause:
        """Something is somewhere."""
        noun = self.pick(self.words.nouns[self.pick(("object", "animal", "person"))])
        plural = self.random() < 0.5
        what = self.phrase(noun, plural, ("many", *NUMBERS) if plural else ("a",))
        return Clause(None, None, frame, object=what, place=self.place(self.words.places))

    def being(self, frame: str) -> Clause:
        """Someone is somewhere, or something is as an adjective says."""
        negated = self.extra(0.2)
        if self.extra(0.4):
            return Clause(self.subject(), None, frame, negated, place=self.place(self.words.places))
        kind = self.pick(self.words.described)
        subject = self.subject() if kind == "person" else self.noun(self.pick(self.words.nouns[kind]), "described")
        return Clause(subject, None, frame, negated, adjective=self.pick(self.words.adjectives[kind]))

    def action(self, frame: str) -> Clause:
        """Someone does something."""
        verb = self.pick(self.words.verbs[frame])
        tense = self.pick(verb.tenses[frame])
        subject = self.subject()
        target = self.object(verb, subject) if verb.objects else None
        recipient = place = time = None
        if verb.recipient and isinstance(target, NounPhrase) and self.extra(0.7):
            recipient = self.person()
        if verb.needs_place or (self.extra(0.3) and not is_place(target)):
            place = self.place(verb.places, verb.way)
        if tense == "soon" or (tense != "perfect" and self.extra(0.5, always=0.1)):
            time = self.time(tense)
        negated = self.extra(0.25)
        if isinstance(target, NounPhrase) and (recipient or place or time or negated):
            target = target._replace(relative=None)  # what follows would seem to belong to it
        return Clause(subject, verb, tense, negated, target, recipient, None, place, time)

    def subject(self) -> Nominal:
        """A pronoun, a name, two names, or a noun phrase."""
        kind = self.random()
        if kind < 0.4:
            return self.pick(SUBJECTS)
        if kind < 0.5 and self.extra(0.8):
            first, second = self.pick(self.words.people), self.pick(self.words.people)
            return Named((first,) if first is second else (first, second))
        return self.person()

    def person(self) -> Nominal:
        """Somebody: a name or a noun phrase."""
        if not self.extra(0.4, always=0.2):
            return Named((self.pick(self.words.people),))
        return self.noun(self.pick(self.words.nouns[self.pick(("person", "kin"))]), "subject")

    def object(self, verb: Verb, subject: Nominal) -> Nominal:
        """A pronoun, a city or person, or a noun phrase that suits the verb."""
        word = self.pick(self.pick(verb.objects))
        if isinstance(word, Name):
            return Named((word,))
        if word.number == "bare" or self.random() > 0.2:
            return self.noun(word, "subject" if word.kind in NEVER_BARE else "object")
        if word.kind not in ("person", "kin"):
            return THEM if word.number == "both" and self.random() < 0.4 else IT
        pronoun = self.pick(ANYONE)
        same = isinstance(subject, Pronoun) and (subject.english, pronoun.english) in REFLEXIVE
        return THEM if same else pronoun

    def noun(self, noun: Noun, role: str) -> NounPhrase:
        """A noun phrase as a `subject`, an `object`, or what is `described`."""
        if noun.number == "bare":
            return NounPhrase(noun)
        plural = noun.number == "both" and self.random() < 0.35
        number = "mass" if noun.number == "mass" else "many" if plural else "one"
        phrase = self.phrase(noun, plural, OWNERS if noun.kind == "kin" else DETERMINERS[number, role])
        if phrase.determiner == "the" and self.extra(0.3):
            return phrase._replace(relative=self.relative(noun))
        return phrase

    def phrase(self, noun: Noun, plural: bool, determiners: Sequence[str]) -> NounPhrase:
        """A noun with its determiner or owner, and perhaps an adjective."""
        determiner = self.pick(determiners)
        owner: Named | NounPhrase | None = None
        if determiner in OWNERS and not noun.owned:
            determiner = "the"
        elif determiner in OWNERS and self.random() < 0.3:
            determiner, owner = "", Named((self.pick(self.words.people),))
            if self.extra(0.4):
                owner = NounPhrase(self.pick(self.words.nouns["person"]), determiner="the")
        beside = self.words.beside[noun.kind]
        adjective = self.pick(beside) if beside and self.extra(0.4, always=0.05) else None
        return NounPhrase(noun, plural, determiner, owner, adjective)

    def relative(self, noun: Noun) -> Clause:
        """`who` does something, for people; `that` somebody does something to, for the rest."""
        simple, tense = Drawing(self.random, self.words), self.pick(("present", "past"))
        if noun.kind == "person":
            return simple.action(tense)._replace(subject=None, tense=tense, negated=False, time=None)
        return Clause(simple.subject(), self.pick(self.words.takers[noun]), tense)

    def place(self, places: Sequence[Sequence[Noun | Name]], way: str = "") -> Place:
        """A city, or a place with its own preposition unless the verb asks for another."""
        word = self.pick(self.pick(places))
        if isinstance(word, Name):
            return Place(way or "in", Named((word,)))
        return Place(way or word.at, self.phrase(word, False, ONE if word.number == "both" else ("the",)))

    def time(self, tense: str) -> Time:
        """A time that suits the tense."""
        if tense == "progressive":
            return Time("word", self.pick(("now", "today")))
        if tense == "present":
            return Time("every", self.pick(self.words.every))
        how = self.pick(("word", "near", "in", "on", "date", "at"))
        past = tense == "past"
        if how == "word":
            return Time("word", "yesterday" if past else "tomorrow")
        if how == "near":
            return Time("last" if past else "next", self.pick(self.words.days))
        if how == "at":
            return Time("at", self.pick(NUMBERS))
        if how == "on":
            return Time("on", self.pick(self.words.weekdays))
        month = self.pick(self.words.months)
        return Time("in", month) if how == "in" else Time("on", month, day=2 + int(27 * self.random()))
