"""Trains tokenizers of single texts: characters, words, byte-level BPE, or WordPiece.

Characters and BPE restore every text exactly, line ends included. Words are what spaces separate; a line end is a word
of its own. WordPiece marks a piece that continues a word with `##`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.config import Config
from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.huggingface import SETTINGS, WHOLE
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError

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


# How special tokens mark a text: separated = one token between documents and none within them (GPT-2); enclosed = [CLS]
# before the text and [SEP] after each part (BERT); terminated = an end token after the text (T5).
Style = Literal["separated", "enclosed", "terminated"]
BYTES = 256
SPECIALS: dict[Style, dict[str, str]] = {
    "separated": {"eos_token": "<|endoftext|>", "unk_token": "<unk>"},
    "enclosed": {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"
    },
    "terminated": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}  # fmt: skip


class VocabularyConfig(Config):
    """[tokenizer] of single texts: `size` counts every piece, special tokens included."""

    kind: Literal["bpe", "wordpiece", "word", "character"] = "bpe"
    size: int = Field(8000, ge=8)
    lowercase: bool = False
    min_frequency: int = Field(2, ge=1)  # how often a merge, word or character must occur


def train_vocabulary(texts: Iterable[str], config: VocabularyConfig, style: Style, sentinels: int = 0) -> TextTokenizer:
    """Train a tokenizer on texts. Special tokens get the first ids, then come the `sentinels` of span corruption."""
    names = SPECIALS[style]
    specials = [*names.values(), *(f"<extra_id_{number}>" for number in range(sentinels))]
    least = len(specials) + (BYTES if config.kind == "bpe" else 1)
    if config.size < least:
        raise ConfigError(f"tokenizer.size is {config.size}, but this kind of vocabulary has at least {least} pieces")
    library = tokenizers.Tokenizer(_model(config, names["unk_token"]))
    _set_splitting(library, config)
    library.post_processor = _post_processor(style, specials)
    texts, unknown = map(well_formed, texts), names["unk_token"]
    if config.kind == "wordpiece":
        train_wordpiece(library, texts, specials, unknown=unknown, size=config.size, min_frequency=config.min_frequency)
    else:
        library.train_from_iterator(texts, _trainer(config, specials))
    files = {WHOLE: library.to_str(pretty=True), SETTINGS: json.dumps(names, indent=2)}
    return TextTokenizer({name: content.encode() for name, content in files.items()})


def _model(config: VocabularyConfig, unknown: str) -> models.Model:
    match config.kind:
        case "bpe":
            return models.BPE()
        case "wordpiece":
            return models.WordPiece(unk_token=unknown)
        case "word" | "character":
            return models.WordLevel(unk_token=unknown)


def _set_splitting(library: tokenizers.Tokenizer, config: VocabularyConfig) -> None:
    if config.kind == "wordpiece":
        library.normalizer = normalizers.BertNormalizer(lowercase=config.lowercase)
        library.pre_tokenizer, library.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        return
    if config.lowercase:
        library.normalizer = normalizers.Lowercase()
    match config.kind:
        case "bpe":
            library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = decoders.ByteLevel()
        case "character":
            library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            library.decoder = decoders.Fuse()
        case "word":
            spaces = pre_tokenizers.Split(Regex(r"[^\S\n]+"), "removed")
            library.pre_tokenizer = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split("\n", "isolated")])


def _post_processor(style: Style, specials: list[str]) -> processors.PostProcessor:
    """Adds the special tokens of a style to every text."""
    numbered = [(token, number) for number, token in enumerate(specials)]
    match style:
        case "separated":
            return processors.ByteLevel(trim_offsets=False)
        case "enclosed":
            return processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbered
            )
        case "terminated":
            return processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B:0 </s>:0", special_tokens=numbered)


def _trainer(config: VocabularyConfig, specials: list[str]) -> trainers.Trainer:
    common: dict[str, Any] = {
        "vocab_size": config.size, "min_frequency": config.min_frequency, "special_tokens": specials,
        "show_progress": False,
    }  # fmt: skip
    match config.kind:
        case "bpe":
            return trainers.BpeTrainer(**common, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
        case "wordpiece":
            raise AssertionError("WordPiece has a training of its own")
        case "word" | "character":
            return trainers.WordLevelTrainer(**common)
