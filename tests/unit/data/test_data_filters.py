import subprocess
import sys
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.formats.filters import FilterConfig, HashSet, PairFilter, split_by_hash, stable_hash
from regard.data.formats.pairs import Pair
from regard.errors import UsageError


def test_each_reason_is_counted_once():
    pairs = [
        Pair("keep me", "behalte mich"),
        Pair("  ", "leer"),
        Pair("empty", ""),
        Pair("one two three four", "eins"),
        Pair("x" * 31, "y" * 31),
        Pair("ab", "abcdefg"),
        Pair("same", "same"),
        Pair("keep me", "behalte mich"),
        Pair("keep me", "behalt mich"),
    ]
    keep = PairFilter(FilterConfig(max_words=3, max_characters=30, max_ratio=3, copies=False))
    assert list(keep(iter(pairs))) == [pairs[0], pairs[8]]
    assert keep.report == {"kept": 2, "empty": 2, "too_long": 2, "ratio": 1, "copy": 1, "duplicate": 1}
    assert sum(keep.report.values()) == len(pairs)


def test_limits_can_be_switched_off():
    pairs = [Pair("a", "b " * 400), Pair("a", "a"), Pair("a", "a")]
    everything = FilterConfig(max_words=None, max_characters=None, max_ratio=None, duplicates=True)
    assert list(PairFilter(everything)(pairs)) == pairs


def test_one_sentence_in_two_languages_is_no_duplicate():
    pairs = [Pair("no", "no", to="es"), Pair("no", "no", to="it")]
    assert list(PairFilter(FilterConfig())(pairs)) == pairs


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1)))
def test_hash_set_is_a_set(values: list[int]):
    compact, plain = HashSet(), set()
    for value in values:
        value = value or 1
        assert compact.add(value) == (value not in plain)
        plain.add(value)
    assert len(compact) == len(plain)


def test_hash_set_takes_at_most_16_bytes_a_value():
    tracemalloc.start()
    values = HashSet()
    for number in range(20_000):
        assert values.add(stable_hash(str(number)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 17 * 20_000
    assert not any(values.add(stable_hash(str(number))) for number in range(20_000))


def test_split_is_by_source_and_in_proportion():
    parts = {"train": 0.8, "valid": 0.15, "test": 0.05}
    counts = Counter(split_by_hash(f"sentence {n}", parts) for n in range(20_000))
    assert {name: pytest.approx(20_000 * share, rel=0.1) for name, share in parts.items()} == counts
    assert split_by_hash("A  sentence\t", parts) == split_by_hash("a SENTENCE", parts)
    assert {split_by_hash(str(n), {"train": 1, "none": 0}) for n in range(100)} == {"train"}


def test_split_is_the_same_in_every_process():
    imports = "from regard.data.formats.filters import split_by_hash as s"
    code = f"{imports}; print(*[s(str(n), {{'a': 1, 'b': 1}}) for n in range(50)])"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.split() == [split_by_hash(str(n), {"a": 1, "b": 1}) for n in range(50)]


@pytest.mark.parametrize("parts", [{}, {"a": -1, "b": 2}, {"a": 0}])
def test_impossible_parts_are_refused(parts: dict[str, float]):
    with pytest.raises(UsageError, match="shares of 0 or more"):
        split_by_hash("x", parts)
