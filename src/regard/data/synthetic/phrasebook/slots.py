"""What everyday sentences are filled with: words of the lexicon, numbers, hours, prices, and names that are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from regard.data.synthetic.phrasebook.drawing import (
    NEVER_BARE,
    NUMBERS,
    OWNERS,
    SUBJECTS,
    Drawing,
)
from regard.data.synthetic.phrasebook.grammar import (
    Clause,
    Deed,
    Filling,
    Named,
    Nominal,
    NounPhrase,
    Place,
    Pronoun,
    Time,
)
from regard.data.synthetic.phrasebook.morphology import (
    LANGUAGES,
    Lexicon,
    Name,
    Noun,
    Said,
    Verb,
)

CONSONANTS = ("b", "d", "j", "k", "l", "m", "n", "r", "v", "w", "y", "z", "sh", "dr", "kr", "br")
ENDINGS = ("", "", "n", "l", "r", "s", "x", "m", "rd", "nko")
MADE_PERSON, MADE_CITY, MADE_NOUN = 0.3, 0.25, 0.02
PERSONS = tuple(dict.fromkeys(SUBJECTS))
MONEY = (("euros", "euros", "euros"), ("dollars", "dólares", "dólares"), ("pesos", "pesos", "pesos"))
SPANS = (("night", "noche", "noite"), ("day", "día", "dia"), ("week", "semana", "semana"))
STRETCHES = (("minute", "minuto", "minuto"), ("hour", "hora", "hora"), *SPANS[1:], ("year", "año", "ano"))
FEMININE = ("night", "week", "hour")
HELPERS = ("doctor", "nurse", "lawyer", "dentist", "guide")
WORKING = ("phone", "computer", "camera", "clock", "car", "key", "credit card", "lamp", "laptop", "charger", "watch")
COUNTS = {  # feminine where it makes a difference
    "one": ("un", "um", "una", "uma"), "two": ("dos", "dois", "dos", "duas"), "three": ("tres", "três"),
    "four": ("cuatro", "quatro"), "five": ("cinco", "cinco"), "six": ("seis", "seis"), "seven": ("siete", "sete"),
    "eight": ("ocho", "oito"), "nine": ("nueve", "nove"), "ten": ("diez", "dez"), "eleven": ("once", "onze"),
    "twelve": ("doce", "doze"), "fifteen": ("quince", "quinze"), "twenty": ("veinte", "vinte"),
    "thirty": ("treinta", "trinta"), "forty": ("cuarenta", "quarenta"), "fifty": ("cincuenta", "cinquenta"),
    "sixty": ("sesenta", "sessenta"), "seventy": ("setenta", "setenta"), "eighty": ("ochenta", "oitenta"),
    "ninety": ("noventa", "noventa"), "hundred": ("cien", "cem"),
}  # fmt: skip
MANY = tuple(COUNTS)[1:-1]
HOURS = tuple(COUNTS)[1:12]
WHERE = ("near", "behind", "in front of", "next to", "opposite")
OBJECTLESS = ("eat", "drink", "cook", "write", "sing", "study", "read", "pay", "clean", "paint")


class Slots(Drawing):
    """Draws nominals, times and places as people say them every day, and what fills the slots of patterns."""

    def __init__(self, random: Callable[[], float], words: Lexicon):
        super().__init__(random, words)
        self.hues = frozenset(colour.english for colour in words.said["colour"])

    def doing(self, *, pronouns: bool = False) -> Clause:
        """A verb with what follows it, in the present."""
        verb = self.pick(self.words.verbs["present"])
        target = self.object(verb, SUBJECTS[0]) if verb.objects else None
        if isinstance(target, Pronoun) and not (pronouns and target.english in ("it", "them")):
            target = None if verb.english["base"] in OBJECTLESS else self.noun_for(verb)
        if isinstance(target, NounPhrase):
            target = target._replace(relative=None)
        place = self.place(verb.places, verb.way) if verb.needs_place else None
        return Clause(None, verb, "present", object=target, place=place)

    def noun_for(self, verb: Verb) -> Nominal:
        """Something the verb may have as its object."""
        word = self.pick(self.pick(verb.objects))
        if isinstance(word, Name):
            return Named((word,))
        return self.noun(word, "subject" if word.kind in NEVER_BARE else "object")._replace(relative=None)

    # -------------------------------------------------------------------------------------------------- words made up

    def made(self) -> str:
        """A word nobody has heard of."""
        syllables = "".join(self.pick(CONSONANTS) + self.pick("aeiou") for _ in range(3))
        return syllables + self.pick(ENDINGS)

    def name(self, names: Sequence[Name], share: float) -> Name:
        if self.random() > share:
            return self.pick(names)
        word = self.made().capitalize()
        return Name(word, {code: [word] for code in LANGUAGES}, False, dict.fromkeys(LANGUAGES, ""),
                    names[0].is_city, made=True)  # fmt: skip

    def someone(self) -> Name:
        return self.name(self.words.people, MADE_PERSON)

    def subject(self) -> Nominal:
        """All persons alike: a verb has a form of its own for most of them; and a relative by name."""
        if self.random() < 0.05:
            kin = self.pick([noun for noun in self.words.nouns["kin"] if noun.english[0] != "family"])
            return NounPhrase(kin, determiner=self.pick(("my", "my", "your", "our")), name=self.someone())
        return self.pick(PERSONS) if self.random() < 0.6 else super().subject()

    def time(self, tense: str) -> Time:
        if tense == "past" and self.random() < 0.2:
            return Time("word", self.pick(("last night", "this morning")))
        return Time("word", "tonight") if tense in ("future", "soon") and self.random() < 0.1 else super().time(tense)

    def person(self) -> Nominal:
        if not self.extra(0.4, always=0.2):
            return Named((self.someone(),))
        return super().person()

    def place(self, places: Sequence[Sequence[Noun | Name]], way: str = "") -> Place:
        place = super().place(places, way)
        if isinstance(place.nominal, Named):
            return Place(place.preposition, Named((self.city(),)))
        return place

    def phrase(self, noun: Noun, plural: bool, determiners: Sequence[str]) -> NounPhrase:
        """Now and then with digits, with a singular or plural `that`, or with a noun that is made up."""
        phrase = super().phrase(noun, plural, determiners)
        if self.random() < MADE_NOUN and phrase.noun.number == "both" and phrase.adjective is None:
            word = self.made()
            forms = dict.fromkeys(LANGUAGES, (word, word + "s"))
            made = replace(
                phrase.noun, english=(word, word + "s"), forms=forms, feminine=dict.fromkeys(LANGUAGES, False)
            )
            phrase = phrase._replace(noun=made)
        adjective, hues = phrase.adjective, self.hues
        colours = [each for each in self.words.beside[noun.kind] if each.english in hues]
        if adjective and colours and adjective.english not in hues and not adjective.before and self.random() < 0.25:
            phrase = phrase._replace(colour=self.pick(colours))
        if phrase.determiner in NUMBERS and self.random() < 0.3:
            return phrase._replace(determiner=str(2 + int(98 * self.random())))
        rephrased = {"many": "a lot of", "a": "another", "": "some"}.get(phrase.determiner)
        if rephrased and phrase.owner is None and phrase.plural != (rephrased == "another") and self.random() < 0.15:
            return phrase._replace(determiner=rephrased)
        if phrase.determiner in ("this", "these") and self.random() < 0.4:
            return phrase._replace(determiner={"this": "that", "these": "those"}[phrase.determiner])
        return phrase

    def city(self) -> Name:
        return self.name([city for city in self.words.places[1] if isinstance(city, Name)], MADE_CITY)

    # ---------------------------------------------------------------------------------------------------------- slots

    def fill(self, slot: str) -> Filling:
        """Something that fits a place of a pattern."""
        nouns = self.words.nouns
        match slot:
            case "person":
                return Named((self.someone(),))
            case "city":
                return Named((self.city(),))
            case "country":
                return Named((self.name(self.words.countries, 0.1),))
            case "someone":
                return Named((self.someone(),)) if self.random() < 0.5 else self.owned(("kin", "person"))
            case "owned":
                return self.owned(("kin", "person"))
            case "family":
                return self.owned(("kin",))
            case "relatives" | "kinsfolk":
                return self.relatives()
            case "language":
                return NounPhrase(self.pick([noun for noun in nouns["language"] if noun.english[0] != "music"]))
            case "place" | "shop":
                noun = self.pick(nouns["place"])
                return NounPhrase(noun, determiner="the") if slot == "place" else NounPhrase(noun)
            case "places":
                noun = self.pick([noun for noun in nouns["place"] if noun.number == "both"])
                return NounPhrase(noun, True, "the")
            case "a_place":
                return NounPhrase(self.pick(nouns["place"]), determiner="a")
            case "where" | "there":
                return self.where()
            case "thing":
                return self.phrase(
                    self.of("object", "clothes", "opening", "text"), False, ("the", "this", "my", "your")
                )
            case "liked":
                return self.phrase(self.of("place", "text", "show", "clothes"), False, ("the", "this", "your"))
            case "things":
                return self.phrase(self.of("object", "clothes", "text"), True, ("the", "these", "my", "your"))
            case "plenty":
                return self.phrase(self.of("object", "clothes", "text", "animal"), True, ("",))
            case "goods":
                plural = self.random() < 0.5
                return self.phrase(self.of("object", "clothes"), plural, ("",) if plural else ("a",))
            case "order" | "counted":
                return self.order(counted=slot == "counted")
            case "meal" | "served" | "sides":
                return NounPhrase(self.pick([noun for noun in nouns["food"] if noun.number == "mass"]))
            case "drink":
                return NounPhrase(self.pick(nouns["drink"]))
            case "vehicle":
                return NounPhrase(self.pick(nouns["vehicle"]), determiner=self.pick(("the", "the", "the", "this")))
            case "help":
                noun = self.pick([noun for noun in nouns["person"] if noun.english[0] in HELPERS])
                return NounPhrase(noun, determiner="a")
            case "act":
                return Deed(self.doing())
            case "doing":
                return Deed(self.doing(), "gerund")
            case "request" | "ban":
                return Deed(self.doing(), slot)
            case "weekday":
                day = self.pick(self.words.weekdays)
                return Said(day.english[0], {code: day.forms[code][0] for code in LANGUAGES})
            case "dated":
                return self.date()
            case "clock":
                return self.clock()
            case "device":
                return NounPhrase(self.device(), determiner=self.pick(("the", "the", "my", "this")))
            case "stuff":
                return NounPhrase(self.of("object", "clothes", "text"))
            case "part" | "parts":
                both = [noun for noun in nouns["body"] if slot == "part" or noun.number == "both"]
                return NounPhrase(self.pick(both), slot == "parts")
            case "ailment":
                return NounPhrase(self.pick(nouns["ailment"]))
            case "repast":
                return NounPhrase(self.pick(nouns["repast"]))
        return self.figure(slot)

    def figure(self, slot: str) -> Said:
        """Something with a number in it, or what the lexicon has for this slot."""
        match slot:
            case "further":
                return self.pick(self.words.said["step"])
            case "hour":
                return self.count(self.pick(HOURS), feminine=True)
            case "minutes":
                return _same(self.minutes())
            case "year":
                return _same(str(1930 + int(100 * self.random())))
            case "digits":
                return _same("".join(self.pick("0123456789") for _ in range(3 + int(4 * self.random()))))
            case "date":
                month, day = self.pick(self.words.months), 2 + int(27 * self.random())
                return Said(f"{month['en']} {day}", {code: f"{day} de {month[code]}" for code in LANGUAGES})
            case "price" | "money":
                unit, amount = self.pick(MONEY), self.number(10_000)
                return _counted(amount, unit)
            case "nights" | "long":
                one, *others = self.pick(SPANS if slot == "nights" else STRETCHES)
                feminine = one in FEMININE
                amount = self.number(30, feminine) if self.random() < 0.8 else self.count("one", feminine)
                plural = "" if amount.english == "one" else "s"
                return _counted(amount, (one + plural, *(other + plural for other in others)))
            case "age" | "number":
                return self.number(100)
        return self.pick(self.words.said[slot])

    def device(self) -> Noun:
        """What works, or does not."""
        objects = [noun for noun in self.words.nouns["object"] if noun.english[0] in WORKING]
        return self.pick([*self.words.nouns["device"], *objects])

    def of(self, *kinds: str) -> Noun:
        return self.pick([noun for noun in self.words.nouns[self.pick(kinds)] if noun.number == "both"])

    def owned(self, kinds: Sequence[str]) -> NounPhrase:
        noun = self.pick([noun for noun in self.words.nouns[self.pick(kinds)] if noun.owned])
        return NounPhrase(noun, determiner=self.pick(OWNERS))

    def relatives(self) -> NounPhrase:
        """`two brothers`, `a daughter`."""
        noun = self.pick([noun for noun in self.words.nouns["kin"] if noun.number == "both"])
        if self.random() < 0.4:
            return NounPhrase(noun, determiner=self.pick(("a", "one")))
        return NounPhrase(
            noun, True, self.pick(NUMBERS[:4]) if self.random() < 0.8 else str(2 + int(8 * self.random()))
        )

    def order(self, *, counted: bool) -> NounPhrase:
        """What one asks for at a table: `a coffee`, `the soup`, `bread`, `two beers`."""
        noun = self.pick(self.words.nouns[self.pick(("food", "drink"))])
        drink = noun.kind == "drink"
        if (drink or noun.number == "both") and (counted or self.random() < 0.25):
            return NounPhrase(
                noun, True, self.pick(NUMBERS) if self.random() < 0.8 else str(2 + int(8 * self.random()))
            )
        if noun.number == "mass" and not drink:
            return NounPhrase(noun, determiner=self.pick(("", "", "the")))
        return NounPhrase(noun, determiner=self.pick(("a", "a", "a", "the", "one", *([""] if drink else []))))

    def where(self) -> Place:
        if self.random() < 0.15:
            return Place(self.pick(("here", "there")), None)
        if self.random() < 0.5:
            return Place(self.pick(WHERE), NounPhrase(self.pick(self.words.nouns["place"]), determiner="the"))
        return self.place(self.words.places)

    def clock(self) -> Time:
        kind = self.random()
        if kind < 0.4:
            return Time("at", self.pick(HOURS))
        return Time("at", self.minutes()) if kind < 0.8 else Time("on", self.pick(self.words.weekdays))

    def minutes(self) -> str:
        return f"{2 + int(22 * self.random())}:{int(12 * self.random()) * 5:02d}"

    def number(self, most: int, feminine: bool = False) -> Said:
        """In words or in digits; small ones are more frequent."""
        if self.random() < 0.5:
            return self.count(self.pick(MANY), feminine)
        return _same(str(2 + int((most - 2) * self.random() ** 2)))

    def count(self, word: str, feminine: bool = False) -> Said:
        forms = COUNTS[word]
        spanish, portuguese = forms[2:] if feminine and len(forms) > 2 else forms[:2]
        return Said(word, {"es": spanish, "pt": portuguese})


def _same(text: str) -> Said:
    return Said(text, dict.fromkeys(LANGUAGES, text))


def _counted(amount: Said, unit: Sequence[str]) -> Said:
    forms = {code: f"{amount.forms[code]} {word}" for code, word in zip(LANGUAGES, unit[1:], strict=True)}
    return Said(f"{amount.english} {unit[0]}", forms)
