"""Training of WordPiece vocabularies that are the same in every process.

The trainer of `tokenizers` numbers the characters that continue a word (`##a`) in the order in which it meets them in a
hash table, which differs from process to process, and breaks ties between merges by these numbers. Here these
characters are known to it from the start, in a fixed order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import tokenizers
from tokenizers import models, trainers

CONTINUES = "##"  # before a piece that continues a word
AT_ONCE = 10_000  # words of a text that the trainer gets


def train_wordpiece(
    library: tokenizers.Tokenizer,
    texts: Iterable[str],
    specials: Sequence[str],
    *,
    unknown: str,
    size: int,
    min_frequency: int,
) -> None:
    """Give a tokenizer, whose splitting is set, a WordPiece vocabulary: special tokens, characters, then longer pieces.

    At most half of the vocabulary are characters, the most frequent ones.
    """
    words = _words(library, texts)
    known = _alphabet(words, size // 2)
    words = _within(words, known)
    continuing = [CONTINUES + character for character in sorted({c for word in words for c in word[1:]})]
    trained = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
    trained.normalizer, trained.pre_tokenizer = library.normalizer, library.pre_tokenizer
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=[*specials, *continuing], show_progress=False
    )
    trained.train_from_iterator(_repeated(words), trainer)
    library.model = models.WordPiece(trained.get_vocab(), unk_token=unknown)
    library.add_special_tokens(list(specials))


def _words(library: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as the tokenizer splits texts."""
    normalise: Callable[[str], str] = library.normalizer.normalize_str
    split: Callable[[str], list[tuple[str, object]]] = library.pre_tokenizer.pre_tokenize_str
    return Counter(word for text in texts for word, _ in split(normalise(text)))


def _alphabet(words: Counter[str], most: int) -> set[str]:
    """The most frequent characters; of equally frequent ones, those that come first."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    return set(sorted(counts, key=lambda each: (-counts[each], each))[:most])


def _within(words: Counter[str], alphabet: set[str]) -> Counter[str]:
    """The words without other characters, in a fixed order."""
    kept: Counter[str] = Counter()
    for word in sorted(words):
        if left := "".join(character for character in word if character in alphabet):
            kept[left] += words[word]
    return kept


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Texts in which every word occurs as often as it was counted."""
    for word, count in words.items():
        for begin in range(0, count, AT_ONCE):
            yield " ".join([word] * min(AT_ONCE, count - begin))
