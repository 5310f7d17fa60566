"""Which language a text is in: py3langid's naive Bayes over byte n-grams, and common words where a text is short."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from threading import Lock
from typing import Any, NamedTuple

from regard.data.languages import NAMES, find_language

CHARACTERS = 10_000  # of a text are enough
SHORT = 8  # words; longer texts speak for themselves
WORD_ODDS = 30.0  # how much likelier a common word makes a language
LEAST = 1.0  # per cent; what is less likely is left out, unless it is the best
FALLBACK = "en"
# n-grams say next to nothing about a word or two
COMMON_WORDS = {
    "cs": "ahoj ano ne dobrý den děkuji prosím je to a v na se že co jak kde dům voda chléb",
    "da": "hej ja nej tak godmorgen og er det jeg du ikke en at hvad hvor hus vand brød",
    "de": "hallo ja nein danke bitte guten morgen tag und ist das der die ein eine ich du wir nicht was wie wo haus",
    "en": "hello hi yes no ok okay thanks thank you please good morning the a and is are it this that i we he she not"
    " what how where who world house water bread",
    "es": "hola sí no gracias favor buenos buenas días y es el la los las un una yo tú nosotros qué cómo dónde mundo"
    " casa agua pan",
    "fi": "hei terve kyllä ei kiitos hyvää huomenta ja on se minä sinä mitä missä talo vesi leipä",
    "fr": "bonjour salut oui non merci plaît et est le la les un une je tu nous vous que comment où monde maison eau",
    "hu": "szia igen nem köszönöm kérem jó reggelt napot és van a az egy mi hogy hol ház víz kenyér",
    "it": "ciao sì no grazie prego buongiorno e è il la gli un una io tu noi che come dove mondo casa acqua pane",
    "nl": "hallo hoi ja nee bedankt dank alstublieft goedemorgen en is het de een ik jij wij niet wat hoe waar huis",
    "no": "hei ja nei takk god morgen og er det jeg du ikke en et hva hvor hus vann brød",
    "pl": "cześć tak nie dziękuję proszę dzień dobry i jest to w na się że co jak gdzie świat dom woda chleb",
    "pt": "olá oi sim não obrigado obrigada favor bom dia e é o a os as um uma eu nós que como onde mundo água pão",
    "ro": "salut bună da nu mulțumesc și este un o eu tu noi ce cum unde lume casă apă pâine",
    "ru": "привет здравствуйте да нет спасибо и это я ты мы не что как где мир дом вода хлеб",
    "sv": "hej ja nej tack god morgon och är det jag du inte en ett vad hur var hus vatten bröd",
    "tr": "merhaba selam evet hayır teşekkürler günaydın ve bu bir ben sen biz değil ne nasıl nerede dünya ev su ekmek",
    "uk": "привіт так ні дякую і це я ти ми не що як де світ дім вода хліб",
}
# Varieties that count for the language people name
COUNTED_AS = {
    "yue": "zh", "wuu": "zh", "ary": "ar", "arz": "ar", "fuv": "ff", "gug": "gn", "hbo": "he", "kik": "ki",
    "no": "nb", "sdh": "ku", "uzs": "uz",
}  # fmt: skip


class Detected(NamedTuple):
    """A language and how sure it is, from 0 to 100."""

    language: str
    confidence: float


def detect(text: str, among: Sequence[str] | None = None) -> list[Detected]:
    """The languages a text may be in, best first, of all or of those given; there is always a best one.

    Confidences are shares of 100 among all known languages, so they stay low for a text in none of those given.
    Languages below 1 are left out. A text without letters is English (or the first given) with confidence 0."""
    chances = _chances(text[:CHARACTERS], among or ())
    wanted = [Detected(code, chances[code]) for code in (among or chances) if chances.get(code)]
    found = sorted(wanted, key=lambda each: -each.confidence)
    if not found:
        return [Detected(FALLBACK if not among or FALLBACK in among else among[0], 0.0)]
    return found[:1] + [each for each in found[1:] if each.confidence >= LEAST]


def _chances(text: str, given: Sequence[str]) -> Mapping[str, float]:
    """The probability of each language in per cent; none if there is nothing to tell it by."""
    if not any(map(str.isalpha, text)):
        return {}
    words = [word.strip(".,;:!?¡¿…\"'()«»„“”") for word in text.lower().split()[: SHORT + 1]]
    odds: dict[str, float] = defaultdict(float)
    for label, probability in _model().rank(text):
        common = sum(word in _common(label) for word in words) if len(words) <= SHORT else 0
        if code := _code(label, tuple(given)):
            odds[code] += probability * WORD_ODDS**common
    total = math.fsum(odds.values())
    return {code: 100 * value / total for code, value in odds.items()}


@lru_cache(maxsize=4096)
def _code(label: str, given: tuple[str, ...]) -> str | None:
    """The code to answer with: one of those given if it fits, else one that has a name."""
    names = (label, COUNTED_AS.get(label, label))
    return next(filter(None, (find_language(pool, name) for pool in (given, NAMES) for name in names)), None)


@cache
def _common(language: str) -> frozenset[str]:
    return frozenset(COMMON_WORDS.get(language, "").split())


_loading = Lock()


def _model() -> Any:
    with _loading:  # half a second, once; reading it needs no lock
        return _loaded()


@cache
def _loaded() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
