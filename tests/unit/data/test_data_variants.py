"""Variants of training pairs: extra copies that the seed and the texts decide, and whose sides stay parallel."""

import re
from random import Random

import pytest

from regard.data.formats.pairs import Pair
from regard.data.text.variants import VariantsSection, invented_name, with_variants

PAIRS = [Pair(f"Tom isn't {n} years old.", f"Tom no tiene {n} años.", to="es") for n in range(100, 400)]


def _made(pairs=PAIRS, seed=1, **shares) -> list[Pair]:
    found = list(with_variants(pairs, VariantsSection(**shares), seed))
    kept = iter(pairs)
    upcoming, extra = next(kept, None), []
    for pair in found:
        if pair is upcoming:
            upcoming = next(kept, None)
        else:
            extra.append(pair)
    assert upcoming is None  # all originals, in their order
    return extra


def test_without_shares_nothing_is_added():
    assert _made() == []


def test_the_same_seed_adds_the_same_and_another_seed_others():
    shares = {"lower": 0.3, "joined": 0.3, "copied": 0.3, "apostrophes": 0.3}
    assert _made(**shares) == _made(**shares) != _made(seed=2, **shares)
    assert len({pair.to for pair in _made(**shares)}) == 1


@pytest.mark.parametrize("kind", ["lower", "upper", "unpunctuated", "apostrophes", "joined", "copied"])
def test_a_share_is_a_share_of_the_pairs(kind):
    assert 60 <= len(_made(**{kind: 0.3})) <= 120
    assert len(_made(**{kind: 1.0})) >= len(PAIRS) - 1


def test_only_what_people_type_changes():
    lower = _made(lower=1.0)
    assert {pair.source for pair in lower if "100" in pair.source} <= {
        "tom isn't 100 years old.", "tom isn't 100 years old"
    }  # fmt: skip
    assert {pair.source[-1] for pair in lower} == {".", "d"} and lower[0].target == PAIRS[0].target
    assert _made(PAIRS[:1], unpunctuated=1.0)[0].source == "Tom isn't 100 years old"
    assert _made(PAIRS[:1], apostrophes=1.0)[0].source == "Tom isn’t 100 years old."
    quoted = [Pair('He said "yes".', "Dijo «sí».")]
    assert _made(quoted, apostrophes=1.0)[0].source == "He said “yes”."
    assert _made(PAIRS[:1], upper=1.0)[0] == Pair("TOM ISN'T 100 YEARS OLD.", "TOM NO TIENE 100 AÑOS.", to="es")
    assert _made([Pair("why", "por qué")], lower=1.0, unpunctuated=1.0, apostrophes=1.0) == []


def test_joined_texts_have_the_same_sentences_on_both_sides():
    for pair in _made(joined=1.0):
        numbers = [[word for word in side.split() if word.isdecimal()] for side in (pair.source, pair.target)]
        assert numbers[0] == numbers[1] and 2 <= len(numbers[0]) <= 4


def test_what_is_copied_is_the_same_on_both_sides():
    made = _made(copied=1.0)
    assert len(made) == len(PAIRS)
    for pair, old in zip(made, PAIRS, strict=True):
        words = [set(re.findall(r"\S+[^\s.:]", side)) for side in (pair.source, pair.target)]
        known = set(re.findall(r"\S+[^\s.:]", f"{old.source} {old.target}"))
        assert words[0] - known == words[1] - known


def test_names_are_many_and_look_like_names():
    names = {invented_name(Random(seed)) for seed in range(1000)}
    assert len(names) > 900 and all(name[0].isupper() and name.isalpha() for name in names)
