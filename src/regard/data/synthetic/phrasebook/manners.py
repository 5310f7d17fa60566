"""How people write a sentence: with or without capitals, end marks and contractions, or all in lower case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

CONTRACTED = {
    **{(who, "am"): f"{who}'m" for who in ("I",)},
    **{(who, "are"): f"{who}'re" for who in ("you", "we", "they")},
    **{(who, "is"): f"{who}'s" for who in ("he", "she", "it", "that", "there", "what", "where", "who", "how")},
    **{(who, "will"): f"{who}'ll" for who in ("I", "you", "he", "she", "we", "they", "it")},
    **{(who, "would"): f"{who}'d" for who in ("I", "we")},
    **{(verb, "not"): f"{verb}n't" for verb in ("do", "does", "did", "is", "are", "was", "were", "have", "has")},
    ("will", "not"): "won't",
    ("can", "not"): "can't",
    ("let", "us"): "let's",
}
PERFECT = ("been", "never", "already", "had", "lost", "lived")  # `have` is contracted before these alone
CONTRACTED_PERFECT = CONTRACTED | {(who, "have"): f"{who}'ve" for who in ("I", "you", "we", "they")}
JOINED = {("can", "not"): "cannot"}  # also by those who never contract
CURLED = 0.1  # of the apostrophes
LOUD = 0.08  # of the statements

Links = Iterable[tuple[int, int]]


class Sentence(NamedTuple):
    """How many English and other words there are at its end, its mark (. ? or !), and the word ¿ or ¡ belongs to."""

    end: int
    other_end: int
    mark: str
    opened: int


class Manner(NamedTuple):
    """A way of writing. Plain is the way of the lectures: no capital but in names, and no mark but `?`."""

    capital: bool = False  # at the beginning of a sentence
    stop: bool = False  # at its end, unless it is a question
    loud: bool = False  # with an exclamation mark for a full stop
    ask: bool = True  # whether a question has its mark
    contract: bool = False
    curly: bool = False  # the apostrophe
    lower: bool = False  # names and `I` too
    title: bool = False  # a capital for every word


PLAIN = Manner()
WAYS: tuple[tuple[float, Manner], ...] = (  # their shares
    (0.27, PLAIN),
    (0.42, Manner(capital=True, stop=True)),
    (0.09, Manner(capital=True)),
    (0.06, Manner(capital=True, ask=False)),
    (0.05, Manner(stop=True)),
    (0.03, Manner(ask=False)),
    (0.05, Manner(ask=False, lower=True)),
    (0.03, Manner(title=True, capital=True, stop=True)),
)
LIMITS = tuple((limit, manner) for limit, (_, manner) in zip(accumulate(share for share, _ in WAYS), WAYS, strict=True))


def draw_manner(random: Callable[[], float], first: str, mark: str) -> Manner:
    """A way of writing, as often as newcomers write so. A `first` word that is a name, or `I`, does not tell whether
    sentences begin with capitals; then they do if the last one, which asks for this `mark`, has it."""
    drawn = random()
    manner = next((manner for limit, manner in LIMITS if drawn < limit), PLAIN)
    if first[:1].isupper():
        manner = manner._replace(capital=manner.ask if mark == "?" else manner.stop)
    return manner._replace(contract=random() < 0.6, curly=random() < CURLED, loud=random() < LOUD)


def write(
    english: Sequence[str],
    others: Sequence[str],
    sentences: Sequence[Sentence],
    manner: Manner,
    opening: bool,
    made: Collection[str] = (),
) -> tuple[list[str], list[str], list[int]]:
    """English words, the others, and where each English word has gone, since a contraction is one word for two.

    `opening` tells whether ¿ and ¡ stand before a question and an exclamation; `made` holds words that are copied, so
    they are in lower case where the English ones are."""
    ends = {sentence.end for sentence in sentences}
    words, moved = _contracted(english, ends, manner)
    texts = [text.lower() if manner.lower and text in made else text for text in others]
    if manner.lower:
        words = [word.lower() for word in words]
    if manner.title:
        words = [_capital(word) for word in words]
    begun, told = 0, 0
    for number, (end, other_end, mark, opened) in enumerate(sentences):
        last = number == len(sentences) - 1
        if manner.loud and mark == ".":
            mark = "!"
        if mark == "?":
            shown, answered = ("?" if manner.ask or not last else ""), "?"
        else:
            shown = answered = mark if manner.stop or not last else ""
        if manner.capital:
            words[moved[begun]], texts[told] = _capital(words[moved[begun]]), _capital(texts[told])
        if opening and answered in ("?", "!"):
            texts[opened] = {"?": "¿", "!": "¡"}[answered] + texts[opened]
        words[moved[end - 1]] += shown
        texts[other_end - 1] += answered
        begun, told = end, other_end
    return words, texts, moved


def _contracted(english: Sequence[str], ends: Collection[int], manner: Manner) -> tuple[list[str], list[int]]:
    if not manner.contract and "can" not in english:
        return list(english), list(range(len(english)))
    words, moved = list[str](), list[int]()
    for place, word in enumerate(english):
        pair = (english[place - 1], word) if place and place not in ends else ("", "")
        perfect = place + 1 < len(english) and english[place + 1] in PERFECT
        table = CONTRACTED_PERFECT if perfect else CONTRACTED
        short = table.get(pair, "") if manner.contract and (place + 1 not in ends or word == "not") else ""
        short = short or JOINED.get(pair, "")
        if short and words[-1] == pair[0]:
            words[-1] = short.replace("'", "’") if manner.curly else short
        else:
            words.append(word)
        moved.append(len(words) - 1)
    return words, moved


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]
