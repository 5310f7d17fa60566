"""Unknown words for every kind of tokenizer: their positions, and their share of a text."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import (
    UnknownTextWarning,
    UnknownWord,
    find_words,
    named,
    unknown_share,
    unknown_tokens,
    unknown_words,
    warn_of_unknown,
)

KNOWN = {"we", "are", "eating", "bread", "house", ",", ".", "don't"}
LETTERS = st.text(alphabet="abwer’'漢字क्षй🙂 .,-\n\té", max_size=30)


def reads(texts):
    """A tokenizer with a few words; commas and periods are separate tokens."""
    return [all(part in KNOWN for part in re.sub(r"([,.])", r" \1 ", text).split()) for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("we are eating bread.", []),
        ("we, Anna, are", ["Anna"]),
        ("O'Brien don't", ["O'Brien"]),
        ("we 漢字 bread", ["漢字"]),
        ("漢字.", ["漢字"]),
        ("we 🙂👍🏽 bread", ["🙂👍🏽"]),
        ("नमस्ते bread", ["नमस्ते"]),
        ("Anna Anna", ["Anna", "Anna"]),
        ("", []),
        (" \n", []),
    ],
)
def test_words_are_found_without_the_punctuation_around_them(text, expected):
    found = unknown_words(text, reads)
    assert [each.word for each in found] == expected
    assert all(text[each.start : each.end] == each.word for each in found)


@given(LETTERS)
def test_what_is_named_is_in_the_text_and_what_is_left_is_known(text):
    found = unknown_words(text, reads)
    assert found == sorted(found, key=lambda each: each.start)
    assert all(text[start:end] == word and word.strip() == word for word, start, end in found)
    assert all(one.end <= other.start for one, other in pairwise(found))
    rest = list(text)
    for _, start, end in found:
        rest[start:end] = " " * (end - start)
    assert all(reads(["".join(rest)]))
    assert bool(found) == (not all(reads([text])))
    assert 0 <= unknown_share(text, found) <= 1


@pytest.mark.parametrize("kind", ["word", "character", "bpe", "unigram", "wordpiece"])
def test_every_kind_of_pair_tokenizer(kind):
    pairs = [Pair("we are eating bread", "estamos comiendo pan")] * 20
    config = TokenizerConfig(kind=kind, size=60, min_frequency=1)
    side = train_pair_tokenizer(pairs, config, "en", ["es"]).source
    assert unknown_words("we are eating bread", side.reads) == []
    text = "we are eating Ωμέγα now"
    found = unknown_words(text, side.reads)
    assert UnknownWord("Ωμέγα", 14, 19) in found
    assert {each.word for each in found} <= {"Ωμέγα", "now"}
    assert unknown_share("Привет, мир", unknown_words("Привет, мир", side.reads)) > 0.8


def test_a_vocabulary_in_capitals_of_which_the_text_is_lowercased_knows_nothing(tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nWE\nEAT\nBREAD\n")
    tokenizer = TextTokenizer.load(tmp_path)  # which lowercases by default, like BERT's
    assert [each.word for each in unknown_words("WE EAT BREAD", tokenizer.reads)] == ["WE", "EAT", "BREAD"]
    assert unknown_share("WE EAT BREAD", unknown_words("WE EAT BREAD", tokenizer.reads)) == 1


def test_bytes_are_all_known(tmp_path: Path):
    library = tokenizers.Tokenizer(models.BPE({letter: n for n, letter in enumerate(
        sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))  # fmt: skip
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}')
    tokenizer = TextTokenizer.load(tmp_path)
    assert unknown_words("Привет 漢字 <|endoftext|>", tokenizer.reads) == []
    assert tokenizer.unknown is not None and tokenizer.only_unknown is None


def test_words_in_html_are_found_outside_of_tags():
    page = '<p title="Anna">Hi <b>Anna</b>, Annabel <!-- Anna --><script>Anna</script>Anna</p>'
    found = find_words(page, ["Anna", "Zoë"])
    assert [page[each.start : each.end] for each in found] == ["Anna", "Anna"]
    assert find_words(page, []) == []


def test_what_is_told():
    words = [UnknownWord(word, 0, 1) for word in "abcadefg"]
    assert named(words) == "a, b, c, d, e and 2 more"
    assert unknown_tokens({"source": 0.0, "target": 0.0004}) == ""
    assert unknown_tokens({"source": 0.031, "target": 0.0}) == "; unknown tokens: 3.1% of the source"
    with pytest.warns(UnknownTextWarning, match=r"60.0% of the source"):
        unknown_tokens({"source": 0.6, "target": 0.0})
    find = lambda text: unknown_words(text, reads)  # noqa: E731
    with pytest.warns(UnknownTextWarning, match=r"2 of 3 texts.*'Привет мир'.*100%.*Привет, мир"):
        warn_of_unknown(["we are", "Привет мир", "нет"], find)
    warn_of_unknown(["we are", "we are eating Anna"], find)  # most words are known
