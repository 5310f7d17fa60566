"""BLEU by sacrebleu, whose words depend on the target language: Chinese, Japanese and others write no spaces."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

import sacrebleu

DEFAULT = "13a"
CHARACTERS = "char"
TOKENIZERS = {"zh": "zh", **dict.fromkeys(("th", "lo", "km", "my", "bo"), CHARACTERS)}
# sacrebleu's own choice for these languages, the module it needs, and what is taken where that is not installed
ANALYSED = {"ja": ("ja-mecab", "MeCab", CHARACTERS), "ko": ("ko-mecab", "mecab_ko", DEFAULT)}


def bleu_tokenizer(languages: Iterable[str]) -> str:
    """The name of sacrebleu's tokenizer for texts in these languages; its default if they need different ones."""
    names = {_of_language(code.replace("_", "-").lower().split("-")[0]) for code in languages}
    return names.pop() if len(names) == 1 else DEFAULT


def _of_language(language: str) -> str:
    if language in ANALYSED:
        name, module, otherwise = ANALYSED[language]
        return name if find_spec(module) else otherwise
    return TOKENIZERS.get(language, DEFAULT)


def bleu_metric(languages: Iterable[str], references: Iterable[str] | None = None) -> sacrebleu.BLEU:
    """sacrebleu's BLEU of detokenised text in these languages; `references` are tokenised once if they are given."""
    given = None if references is None else [list(references)]
    return sacrebleu.BLEU(tokenize=bleu_tokenizer(languages), force=True, references=given)
