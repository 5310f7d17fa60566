"""Loops: an answer that says a word or a phrase over and over, as decoders do where they are lost."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

TOKEN_REPEATS, WORD_REPEATS = 4, 3  # how often in a row the tokens, or the words, of a loop are said
LONGEST_LOOP = 8  # tokens or words of one round
WORD = re.compile(r"[^\W\d_]+")  # numbers have rows of digits, and lists of dots


def repeats(source_ids: Sequence[int], target_ids: Sequence[int], source: str, answer: str) -> bool:
    """Whether an answer says something over and over that its source does not."""
    if has_loop(target_ids, TOKEN_REPEATS) and not has_loop(source_ids, TOKEN_REPEATS):
        return True
    source_words, words = (WORD.findall(text.lower()) for text in (source, answer))
    return has_loop(words, WORD_REPEATS) and not has_loop(source_words, WORD_REPEATS)


def has_loop(items: Sequence[Hashable], times: int) -> bool:
    """Whether some items are said so many times in a row."""
    for period in range(1, min(LONGEST_LOOP, len(items) // times) + 1):
        run = 0
        for here, before in zip(items[period:], items, strict=False):
            run = run + 1 if here == before else 0
            if run == period * (times - 1):
                return True
    return False
