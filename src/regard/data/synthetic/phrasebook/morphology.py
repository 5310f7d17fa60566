"""The words of the phrasebook and their forms: regular ones by rule, irregular ones from `lexicon.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

LANGUAGES = ("es", "pt")
PERSONS = ("I", "you", "he", "we", "they")  # the order of the five verb forms
THIRD, PLURAL_THIRD = 2, 4
FRAMES = {"past": ("past",), "present": ("present", "present", "progressive", "perfect"), "future": ("future", "soon")}

ENDINGS: dict[str, dict[str, dict[str, str]]] = {
    "es": {
        "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
        "past": {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"},
        "gerund": {"ar": "ando", "er": "iendo", "ir": "iendo"},
        "participle": {"ar": "ado", "er": "ido", "ir": "ido"},
        "future": {"": "é ás á emos án"},  # after the whole infinitive
    },
    "pt": {
        "present": {"ar": "o a a amos am", "er": "o e e emos em", "ir": "o e e imos em"},
        "past": {"ar": "ei ou ou amos aram", "er": "i eu eu emos eram", "ir": "i iu iu imos iram"},
        "gerund": {"ar": "ando", "er": "endo", "ir": "indo"},
        "participle": {"ar": "ado", "er": "ido", "ir": "ido"},
        "future": {"": "ei á á emos ão"},
    },
}
PLURALS: dict[str, tuple[tuple[str, str], ...]] = {  # the first ending that matches is replaced
    "es": (
        ("z", "ces"),
        ("án", "anes"),
        ("én", "enes"),
        ("ín", "ines"),
        ("ón", "ones"),
        ("[aeiouáéó]", r"\g<0>s"),
        ("", "es"),
    ),
    "pt": (("ão", "ões"), ("m", "ns"), ("el", "éis"), ("([au])l", r"\1is"), ("[rz]", r"\g<0>es"), ("", "s")),
}

Forms = Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun: its singular and plural in English and, by language, in the others."""

    english: Forms
    forms: Mapping[str, Forms]
    feminine: Mapping[str, bool]
    kind: str
    number: str
    at: str
    owned: bool


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A person or a city; `articles` holds the article that some cities keep."""

    english: str
    forms: Mapping[str, Forms]
    feminine: bool
    articles: Mapping[str, str]
    is_city: bool


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective: four forms a language; `state` asks for `estar`, `before` puts it in front of its noun."""

    english: str
    forms: Mapping[str, Forms]
    of: frozenset[str]
    state: bool
    before: bool


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb: its English forms by name and, by language and tense, its other forms."""

    english: Mapping[str, str]  # with the particle: `looks for`
    forms: Mapping[str, Mapping[str, Any]]
    objects: tuple[Sequence[Noun | Name], ...]  # one group is drawn from, then one word of it
    places: tuple[Sequence[Noun | Name], ...]
    tenses: Mapping[str, Forms]  # by time frame
    way: str
    needs_place: bool
    recipient: bool


@dataclass(frozen=True, slots=True, eq=False)
class Tongue:
    """A target language: its small words and the few switches in which Spanish and Portuguese differ."""

    code: str
    personal: str
    inverts: bool
    soon: str
    dated: str
    date: str
    guarded: bool
    opening: str
    before: Mapping[str, str]
    contractions: Mapping[str, str]
    prepositions: Mapping[str, str]
    owners: Mapping[str, str]
    determiners: Mapping[str, Forms]
    words: Mapping[str, str]
    clitics: Mapping[str, str]
    connectives: Mapping[str, str]
    auxiliaries: Mapping[str, Forms]  # by tense: their present forms
    copulas: Mapping[str, Mapping[str, Any]]  # ser, estar
    stressed: Mapping[str, Any]  # nouns that ask for other articles
    softened: Mapping[str, str]  # words that change before an i-sound


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """All words, in the groups that sentences are drawn from."""

    nouns: Mapping[str, Sequence[Noun]]
    people: Sequence[Name]
    verbs: Mapping[str, Sequence[Verb]]  # by time frame
    reports: Sequence[Verb]
    takers: Mapping[Noun, Sequence[Verb]]  # the verbs that may have this noun as their object
    adjectives: Mapping[str, Sequence[Adjective]]  # by the kind of noun
    beside: Mapping[str, Sequence[Adjective]]  # those that stand beside it
    described: Sequence[str]  # kinds of nouns that have adjectives; people stand for three
    places: tuple[Sequence[Noun | Name], ...]
    days: Sequence[Noun]
    every: Sequence[Noun]
    months: Sequence[Mapping[str, str]]
    weekdays: Sequence[Noun]
    tongues: Mapping[str, Tongue]


def plural(word: str, language: str) -> str:
    """The regular plural: libro -> libros, canción -> canciones, hospital -> hospitais."""
    ending, replacement = next(rule for rule in PLURALS[language] if re.search(rule[0] + "$", word))
    return re.sub(ending + "$", replacement, word, count=1)


def _plural(words: str, language: str) -> str:
    """The plural of a noun, of whose words, joined by `_`, the first one changes: estación_de_tren."""
    first, joint, rest = words.partition("_")
    return plural(first, language) + joint + rest


def agreeing(words: str, language: str) -> Forms:
    """The four forms of an adjective or determiner, from its masculine or from all four."""
    forms = words.split()
    if len(forms) == 1:
        feminine = re.sub("o$", "a", words)
        forms = [words, feminine, plural(words, language), plural(feminine, language)]
    return tuple(forms)


def conjugate(infinitive: str, language: str, irregular: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Five forms for each tense, and the infinitive, gerund and participle."""
    stem, ending = infinitive[:-2], infinitive[-2:]
    table: dict[str, Any] = {"infinitive": infinitive}
    for tense, endings in ENDINGS[language].items():
        kept, suffixes = (infinitive, endings[""]) if tense == "future" else (stem, endings[ending])
        forms = irregular[tense].get(infinitive, " ".join(kept + suffix for suffix in suffixes.split())).split()
        if len(forms) == 4:
            forms.insert(1, forms[1])  # você speaks like ele
        table[tense] = forms if len(forms) > 1 else forms[0]
    return table


def english_forms(verb: str, given: Mapping[str, str]) -> dict[str, str]:
    """The English forms of a verb, regular unless given."""
    soft = re.sub("(?<!e)e$", "", verb)
    past = given.get("past", re.sub("e?$", "ed", verb, count=1))
    regular = {"base": verb, "third": verb + "s", "past": past, "participle": past, "gerund": soft + "ing"}
    return {name: given.get(name, form) for name, form in regular.items()}


def _noun(english: str, entry: Mapping[str, Any], kind: str = "") -> Noun:
    words = {language: entry[language].split() for language in LANGUAGES}
    forms = {code: (word[0], word[2] if len(word) > 2 else _plural(word[0], code)) for code, word in words.items()}
    feminine = {code: word[1] == "f" for code, word in words.items()}
    plural_english = entry.get("plural", english + "s")
    number, at, owned = entry.get("number", "both"), entry.get("at", "in"), entry.get("owned", True)
    return Noun((english, plural_english), forms, feminine, kind, number, at, owned)


def _name(english: str, entry: Mapping[str, str], is_city: bool) -> Name:
    parts = {code: re.fullmatch("(.+) ([mf]) ?(.*)", entry[code]) for code in LANGUAGES}
    found = {code: match.groups() for code, match in parts.items() if match}
    forms = {code: groups[0].split() for code, groups in found.items()}
    return Name(english, forms, found["es"][1] == "f", {code: groups[2] for code, groups in found.items()}, is_city)


def _adjective(english: str, entry: Mapping[str, Any]) -> Adjective:
    return Adjective(
        english=english,
        forms={code: agreeing(entry[code], code) for code in LANGUAGES},
        of=frozenset(entry["of"]),
        state=entry.get("state", False),
        before=entry.get("before", False),
    )


def _tongue(code: str, table: Mapping[str, Any]) -> Tongue:
    tables = {name: value for name, value in table.items() if name != "forms"}
    tables["determiners"] = {
        word: agreeing(forms, code) if " " in forms else (forms,) * 4 for word, forms in table["determiners"].items()
    }
    tables["auxiliaries"] = {
        tense: forms.split() if " " in forms else conjugate(forms, code, table["forms"])["present"]
        for tense, forms in table["auxiliaries"].items()
    }
    copulas = {
        verb: conjugate(verb, code, table["forms"]) | {"past": past.split()} for verb, past in table["copulas"].items()
    }
    del tables["copulas"]
    return Tongue(code=code, copulas=copulas, **tables)


@cache
def lexicon() -> Lexicon:
    """Read the lexicon, once."""
    data = tomllib.loads(files(__package__).joinpath("lexicon.toml").read_text(encoding="utf-8"))
    nouns = {
        kind: [_noun(word, entry, kind) for word, entry in entries.items()] for kind, entries in data["nouns"].items()
    }
    people, cities = (
        [_name(word, entry, table == "cities") for word, entry in data[table].items()] for table in ("people", "cities")
    )
    groups: dict[str, Sequence[Noun | Name]] = {noun.english[0]: [noun] for kind in nouns.values() for noun in kind}
    groups |= {**nouns, "cities": cities, "person": [*nouns["person"], *nouns["kin"], *people]}

    def pick(names: Iterable[str]) -> tuple[Sequence[Noun | Name], ...]:
        return tuple(groups[name] for name in names)

    def verb(english: str, entry: Mapping[str, Any]) -> Verb:
        base, _, particle = english.partition(" ")
        used = entry.get("tenses", [tense for tenses in FRAMES.values() for tense in tenses])
        return Verb(
            english={name: f"{form} {particle}".strip() for name, form in english_forms(base, entry).items()},
            forms={code: conjugate(entry[code], code, data[code]["forms"]) for code in LANGUAGES},
            objects=pick(entry.get("takes", ())),
            places=pick(entry.get("where", ("place", "cities"))),
            tenses={frame: [tense for tense in tenses if tense in used] for frame, tenses in FRAMES.items()},
            way=entry.get("way", ""),
            needs_place="way" in entry or entry.get("settled", False),
            recipient=entry.get("to", False),
        )

    verbs = [verb(word, entry) for word, entry in data["verbs"].items()]
    adjectives = [_adjective(word, entry) for word, entry in data["adjectives"].items()]
    suiting = {kind: [adjective for adjective in adjectives if kind in adjective.of] for kind in nouns}
    weekdays, periods, daily = (
        [_noun(word, entry) for word, entry in data[name].items()] for name in ("weekdays", "periods", "daily")
    )
    return Lexicon(
        nouns=nouns,
        people=people,
        verbs={frame: [verb for verb in verbs if verb.tenses[frame]] for frame in FRAMES},
        reports=[verb(word, entry) for word, entry in data["reports"].items()],
        takers={
            noun: [verb for verb in verbs if verb.tenses["past"] and any(noun in group for group in verb.objects)]
            for kind in nouns.values()
            for noun in kind
        },
        adjectives=suiting,
        beside={kind: [adjective for adjective in group if not adjective.state] for kind, group in suiting.items()},
        described=["person", "person", *(kind for kind, group in suiting.items() if group and kind != "kin")],
        places=(nouns["place"], cities),
        days=[*weekdays, *periods],
        every=[*weekdays, *periods, *daily],
        months=[{"en": month, **entry} for month, entry in data["months"].items()],
        weekdays=weekdays,
        tongues={code: _tongue(code, data[code]) for code in LANGUAGES},
    )
