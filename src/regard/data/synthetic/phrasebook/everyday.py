"""Draws what people say every day: greetings, courtesies, introductions, questions, orders, wishes, and combinations.

Names, and now and then a noun, are made up: a translator that has met a thousand unknown names learns to copy one."""

from __future__ import annotations

from collections.abc import Callable

from regard.data.synthetic.phrasebook.drawing import (
    SUBJECTS,
    add_sentence,
)
from regard.data.synthetic.phrasebook.grammar import (
    Clause,
    Named,
    Nominal,
    Pronoun,
    Time,
)
from regard.data.synthetic.phrasebook.interpreter import SILENT, Interpreter, Word
from regard.data.synthetic.phrasebook.morphology import (
    Lexicon,
    Modal,
    Pattern,
    Tongue,
)
from regard.data.synthetic.phrasebook.slots import Slots

# What a sentence is about: the patterns of a topic, or, where there is none of that name, a clause of the grammar.
TOPICS = (
    ("introductions", 15), ("shopping", 11), ("eating", 13), ("travelling", 21), ("times", 8), ("asking", 12),
    ("wishing", 10), ("health", 7), ("requests", 9), ("courtesies", 9), ("short", 4), ("being", 16), ("wish", 16),
    ("orders", 9), ("modal", 20), ("report", 7), ("comparison", 6), ("clause", 100),
)  # fmt: skip
DRAWN = tuple(name for name, share in TOPICS for _ in range(share))
GREETED, NAMED, OPENED, CLOSED, FOLLOWED, ALONE = 0.1, 0.05, 0.1, 0.1, 0.04, 0.06
POLITE = ("requests", "orders", "wish", "modal", "eating", "travelling", "shopping")


def draw_everyday(random: Callable[[], float], words: Lexicon, tongue: Tongue, length: int) -> tuple[Interpreter, bool]:
    """One or two everyday sentences of at most about `length` words; and whether they are set phrases alone, of which
    there are too few to hold some back."""
    speech, draw = Interpreter(tongue), Everyday(random, words)
    return speech, draw.talk(speech, length)


class Everyday(Slots):
    """Random everyday sentences."""

    def talk(self, speech: Interpreter, length: int) -> bool:
        if self.random() < ALONE:
            return self.greeting(speech)
        greeted = self.random() < GREETED
        if greeted:
            self.greeted(speech)
        topic = self.pick(DRAWN)
        opened = self.random() < OPENED
        if opened:
            self.opening(speech, topic)
        fixed = self.sentence(speech, topic, length) and not opened and not greeted
        mark, end = self.mark, len(speech.english)
        if self.random() < (2 * CLOSED if topic in POLITE else CLOSED / 2):
            speech.comma()
            self.phrase_of(speech, "closers")
        elif self.random() < NAMED:
            speech.comma()
            speech.words += speech.nominal(Named((self.someone(),)))
        fixed = fixed and len(speech.english) == end
        speech.end(mark)
        if self.random() < FOLLOWED:
            self.say(speech, self.pick(self.words.patterns[self.pick(("farewells", "courtesies", "asking"))]))
            speech.end(self.mark)
            fixed = False
        return fixed

    def opening(self, speech: Interpreter, topic: str) -> None:
        """What comes before a sentence: a word and a comma, or `please` without one, as English often has it."""
        if topic not in ("requests", "orders") and self.random() < 0.7:
            self.phrase_of(speech, "openers")
            speech.pause()
            return
        please = speech.say("please")
        speech.words += [Word("por", please), Word("favor,", please)]
        speech.opened = len(speech.words)
        if self.random() < 0.3:
            speech.english[-1] += ","

    def greeting(self, speech: Interpreter) -> bool:
        """A greeting, a farewell or a courtesy, alone or with a name."""
        pattern = self.pick(self.words.patterns[self.pick(("greetings", "farewells", "courtesies", "asking", "short"))])
        self.say(speech, pattern)
        named = self.random() < 0.4
        if named:
            speech.comma()
            speech.words += speech.nominal(Named((self.someone(),)))
        speech.end(self.mark)
        return not named and not pattern.slots

    def greeted(self, speech: Interpreter) -> None:
        """A greeting before something else: `hello, `, `hello, Ana. `, `thank you! `."""
        self.phrase_of(speech, "greetings" if self.random() < 0.7 else "courtesies")
        named, pause = self.random() < 0.3, self.random() < 0.5
        if named:
            speech.comma()
            speech.words += speech.nominal(Named((self.someone(),)))
        if pause and self.mark != "?":
            speech.pause()
        else:
            speech.end(self.mark if self.random() < 0.5 else ".")

    def sentence(self, speech: Interpreter, topic: str, length: int) -> bool:
        """Say a sentence without ending it, and keep its mark; tell whether it is a set phrase with nothing to fill."""
        if topic in self.words.patterns:
            pattern = self.pick(self.words.patterns[topic])
            self.say(speech, pattern)
            return not pattern.slots
        self.mark = "."
        if topic == "clause":
            share = self.random() if self.random() < 0.5 else 1.0
            early = not speech.english and length > 3 and self.random() < 0.06
            if early:
                self.early(speech)
            add_sentence(speech, self, len(speech.english) + 2 + int((length - 2) * share), "past" if early else "")
            ended = speech.sentences.pop()  # something may follow it
            self.mark, speech.opened = ended.mark, ended.opened
            return False
        if topic == "report":
            self.opinion(speech)
            return False
        drawn = {"being": self.described, "wish": self.wish, "modal": self.wanting, "comparison": self.compared}
        clause = drawn[topic]()
        if self.random() < 0.3:
            clause, self.mark = self.asked(clause), "?"
        speech.add("", clause)
        return False

    def opinion(self, speech: Interpreter) -> None:
        """What someone says, thinks or knows, with `that` or, as English mostly has it, without."""
        say, know, think = self.words.reports
        subject = SUBJECTS[0] if self.random() < 0.5 else self.subject()
        speech.add("", Clause(subject, self.pick((say, know, think, think, think)), "present"))
        clause = self.pick((self.described, self.described, self.wish, self.wanting))()
        speech.add("that" if self.random() < 0.4 else SILENT, clause)

    def early(self, speech: Interpreter) -> None:
        """When, before the sentence: `yesterday`, `last week`."""
        if self.random() < 0.6:
            speech.words += speech.translate(self.pick(("yesterday", "yesterday", "last night", "this morning")))
        else:
            speech.words += speech.time(Time("last", self.pick(self.words.days)))
        if self.random() < 0.4:
            speech.pause()

    def say(self, speech: Interpreter, pattern: Pattern) -> None:
        speech.pattern(pattern, {slot: self.fill(slot) for slot in pattern.slots})
        self.mark = pattern.mark

    def phrase_of(self, speech: Interpreter, use: str) -> None:
        self.say(speech, self.pick([pattern for pattern in self.words.patterns[use] if not pattern.slots]))

    # ------------------------------------------------------------------------------------------------------- clauses

    def described(self) -> Clause:
        """Someone feels something or has a profession; something is very or too much so."""
        kind, frame = self.random(), "past" if self.random() < 0.2 else "present"
        negated = self.random() < 0.15
        if kind < 0.3:
            return Clause(self.subject(), None, frame, negated, adjective=self.pick(self.words.feelings))
        if kind < 0.5:
            return Clause(self.subject(), None, frame, negated, adjective=self.pick(self.words.jobs))
        clause = self.being(frame)
        if clause.adjective is None:
            return clause
        return clause._replace(degree=self.pick(("very", "very", "too", "", "", "")))

    def compared(self) -> Clause:
        """Something is more so than something else."""
        adjective = self.pick(self.words.comparisons)
        kind = self.pick(sorted(adjective.of))
        subject: Nominal = self.noun(self.pick(self.words.nouns[kind]), "described")
        other: Nominal = self.noun(self.pick(self.words.nouns[kind]), "described")
        if kind in ("person", "kin") and self.random() < 0.5:
            subject = self.subject()
        elif kind == "place" and self.random() < 0.3:
            other = Named((self.city(),))
        return Clause(subject, None, "present", self.random() < 0.1, adjective=adjective, than=other)

    def wish(self) -> Clause:
        """Someone likes, needs, wants or has something."""
        verb = self.pick(self.words.wishes)
        thing = self.noun_for(verb)
        subject = self.pick(SUBJECTS[:3]) if self.random() < 0.5 else self.subject()
        return Clause(subject, verb, "present", self.random() < 0.2, thing)

    def wanting(self) -> Clause:
        """Someone wants, has or is able to do something."""
        modal: Modal = self.pick(self.words.modals)
        clause = self.doing(pronouns=True)
        time = Time("word", self.pick(("now", "today", "tomorrow"))) if self.random() < 0.2 else None
        subject = self.pick(SUBJECTS[:3]) if self.random() < 0.6 else self.subject()
        if isinstance(clause.object, Pronoun) and isinstance(subject, Pronoun):
            clause = clause._replace(object=Pronoun("it" if self.random() < 0.7 else "them"))
        return clause._replace(subject=subject, modal=modal, negated=self.random() < 0.15, time=time)

    def asked(self, clause: Clause) -> Clause:
        """The clause as a question."""
        if clause.modal is not None and self.random() < 0.4:
            kinds = ["why"] if clause.verb and (clause.verb.way or clause.place) else ["where", "why", "when"]
            kind = self.pick(kinds)
            return clause._replace(question=kind, negated=False, time=clause.time if kind == "why" else None)
        return clause._replace(question="whether", negated=False)
