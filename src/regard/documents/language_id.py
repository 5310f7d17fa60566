"""Language identification: py3langid's naive Bayes over byte n-grams, plus common words for short texts."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from regard.data.formats.languages import find_language, same_language

MAX_CHARACTERS = 10_000  # of a text are read
SHORT_TEXT = 8  # words up to which common words count; n-grams suffice for longer texts
WORD_ODDS = 100.0  # factor for a language per common word of it
WIDE_ODDS = 8.0  # prior factor of widely written languages
SOURCE_ODDS = 2.0  # prior factor of a language that can be translated over the target language
# An unexpected language is chosen if it is CLEAR_ODDS times likelier than the best expected one. It must also reach
# PROBABLE_ABOVE per cent, unless the expected ones are below IMPOSSIBLE_BELOW per cent, as in another script.
CLEAR_ODDS, PROBABLE_ABOVE, IMPOSSIBLE_BELOW = 5.0, 25.0, 0.1
# Common words alone decide if one language has so many more than any other, and they are so large a share of all words.
OBVIOUS_LEAD, OBVIOUS_SHARE = 2, 0.4
# From so many letters on, a language that is told is right 99 times in 100 (`bench/languages.py`)
SURE_LETTERS = 30
MIN_CONFIDENCE, MAX_LANGUAGES = 1.0, 10  # least confidence in per cent, and most languages, of an answer
FALLBACK = "en"
WORDLESS = "zxx"  # the label of text without linguistic content
WORD = re.compile(r"[^\s\d.,;:!?¡¿…\"'’()«»„“”]+")
WIDELY_WRITTEN = (
    "ar bg bn cs da de el en es fa fi fr he hi hr hu id it ja ko lt ms nb nl no pl pt ro ru sk sl sr sv ta th tr uk"
    " ur vi zh"
)
# Common words by language: n-grams of one or two words carry almost no information
COMMON_WORDS = {
    code: frozenset(words.split())
    for code, words in (
        line.split(": ") for line in Path(__file__).with_name("common_words.txt").read_text("utf-8").splitlines()
    )
}
LANGUAGES_OF: dict[str, list[str]] = defaultdict(list)  # by common word, the languages that have it
for _language, _words in COMMON_WORDS.items():
    for _word in _words:
        LANGUAGES_OF[_word].append(_language)
# Varieties that are reported as a more general language
GENERAL_LANGUAGE = {
    "yue": "zh", "wuu": "zh", "ary": "ar", "arz": "ar", "fuv": "ff", "grc": "el", "gug": "gn", "hbo": "he", "kik": "ki",
    "no": "nb", "sdh": "ku", "uzs": "uz",
}  # fmt: skip


class Detected(NamedTuple):
    """A language and its confidence from 0 to 100."""

    language: str
    confidence: float


def detect(text: str, codes: Sequence[str] = ()) -> list[Detected]:
    """The languages that a text may be in, best first; never empty.

    If `codes` has a code for a language, such as pt-BR, that code is used. Confidences sum to 100 over all languages;
    the answer has at most ten, without those below 1. A text without letters is English (or the first code) with 0.
    """
    found = [Detected(*each) for each in sorted(_probabilities(text, codes).items(), key=lambda each: -each[1])]
    if not found:
        return [Detected(FALLBACK if not codes or FALLBACK in codes else codes[0], 0.0)]
    return found[:1] + [each for each in found[1:MAX_LANGUAGES] if each.confidence >= MIN_CONFIDENCE]


def choose_language(text: str, sources: Sequence[str], target: str = "", preferred: str = "") -> Detected:
    """The language of a text that is to be translated from one of `sources` into `target`.

    It is one of these unless another language is clearly likelier: a single word or name is weak evidence. For the same
    reason it is the `preferred` one of them, if any, unless another of them is clearly likelier.
    """
    expected = dict.fromkeys([*sources, *([target] if target else [])])
    if (obvious := _obvious_language(text, list(expected))) is not None:
        return obvious
    probabilities = _probabilities(text, list(expected))
    if not probabilities:
        return Detected(sources[0], 0.0)
    odds = {code: probabilities.get(code, 0.0) * (SOURCE_ODDS if code in sources else 1.0) for code in expected}
    if preferred in sources:
        odds[preferred] *= CLEAR_ODDS
    best, other = max(odds, key=odds.__getitem__), max(probabilities, key=probabilities.__getitem__)
    surprising = other not in odds and probabilities[other] > CLEAR_ODDS * odds[best]
    clear = surprising and (probabilities[other] >= PROBABLE_ABOVE or odds[best] < IMPOSSIBLE_BELOW)
    decided = other if clear else best
    return Detected(decided, probabilities.get(decided, 0.0))


def foreign_language(text: str, sources: Sequence[str]) -> str:
    """The language of a text that is surely in none of these; empty if it may be in one of them.

    Below SURE_LETTERS only another script, or common words of the other language, are evidence enough.
    """
    found = choose_language(text, sources).language
    if any(same_language(found, each) for each in sources):
        return ""
    surely = letters(text) >= SURE_LETTERS or _obvious_language(text, [found]) is not None
    return found if surely or not _scripts(text) & _scripts_of(sources) else ""


def letters(text: str) -> int:
    """How many letters of a text are read: the length by which its language is told more or less surely."""
    return sum(map(str.isalpha, text[:MAX_CHARACTERS]))


def _scripts(text: str) -> set[str]:
    """The scripts of the letters of a text: LATIN, CYRILLIC, …"""
    return {unicodedata.name(each, "").split(" ")[0] for each in set(text[:MAX_CHARACTERS]) if each.isalpha()}


def _scripts_of(languages: Sequence[str]) -> set[str]:
    """The scripts of languages; Latin is the script of those whose common words are not known."""
    words = (COMMON_WORDS.get(find_language(list(COMMON_WORDS), each) or "", ("a",)) for each in languages)
    return set().union(*(_scripts("".join(some)) for some in words))


def _obvious_language(text: str, codes: Sequence[str]) -> Detected | None:
    """The one of these languages whose common words a text has, if it has few others; no model has to be loaded."""
    words = WORD.findall(text[:MAX_CHARACTERS].lower())
    counts = dict.fromkeys(COMMON_WORDS, 0) | _common_words(words)
    second, best = sorted(counts, key=counts.__getitem__)[-2:]
    code = find_language(codes, best)
    clear = counts[best] - counts[second] >= OBVIOUS_LEAD and counts[best] >= OBVIOUS_SHARE * len(words)
    return Detected(code, 100.0) if clear and code is not None else None


def _common_words(words: Sequence[str]) -> Counter[str]:
    """How many of some words are common ones of each language."""
    return Counter(code for word in words for code in LANGUAGES_OF.get(word, ()))


def _probabilities(text: str, codes: Sequence[str]) -> Mapping[str, float]:
    """The probability of each language in per cent; empty if the text has no letters."""
    text = text[:MAX_CHARACTERS]
    if not any(map(str.isalpha, text)):
        return {}
    words, wide = WORD.findall(text.lower()), WIDELY_WRITTEN.split()
    odds: dict[str, float] = defaultdict(float)
    common = _common_words(words) if len(words) <= SHORT_TEXT else Counter[str]()
    for label, probability in _model().rank(text):
        if label == WORDLESS:
            continue
        prior = WIDE_ODDS if label in wide else 1.0
        odds[_code(label, tuple(codes))] += prior * probability * WORD_ODDS ** common[label]
    total = math.fsum(odds.values())
    return {code: 100 * value / total for code, value in odds.items()}


@lru_cache(maxsize=4096)
def _code(label: str, codes: tuple[str, ...]) -> str:
    """The code for a label: the matching one of `codes`, else the general language."""
    general = GENERAL_LANGUAGE.get(label, label)
    return next(filter(None, (find_language(codes, name) for name in (label, general))), general)


_loading = Lock()


def _model() -> Any:
    with _loading:  # loading takes half a second, once; using the model needs no lock
        return _loaded()


@cache
def _loaded() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
