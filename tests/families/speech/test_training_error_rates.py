"""Word and character error rates: by hand and by brute force."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.families.speech.task import error_rates, normalise

texts = st.lists(st.sampled_from(["a", "b", "c", "the", "cat"]), max_size=7).map(" ".join)


def fewest(one, two):
    """The distance by trying everything."""

    @cache
    def of(i, j):
        if i == 0 or j == 0:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != two[j - 1]))

    return of(len(one), len(two))


@given(st.lists(st.tuples(texts.filter(bool), texts), min_size=1, max_size=4))
def test_errors_are_the_fewest_and_explain_the_lengths(pairs):
    said, heard = ([text.split() for text in part] for part in zip(*pairs, strict=True))
    found = error_rates(*zip(*pairs, strict=True))
    assert found.words == sum(map(len, said))
    assert found.words + found.insertions - found.deletions == sum(map(len, heard))
    wrong = found.substitutions + found.deletions + found.insertions
    assert wrong == sum(map(fewest, said, heard)) == pytest.approx(found.wer * found.words)
    assert sum(fewest(*pair) for pair in pairs) == pytest.approx(found.cer * sum(len(one) for one, _ in pairs))
    assert found.wrong_texts == sum(one != other for one, other in pairs) / len(pairs)


def test_kinds_of_errors_by_hand():
    def kinds(reference, hypothesis):
        found = error_rates([reference], [hypothesis])
        return found.substitutions, found.deletions, found.insertions, found.words

    assert kinds("one two three", "one too three") == (1, 0, 0, 3)
    assert kinds("one two three", "one three") == (0, 1, 0, 3)
    assert kinds("one", "one two three") == (0, 0, 2, 1)
    assert error_rates(["a b", "c"], ["a", "c d e"]).wer == 1.0
    assert error_rates(["a  b"], ["a b c"]).cer == pytest.approx(2 / 3)
    assert error_rates([""], [""]).wer == 0 and error_rates([""], ["x"]).wer == 1


def test_punctuation_case_and_composition_do_not_count():
    assert normalise("Well — \"it's\" 5 o'clock, isn't it?  Über_all!") == "well it's 5 o'clock isn't it über all"
    assert error_rates(["Café, one."], ["cafe\u0301 ONE"]).wrong_texts == 0
