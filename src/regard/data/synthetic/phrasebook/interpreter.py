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
    Deed,
    Filling,
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
from regard.data.synthetic.phrasebook.manners import PLAIN, Manner, Sentence, write
from regard.data.synthetic.phrasebook.morphology import PLURAL_THIRD, THIRD, Forms, Name, Pattern, Said, Slot, Tongue

Numbers = tuple[int, ...]
SILENT = "(that)"  # the connective that English leaves out and the others do not
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
        self.sentences: list[Sentence] = []  # those that have ended
        self.opened = 0  # where ¿ belongs in the sentence that is being said
        self.made: set[str] = set()  # names that were made up

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
            self.comma()
        if connective == SILENT:
            before = (len(self.english) - 1,)
            self.words += [Word(text, (), before) for text in self.tongue.connectives["that"].split()]
        elif connective:
            numbers = self.say(connective)
            self.words += [Word(text, numbers) for text in self.tongue.connectives[connective].split()]
        self.words += self.clause(clause)

    def comma(self) -> None:
        """A pause, at the same place in both languages."""
        self.english[-1] += ","
        self.words[-1] = self.words[-1]._replace(text=self.words[-1].text + ",")

    def end(self, mark: str) -> None:
        """End a sentence: a statement (.), a question (?) or an exclamation (!)."""
        self.sentences.append(Sentence(len(self.english), len(self.words), mark, self.opened))
        self.opened = len(self.words)

    def pause(self) -> None:
        """Go on after a comma with what is asked or exclaimed: disculpa, ¿dónde está el baño?"""
        self.comma()
        self.opened = len(self.words)

    def plainly(self) -> str:
        """The English, plainly written: what `pair().source` is, sooner."""
        words = list(self.english)
        for end, _, mark, _ in self.sentences:
            words[end - 1] += mark if mark == "?" or end < len(words) else ""
        return " ".join(words).replace(" can not ", " cannot ")

    def pair(self, manner: Manner = PLAIN) -> Pair:
        """All the sentences that have ended, written in a manner."""
        texts = [word.text for word in self.words]
        for place, following in enumerate(texts[1:]):
            if texts[place] in self.tongue.softened and following.lower().startswith(("i", "hi")):
                texts[place] = self.tongue.softened[texts[place]]
        opening = bool(self.tongue.opening)
        english, texts, moved = write(self.english, texts, self.sentences, manner, opening, self.made)
        sure = {(moved[i], j) for j, (_, links, _) in enumerate(self.words) for i in links}
        possible = sure | {(moved[i], j) for j, (_, _, links) in enumerate(self.words) for i in links}
        code = self.tongue.code
        return Pair(" ".join(english), " ".join(texts), tuple(sorted(sure)), code, tuple(sorted(possible)))

    def pattern(self, pattern: Pattern, fillings: dict[str, Filling]) -> None:
        """Say a set phrase. Its own words may be linked with one another in any way, what fills it as by itself."""
        said: dict[str, list[Word]] = {}
        fixed: Numbers = ()
        for word in pattern.words["en"]:
            if isinstance(word, Slot):
                said[word.name] = self.filling(fillings[word.name])
                self.english[-1] += word.behind
            else:
                fixed += self.say(word)
        words: list[Word] = []
        for word in pattern.words[self.tongue.code]:
            if isinstance(word, str):
                words.append(Word(word, (), fixed))
            elif word.forms:
                filling = fillings[word.name]
                assert isinstance(filling, Pronoun | Named | NounPhrase)
                words.append(Word(word.forms[agreement_of(filling, self.tongue.code)], (), fixed))
            else:
                leads = bool(words) and not words[-1].sure and words[-1].text in self.tongue.prepositions.values()
                words += self.lead(words.pop().text, (), said[word.name], fixed) if leads else said[word.name]
                words[-1] = words[-1]._replace(text=words[-1].text + word.behind)
        self.words += words

    def filling(self, filling: Filling) -> list[Word]:
        """What fills a place of a set phrase."""
        if isinstance(filling, Deed):
            return self.deed(filling)
        if isinstance(filling, Said):
            numbers = self.say(filling.english)
            return [Word(word, numbers) for word in filling.forms[self.tongue.code].split()]
        if isinstance(filling, Time):
            return self.time(filling)
        return self.place(filling) if isinstance(filling, Place) else self.nominal(filling)

    def deed(self, deed: Deed) -> list[Word]:
        """A verb and what follows it, without a subject: comer pan, abre la puerta, no abras la puerta."""
        clause, form = deed
        assert clause.verb is not None
        auxiliary = self.say("do") if form == "ban" else ()
        negation = self.translate("not") if form == "ban" else []
        verb = clause.verb.english["gerund" if form == "gerund" else "base"]
        table = clause.verb.forms[self.tongue.code]
        said = Word(table["infinitive" if form == "gerund" else form], self.say(verb), auxiliary)
        _, rest = self.complements(clause)
        if clause.time is not None:
            rest += self.time(clause.time)
        return [*negation, said, *rest]

    def clause(self, clause: Clause, person: int = THIRD) -> list[Word]:
        """A clause: English inverts in questions and puts pronouns and `yet` last, where the others put them first."""
        subject = clause.subject
        if clause.verb is None and clause.object is not None:
            return self.there(clause)
        if clause.verb is not None and clause.verb.inverse and self.tongue.code == "es":
            return self.liking(clause)
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
        if clitic and clause.modal is not None and not self.tongue.personal:
            verbs, clitic = self.enclitic(verbs, clitic[0]), []
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
            degree = self.translate(clause.degree) if clause.degree else []
            quality = self.say(clause.adjective.many if agreement > 1 else clause.adjective.english)
            rest = [Word(word, quality) for word in clause.adjective.forms[tongue.code][agreement].split()]
            rest = [*rest, *degree] if clause.degree in tongue.behind else [*degree, *rest]
            if clause.than is not None:
                rest += [*self.translate("than"), *self.nominal(clause.than)]
        if isinstance(clause.object, Pronoun):
            clitic = [Word(tongue.clitics[clause.object.english], self.say(clause.object.english))]
        elif clause.object is not None:
            rest = self.nominal(clause.object)
            lead = clause.verb.leads.get(tongue.code) if clause.verb else None
            if lead is not None:
                rest = self.lead(lead, (), rest, rest[0].sure + rest[0].possible)
            elif is_person(clause.object):
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
            adjective = clause.adjective
            usual = "estar" if adjective is None or adjective.state else "ser"
            return tongue.copulas[adjective.copula.get(tongue.code, usual) if adjective else usual][tense]
        if clause.modal is not None:
            return clause.modal.forms[tongue.code]
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
        if clause.verb is not None and clause.modal is not None:
            own = len(clause.verb.english["base"].split())
            modal, link = auxiliary + main[:-own], clause.modal.links[tongue.code]
            infinitive = Word(clause.verb.forms[tongue.code]["infinitive"], main[-own:])
            return [Word(form, modal, dropped), *([Word(link, (), modal)] if link else []), infinitive]
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
        if name.made:
            self.made.add(name.english)
        article = name.articles[self.tongue.code]
        words = [Word(word, numbers) for word in name.forms[self.tongue.code]]
        return [Word(article, (), numbers), *words] if article else words

    def noun_phrase(self, phrase: NounPhrase) -> list[Word]:
        """Determiner, noun, adjective, owner, relative clause: the adjective and the owner cross the noun."""
        tongue, noun, adjective = self.tongue, phrase.noun, phrase.adjective
        agreement = noun.feminine[tongue.code] + 2 * phrase.plural
        words, after = self.determiner(phrase, agreement)
        quality = self.say(adjective.english) if adjective else ()
        colour = self.say(phrase.colour.english) if phrase.colour else ()
        numbers = self.say(noun.english[phrase.plural])
        head = [Word(word, numbers) for word in noun.forms[tongue.code][phrase.plural].split("_")]
        if phrase.colour:
            head.append(Word(phrase.colour.forms[tongue.code][agreement], colour))
        if adjective:
            form = adjective.forms[tongue.code][agreement]
            beside = [Word(tongue.before.get(form, form) if adjective.before else form, quality)]
            head = [*beside, *head] if adjective.before else [*head, *beside]
        if words and not (adjective and adjective.before):
            words[-1] = words[-1]._replace(text=self.article(words[-1].text, head[0].text))
        words += head
        words += self.name(phrase.name) if phrase.name else []
        words += after
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
            following = (phrase.adjective or phrase.colour or phrase.noun).english
            numbers = self.say(english_article(following if isinstance(following, str) else following[0]))
        else:
            numbers = self.say(determiner)
        if determiner.isdigit():
            return [Word(determiner, numbers)], []
        if determiner in tongue.owners:
            return [Word(the, (), numbers)], [Word(tongue.owners[determiner], numbers)]
        return [Word(tongue.determiners[determiner][agreement], numbers)], []

    def place(self, place: Place) -> list[Word]:
        """A preposition and its noun: in the park, to Ana."""
        if place.nominal is None:
            return self.translate(place.preposition)
        numbers = self.say("at" if place.preposition == "arriving" else place.preposition)
        way = {**self.tongue.prepositions, **self.tongue.directions}[place.preposition]
        return self.lead(way, numbers, self.nominal(place.nominal))

    def time(self, time: Time) -> list[Word]:
        """When it happens; `Time` names the kinds."""
        tongue, code = self.tongue, self.tongue.code
        if time.how == "word":
            return self.translate(time.what)
        how = self.say(time.how)
        if time.how == "in":
            return [Word(tongue.prepositions["in"], how), Word(time.what[code], self.say(time.what["en"]))]
        if time.how == "at":
            hour, digits = self.say(time.what), time.what[0].isdigit()
            said = time.what if digits else tongue.determiners[time.what][1]
            many = time.what not in ("one", "1") and time.what.partition(":")[0] != "1"
            hours = [Word(tongue.determiners["the"][3 if many else 1], (), hour), Word(said, hour)]
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

    def enclitic(self, verbs: list[Word], clitic: Word) -> list[Word]:
        """Portuguese puts a pronoun before an infinitive, or behind it: pode me ajudar, quero comprá-lo."""
        *others, infinitive = verbs
        if not clitic.text.startswith(("o", "a")):
            return [*others, clitic, infinitive]
        stem, vowel = infinitive.text[:-2], {"a": "á", "e": "ê", "i": "i"}[infinitive.text[-2]]
        return [*others, Word(f"{stem}{vowel}-l{clitic.text}", infinitive.sure + clitic.sure, infinitive.possible)]

    def liking(self, clause: Clause) -> list[Word]:
        """What is liked is the subject in Spanish: a Ana le gusta el pan, no me gustan las manzanas."""
        tongue, subject, liked = self.tongue, clause.subject, clause.object
        assert subject is not None and isinstance(liked, NounPhrase)
        auxiliary_text, main_text = english_verb(clause, person_of(subject))
        auxiliary = self.say(auxiliary_text) if clause.question else ()
        person, who = person_of(subject), list[Word]()
        if isinstance(subject, Pronoun):
            numbers = self.say(subject.english)
            if person in (THIRD, PLURAL_THIRD):
                who = [Word("a", (), numbers), Word(tongue.words[subject.english], numbers)]
        else:
            who = self.nominal(subject)
            numbers = who[0].sure + who[0].possible
            who = self.lead("a", (), who, numbers)
        auxiliary = auxiliary or self.say(auxiliary_text)
        negation = self.translate("not") if clause.negated else []
        form = "gustan" if liked.plural else "gusta"
        clitic = Word(tongue.likers[person], () if who else numbers, numbers if who else ())
        verb = Word(form, self.say(main_text), auxiliary)
        what = self.nominal(liked)
        if not liked.determiner and liked.owner is None:
            article = self.article(tongue.determiners["the"][agreement_of(liked, tongue.code)], what[0].text)
            what = [Word(article, (), what[0].sure), *what]
        return [*who, *negation, clitic, verb, *what]

    def there(self, clause: Clause) -> list[Word]:
        """`There is` is one word: hay, há."""
        assert clause.object is not None and clause.place is not None
        numbers = self.say("there " + ENGLISH_BE[clause.tense][person_of(clause.object)])
        verb = self.tongue.words["there was" if clause.tense == "past" else "there is"]
        return [Word(verb, numbers), *self.nominal(clause.object), *self.place(clause.place)]
