"""The built-in corpus: English sentences of our own grammar, their Spanish or Portuguese translation and gold links.

The target is a function of the source. Sentences are written as in the lectures: no capital but in names, no full stop.

Links join words by meaning. *Sure* (`Pair.links`): a word and its translation; every English word that one form
swallows (`will eat` = comerá, `in the` = no, `there is` = hay). *Possible* (`Pair.possible`, which includes the sure
ones): words that have no counterpart, with the word that stands for them: a dropped pronoun or `do` with the finite
verb; an article, `de` or a personal `a` that English lacks with the noun or owner it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from random import Random

from regard.data.formats.pairs import Pair
from regard.data.sources import Part
from regard.data.synthetic.phrasebook.drawing import draw_sentence
from regard.data.synthetic.phrasebook.morphology import LANGUAGES, lexicon
from regard.errors import DataError, UsageError

SHORTEST, PATIENCE = 2, 20_000
SALT = b"regard 61"  # with it, both sentences of the lectures are held out for `test`


def phrases(
    target: str, *, part: Part, count: int, seed: int, max_words: int = 60, min_words: int = 1
) -> Iterator[Pair]:
    """Draw `count` pairs with distinct sources of `min_words` to `max_words` English words, spread over these lengths.

    A hash of the source decides its part (5 % test, 5 % valid), so no sentence is in two parts, whatever the seed."""
    if target not in LANGUAGES:
        raise UsageError(f"the phrasebook speaks {' and '.join(LANGUAGES)}, not {target!r}")
    if max_words < max(SHORTEST, min_words):
        raise UsageError(f"no phrasebook sentence has {min_words} to {max_words} words; the shortest has {SHORTEST}")
    words, random, shortest = lexicon(), Random(seed).random, max(SHORTEST, min_words)
    seen, failures = set[int](), 0
    while len(seen) < count:
        length = shortest + int((max_words - shortest + 1) * random())
        speech = draw_sentence(random, words, words.tongues[target], length)
        number = _number(speech.source)
        if _part(number) != part or not min_words <= len(speech.english) <= max_words or number in seen:
            failures += 1
            if failures > PATIENCE:
                raise DataError(
                    f"found only {len(seen)} of {count} phrasebook sentences of {min_words} to {max_words} words "
                    f"for {part!r}; ask for fewer or for a wider range of lengths"
                )
            continue
        failures = 0
        seen.add(number)
        yield speech.pair()


def part_of(source: str) -> Part:
    """The part of the corpus a source sentence belongs to."""
    return _part(_number(source))


def _number(source: str) -> int:
    return int.from_bytes(blake2b(source.encode(), digest_size=8, salt=SALT).digest(), "big")


def _part(number: int) -> Part:
    share = number % 20
    return "test" if share == 0 else "valid" if share == 1 else "train"
