"""Says a sentence in English and in another language at the same time, and so knows which words belong together.

English is spoken from left to right, and each English word gets its number when it is said. A word of the other
language carries the numbers of the English words it translates, so it can be put in any order and keeps its links.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.data.formats.pairs import Pair
from regard.data.synthetic.phrasebook.grammar import (
    ENGLISH_BE,
    QUESTION_WORDS,
    Clause,
    Named,
    Nominal,
    NounPhrase,
    Place,
    Pronoun,
    Time,
    agreement_of,
    english_article,
    english_verb,
    is_person,
    person_of,
)
from regard.data.synthetic.phrasebook.morphology import PLURAL_THIRD, THIRD, Forms, Name, Tongue

Numbers = tuple[int, ...]
NONFINITE = {"progressive": "gerund", "soon": "infinitive", "perfect": "participle"}


class Word(NamedTuple):
    """A word of the other language, with the numbers of the English words it surely or possibly translates."""

    text: str
    sure: Numbers = ()
    possible: Numbers = ()


class Interpreter:
    """Says one sentence in English and gathers its words in another language."""

    def __init__(self, tongue: Tongue):
        self.tongue = tongue
        self.english: list[str] = []
        self.words: list[Word] = []
        self.asks = False

    def say(self, text: str) -> Numbers:
        """Say English words and number them; nothing said, no number."""
        start = len(self.english)
        if text and " " not in text:
            self.english.append(text)
            return (start,)
        self.english += text.split()
        return tuple(range(start, len(self.english)))

    def translate(self, text: str) -> list[Word]:
        """Say an English word that has one fixed translation, of one or more words."""
        numbers = self.say(text)
        return [Word(word, numbers) for word in self.tongue.words[text].split()]

    def lead(self, preposition: str, numbers: Numbers, phrase: list[Word], possible: Numbers = ()) -> list[Word]:
        """Put a preposition before a phrase and contract the two where the language does: de + el = del."""
        if not preposition:
            return phrase
        first, (*before, last) = phrase[0], preposition.split()
        leading = [Word(word, numbers, possible) for word in before]
        contracted = self.tongue.contractions.get(f"{last} {first.text}")
        if contracted is None:
            return [*leading, Word(last, numbers, possible), *phrase]
        return [*leading, Word(contracted, numbers + first.sure, possible + first.possible), *phrase[1:]]

    def add(self, connective: str, clause: Clause, comma: bool = False) -> None:
        """Say one more clause; connectives and commas stand in the same places in both languages."""
        if comma:
            self.english[-1] += ","
            self.words[-1] = self.words[-1]._replace(text=self.words[-1].text + ",")
        if connective:
            numbers = self.say(connective)
            self.words += [Word(text, numbers) for text in self.tongue.connectives[connective].split()]
        self.words += self.clause(clause)
        self.asks = self.asks or bool(clause.question)

    @property
    def source(self) -> str:
        """The English sentence."""
        return " ".join(self.english) + "?" * self.asks

    def pair(self) -> Pair:
        """The sentence in both languages, and its links."""
        texts = [word.text for word in self.words]
        for place, following in enumerate(texts[1:]):
            if texts[place] in self.tongue.softened and following.lower().startswith(("i", "hi")):
                texts[place] = self.tongue.softened[texts[place]]
        target = " ".join(texts)
        if self.asks:
            target = f"{self.tongue.opening}{target}?"
        sure = {(i, j) for j, word in enumerate(self.words) for i in word.sure}
        possible = sure | {(i, j) for j, word in enumerate(self.words) for i in word.possible}
        return Pair(self.source, target, tuple(sorted(sure)), self.tongue.code, tuple(sorted(possible)))

    def clause(self, clause: Clause, person: int = THIRD) -> list[Word]:
        """A clause: English inverts in questions and puts pronouns and `yet` last, where the others put them first."""
        subject = clause.subject
        if clause.verb is None and clause.object is not None:
            return self.there(clause)
        asked = self.translate(clause.question) if clause.question in QUESTION_WORDS else []
        person = person if subject is None else person_of(subject)
        forms = self.finite(clause)
        auxiliary_text, main_text = english_verb(clause, person)
        if clause.question:
            auxiliary = self.say(auxiliary_text)
            who, dropped = self.subject(clause, forms)
        else:
            who, dropped = self.subject(clause, forms)
            auxiliary = self.say(auxiliary_text)
        perfect = clause.tense == "perfect"
        before = self.translate("not") if clause.negated else self.translate("already") if perfect else []
        verbs = self.verb(clause, forms[person], auxiliary, self.say(main_text), dropped)
        clitic, rest = self.complements(clause)
        if perfect and clause.negated:
            before = self.translate("yet") + before
        if clause.time is not None:
            rest += self.time(clause.time)
        if not (asked and self.tongue.inverts):
            return [*asked, *who, *before, *clitic, *verbs, *rest]
        follows = [*rest, *who] if clause.adjective else [*who, *rest]
        return [*asked, *before, *clitic, *verbs, *follows]

    def complements(self, clause: Clause) -> tuple[list[Word], list[Word]]:
        """The clitic that goes before the verb, and all that follows it but the time."""
        tongue, clitic, rest = self.tongue, [], []
        if clause.adjective is not None and clause.subject is not None:
            agreement = agreement_of(clause.subject, tongue.code)
            quality = self.say(clause.adjective.english)
            rest = [Word(clause.adjective.forms[tongue.code][agreement], quality)]
        if isinstance(clause.object, Pronoun):
            clitic = [Word(tongue.clitics[clause.object.english], self.say(clause.object.english))]
        elif clause.object is not None:
            rest = self.nominal(clause.object)
            if is_person(clause.object):
                rest = self.lead(tongue.personal, (), rest, tuple(number for word in rest[:2] for number in word.sure))
        if clause.recipient is not None:
            rest += self.place(Place("to", clause.recipient))
        if clause.place is not None:
            rest += self.place(clause.place)
        return clitic, rest

    def finite(self, clause: Clause) -> Forms:
        """The five forms of the verb that agrees with the subject: the auxiliary, where the language has one."""
        tongue, tense = self.tongue, clause.tense
        if clause.verb is None:
            return tongue.copulas["estar" if clause.adjective is None or clause.adjective.state else "ser"][tense]
        if tense in tongue.auxiliaries:
            return tongue.auxiliaries[tense]
        return clause.verb.forms[tongue.code]["past" if tense == "perfect" else tense]

    def subject(self, clause: Clause, forms: Forms) -> tuple[list[Word], Numbers]:
        """The words of a subject; or, where the verb form alone names it, the number of the dropped pronoun."""
        subject = clause.subject
        if subject is None:
            return [], ()
        if not isinstance(subject, Pronoun):
            return self.nominal(subject), ()
        numbers = self.say(subject.english)
        guarding = self.tongue.guarded and isinstance(clause.object, Pronoun)
        if guarding or forms[subject.person] == forms[THIRD] or subject.person == PLURAL_THIRD:
            return [Word(self.tongue.words[subject.english], numbers)], ()
        return [], numbers

    def verb(self, clause: Clause, form: str, auxiliary: Numbers, main: Numbers, dropped: Numbers) -> list[Word]:
        """The finite verb and what follows it: a form that swallows the auxiliary is linked to both."""
        tongue, tense = self.tongue, clause.tense
        if clause.verb is not None and tense in tongue.auxiliaries:
            nonfinite = Word(clause.verb.forms[tongue.code][NONFINITE[tense]], main)
            soon = [Word(tongue.soon, (), auxiliary + main)] if tense == "soon" and tongue.soon else []
            return [Word(form, auxiliary, dropped), *soon, nonfinite]
        if clause.verb is None or tense in ("future", "perfect"):
            return [Word(form, auxiliary + main, dropped)]
        return [Word(form, main, auxiliary + dropped)]

    def nominal(self, nominal: Nominal) -> list[Word]:
        """A name, two names, or a noun phrase."""
        if isinstance(nominal, NounPhrase):
            return self.noun_phrase(nominal)
        assert isinstance(nominal, Named)
        words = self.name(nominal.names[0])
        for name in nominal.names[1:]:
            words += [Word(self.tongue.connectives["and"], self.say("and")), *self.name(name)]
        return words

    def name(self, name: Name) -> list[Word]:
        """A name, with the article that some cities keep."""
        numbers = self.say(name.english)
        article = name.articles[self.tongue.code]
        words = [Word(word, numbers) for word in name.forms[self.tongue.code]]
        return [Word(article, (), numbers), *words] if article else words

    def noun_phrase(self, phrase: NounPhrase) -> list[Word]:
        """Determiner, noun, adjective, owner, relative clause: the adjective and the owner cross the noun."""
        tongue, noun, adjective = self.tongue, phrase.noun, phrase.adjective
        agreement = noun.feminine[tongue.code] + 2 * phrase.plural
        words, after = self.determiner(phrase, agreement)
        quality = self.say(adjective.english) if adjective else ()
        numbers = self.say(noun.english[phrase.plural])
        head = [Word(word, numbers) for word in noun.forms[tongue.code][phrase.plural].split("_")]
        if adjective:
            form = adjective.forms[tongue.code][agreement]
            beside = [Word(tongue.before.get(form, form) if adjective.before else form, quality)]
            head = [*beside, *head] if adjective.before else [*head, *beside]
        if words and not (adjective and adjective.before):
            words[-1] = words[-1]._replace(text=self.article(words[-1].text, head[0].text))
        words += head + after
        if phrase.relative is not None:
            pronoun = "who" if phrase.relative.subject is None else "that"
            words.append(Word(tongue.words["that"], self.say(pronoun)))
            words += self.clause(phrase.relative, PLURAL_THIRD if phrase.plural else THIRD)
        return words

    def article(self, text: str, noun: str) -> str:
        """Spanish has a masculine article before a feminine noun that begins with a stressed a: el agua."""
        return self.tongue.stressed["articles"].get(text, text) if noun in self.tongue.stressed["nouns"] else text

    def determiner(self, phrase: NounPhrase, agreement: int) -> tuple[list[Word], list[Word]]:
        """What stands before a noun and what an owner leaves behind it: la casa de Ana, o livro dele."""
        tongue, determiner = self.tongue, phrase.determiner
        the = tongue.determiners["the"][agreement]
        if phrase.owner is not None:
            owner = self.nominal(phrase.owner)
            self.english[-1] += "'s"
            last = owner[-1].sure
            return [Word(the, (), last)], self.lead(tongue.prepositions["of"], (), owner, last)
        if not determiner:
            return [], []
        if determiner == "a":
            following = phrase.adjective.english if phrase.adjective else phrase.noun.english[0]
            numbers = self.say(english_article(following))
        else:
            numbers = self.say(determiner)
        if determiner in tongue.owners:
            return [Word(the, (), numbers)], [Word(tongue.owners[determiner], numbers)]
        return [Word(tongue.determiners[determiner][agreement], numbers)], []

    def place(self, place: Place) -> list[Word]:
        """A preposition and its noun: in the park, to Ana."""
        numbers = self.say("at" if place.preposition == "arriving" else place.preposition)
        return self.lead(self.tongue.prepositions[place.preposition], numbers, self.nominal(place.nominal))

    def time(self, time: Time) -> list[Word]:
        """When it happens; `Time` names the kinds."""
        tongue, code = self.tongue, self.tongue.code
        if time.how == "word":
            return self.translate(time.what)
        how = self.say(time.how)
        if time.how == "in":
            return [Word(tongue.prepositions["in"], how), Word(time.what[code], self.say(time.what["en"]))]
        if time.how == "at":
            hour = self.say(time.what)
            hours = [Word(tongue.determiners["the"][3], (), hour), Word(tongue.determiners[time.what][1], hour)]
            return self.lead(tongue.prepositions["arriving"], how, hours)
        if time.day:
            month, day = self.say(time.what["en"]), self.say(str(time.day))
            date = [Word(str(time.day), day), Word(tongue.prepositions["of"], (), month), Word(time.what[code], month)]
            first, *others = tongue.date.split()
            return [Word(first, how), *(Word(other, (), day) for other in others), *date]
        day_number = self.say(time.what.english[0])
        agreement = int(time.what.feminine[code])
        noun = Word(time.what.forms[code][0], day_number)
        the = tongue.determiners["the"][agreement]
        if time.how == "on":
            return [Word(tongue.contractions.get(f"{tongue.dated} {the}", the), how), noun]
        quality = Word(tongue.determiners[time.how][agreement], how)
        if time.how == "every":
            return [quality, noun]
        around = [quality, noun] if time.how == "next" else [noun, quality]
        return [Word(tongue.contractions.get(f"{tongue.dated} {the}", the), (), how), *around]

    def there(self, clause: Clause) -> list[Word]:
        """`There is` is one word: hay, há."""
        assert clause.object is not None and clause.place is not None
        numbers = self.say("there " + ENGLISH_BE[clause.tense][person_of(clause.object)])
        verb = self.tongue.words["there was" if clause.tense == "past" else "there is"]
        return [Word(verb, numbers), *self.nominal(clause.object), *self.place(clause.place)]
