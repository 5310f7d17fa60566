"""The built-in corpus: English sentences of our own grammar, their Spanish or Portuguese translation and gold links.

The target is a function of the source. Sentences are written as in the lectures: no capital but in names, no full stop.
Everyday ones are what newcomers type: greetings, questions and orders beside the clauses of the grammar, with or
without capitals, end marks and contractions, and with names that are made up.

Links join words by meaning. *Sure* (`Pair.links`): a word and its translation; every English word that one form
swallows (`will eat` = comerá, `in the` = no, `there is` = hay). *Possible* (`Pair.possible`, which includes the sure
ones): words that have no counterpart, with the word that stands for them: a dropped pronoun or `do` with the finite
verb; an article, `de` or a personal `a` that English lacks with the noun or owner it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import Literal

from regard.data.formats.pairs import Pair
from regard.data.synthetic.phrasebook.drawing import draw_sentence
from regard.data.synthetic.phrasebook.everyday import draw_everyday
from regard.data.synthetic.phrasebook.manners import PLAIN, draw_manner
from regard.data.synthetic.phrasebook.morphology import LANGUAGES, Lexicon, lexicon
from regard.errors import DataError, UsageError

Part = Literal["train", "valid", "test"]
SHORTEST, PATIENCE = 2, 20_000
MARKS = str.maketrans("", "", ",.?!")
SALT = b"regard 61"  # with it, both sentences of the lectures are held out for `test`


def phrases(
    target: str, *, part: Part, count: int, seed: int, max_words: int = 60, min_words: int = 1, everyday: bool = False
) -> Iterator[Pair]:
    """Draw `count` pairs with distinct sources of `min_words` to `max_words` English words, spread over these lengths.

    A hash of the source, plainly written, decides its part (5 % test, 5 % valid), so no sentence is in two parts,
    whatever the seed and however it is written; set phrases alone, of which there are few, are all for training."""
    if target not in LANGUAGES:
        raise UsageError(f"the phrasebook speaks {' and '.join(LANGUAGES)}, not {target!r}")
    if max_words < max(SHORTEST, min_words):
        raise UsageError(f"no phrasebook sentence has {min_words} to {max_words} words; the shortest has {SHORTEST}")
    seen, failures = set[int](), 0
    for pair in _drawn(target, part, Random(seed).random, (max(SHORTEST, min_words), max_words), everyday):
        if len(seen) == count:
            return
        number = _number(pair.source) if pair else 0
        if not pair or not min_words <= pair.source.count(" ") + 1 <= max_words or number in seen:
            failures += 1
            if failures > PATIENCE:
                raise DataError(
                    f"found only {len(seen)} of {count} phrasebook sentences of {min_words} to {max_words} words "
                    f"for {part!r}; ask for fewer or for a wider range of lengths"
                )
            continue
        failures = 0
        seen.add(number)
        yield pair


def _drawn(
    target: str, part: Part, random: Callable[[], float], lengths: tuple[int, int], everyday: bool
) -> Iterator[Pair | None]:
    """Sentences without end, None for those of another part."""
    words, (shortest, longest), fixed = lexicon(everyday), lengths, False
    tongue = words.tongues[target]
    phrases_alone = _set_phrases(words) if everyday else ()  # which the grammar may say, too
    while True:
        length = shortest + int((longest - shortest + 1) * random())
        if everyday:
            speech, fixed = draw_everyday(random, words, tongue, length)
        else:
            speech = draw_sentence(random, words, tongue, length)
        plain = _unmarked(speech.plainly()) if everyday else speech.plainly()
        own = "train" if fixed or plain in phrases_alone else _part(_number(plain))
        manner = draw_manner(random, speech.english[0], speech.sentences[-1].mark) if everyday else PLAIN
        yield speech.pair(manner) if own == part else None


def _set_phrases(words: Lexicon) -> frozenset[str]:
    patterns = (pattern for group in words.patterns.values() for pattern in group if not pattern.slots)
    return frozenset(_unmarked(" ".join(map(str, pattern.words["en"]))) for pattern in patterns)


def _unmarked(text: str) -> str:
    return text.translate(MARKS)


def part_of(source: str) -> Part:
    """The part of the corpus a source sentence, plainly written, belongs to."""
    return _part(_number(source))


def _number(source: str) -> int:
    return int.from_bytes(blake2b(source.encode(), digest_size=8, salt=SALT).digest(), "big")


def _part(number: int) -> Part:
    share = number % 20
    return "test" if share == 0 else "valid" if share == 1 else "train"
