"""Word and character error rates: by hand, by brute force, and against jiwer where it is installed."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.families.speech.metrics import Edits, character_edits, edits, plain_words, word_edits

texts = st.lists(st.sampled_from(["a", "b", "c", "the", "cat"]), max_size=7).map(" ".join)


def fewest(one, two):
    """The distance by trying everything."""

    @cache
    def of(i, j):
        if i == 0 or j == 0:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != two[j - 1]))

    return of(len(one), len(two))


@given(texts, texts)
def test_edits_are_the_fewest_and_explain_the_lengths(said, heard):
    found = edits(said, heard)
    assert found.wrong == fewest(said, heard)
    assert len(said) + found.insertions - found.deletions == len(heard) and found.reference == len(said)


def test_kinds_of_edits_by_hand():
    assert edits(["one", "two", "three"], ["one", "too", "three"]) == Edits(1, 0, 0, 3)
    assert edits(["one", "two", "three"], ["one", "three"]) == Edits(0, 1, 0, 3)
    assert edits(["one"], ["one", "two", "three"]) == Edits(0, 0, 2, 1)
    assert word_edits(["a b", "c"], ["a", "c d e"]) == Edits(0, 1, 2, 3)
    assert word_edits(["a b", "c"], ["a", "c d e"]).rate == 1.0
    assert character_edits(["a  b"], ["a b c"]) == Edits(0, 0, 2, 3)
    assert word_edits([""], [""]).rate == 0 and word_edits([""], ["x"]).rate == 1


def test_punctuation_and_case_do_not_count():
    assert plain_words("Well — \"it's\" 5 o'clock, isn't it?  Über_all!") == "well it's 5 o'clock isn't it über all"


@given(st.lists(st.tuples(texts.filter(bool), texts), min_size=1, max_size=4))
def test_rates_are_those_of_jiwer(pairs):
    jiwer = pytest.importorskip("jiwer", reason="jiwer is not installed")
    said, heard = map(list, zip(*pairs, strict=True))
    assert word_edits(said, heard).rate == pytest.approx(jiwer.wer(said, heard))
    assert character_edits(said, heard).rate == pytest.approx(jiwer.cer(said, heard))
