"""Vocabularies for texts, learnt in place: characters, words, bytes merged into pieces (BPE), or WordPiece.

Characters and BPE give back every text exactly, line ends included; words are what spaces separate, and a line end is a
word of its own; WordPiece is BERT's, with `##` before a piece that continues a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.config import Config
from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.huggingface import SETTINGS, WHOLE
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError

Style = Literal["gpt", "bert", "t5"]  # whose special tokens
BYTES = 256
SPECIALS: dict[Style, dict[str, str]] = {
    "gpt": {"eos_token": "<|endoftext|>", "unk_token": "<unk>"},
    "bert": {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"
    },
    "t5": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}  # fmt: skip


class VocabularyConfig(Config):
    """[tokenizer] of single texts: `size` counts every piece, special tokens included."""

    kind: Literal["bpe", "wordpiece", "word", "character"] = "bpe"
    size: int = Field(8000, ge=8)
    lowercase: bool = False
    min_frequency: int = Field(2, ge=1)  # how often a merge, word or character must occur


def train_vocabulary(texts: Iterable[str], config: VocabularyConfig, style: Style, sentinels: int = 0) -> TextTokenizer:
    """Learn a vocabulary from texts; the special tokens come first, and T5's `sentinels` after them."""
    names = SPECIALS[style]
    specials = [*names.values(), *(f"<extra_id_{number}>" for number in range(sentinels))]
    least = len(specials) + (BYTES if config.kind == "bpe" else 1)
    if config.size < least:
        raise ConfigError(f"tokenizer.size is {config.size}, but this kind of vocabulary has at least {least} pieces")
    library = tokenizers.Tokenizer(_model(config, names["unk_token"]))
    _cutting(library, config)
    library.post_processor = _around(style, specials)
    library.train_from_iterator(map(well_formed, texts), _trainer(config, specials))
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


def _cutting(library: tokenizers.Tokenizer, config: VocabularyConfig) -> None:
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


def _around(style: Style, specials: list[str]) -> processors.PostProcessor:
    """What is put around a text: nothing by GPT, [CLS] and [SEP] by BERT, an end by T5."""
    numbered = [(token, number) for number, token in enumerate(specials)]
    match style:
        case "gpt":
            return processors.ByteLevel(trim_offsets=False)
        case "bert":
            return processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbered
            )
        case "t5":
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
            return trainers.WordPieceTrainer(**common, limit_alphabet=config.size // 2)
        case "word" | "character":
            return trainers.WordLevelTrainer(**common)
