"""A translator's own tokenizer in the files of transformers' PreTrainedTokenizerFast: the same ids, the same texts.

`AutoTokenizer.from_pretrained(folder)` cuts sources, with the end token; several target languages are chosen as Marian
has it, by a tag before the text (`>>es<< we eat bread`). Where the target has a vocabulary of its own,
`from_pretrained(folder, subfolder="target")` reads it. Regard reads its own tokenizer from the same folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, processors

from regard.data.tokenizers.base import OPENINGS, SPACE
from regard.data.tokenizers.pair import CAPITAL, END, PAD, SETTINGS, START, UNKNOWN, PairTokenizer, SubwordTokenizer

LIBRARY = "tokenizer.json"
TARGET = "target"
ABOUT = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": PAD,
    "bos_token": START,
    "eos_token": END,
    "unk_token": UNKNOWN,
    "clean_up_tokenization_spaces": False,
}


def write_fast_tokenizer(tokenizer: PairTokenizer, folder: Path) -> None:
    """Add the files that transformers reads to a folder with a tokenizer trained by Regard."""
    settings = {**json.loads(tokenizer.files[SETTINGS]), **ABOUT}
    _write(tokenizer.source, settings, folder)
    if tokenizer.target is not tokenizer.source:
        (folder / TARGET).mkdir()
        _write(tokenizer.target, ABOUT, folder / TARGET)


def _write(side: Any, settings: dict[str, Any], folder: Path) -> None:
    assert isinstance(side, SubwordTokenizer)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / LIBRARY).write_text(_library(side).to_str(pretty=True), encoding="utf-8")


def _library(side: SubwordTokenizer) -> Tokenizer:
    """The tokenizer with the steps that Regard does outside of it: end token, capitals, and collapsed spaces."""
    content = json.loads(side.backend.to_str())
    for token in content["added_tokens"]:
        if token["content"] == CAPITAL:  # found in normalised text, and not skipped when ids are decoded
            token |= {"special": False, "normalized": True, "lstrip": True}
    library = Tokenizer.from_str(json.dumps(content))
    library.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, side.end)])
    spaces = [decoders.Replace(Regex(f"^{SPACE}+|{SPACE}+$"), ""), decoders.Replace(Regex(f"{SPACE}+"), " ")]
    if side.capital is None:
        library.decoder = decoders.Sequence([decoders.Fuse(), *spaces])
    else:
        library.normalizer = normalizers.Sequence([*_marking(), library.normalizer])
        library.decoder = decoders.Sequence([decoders.Fuse(), *_raising(side), *spaces])
    return library


def _marking() -> list[normalizers.Normalizer]:
    """As `capitalised` and `uncapitalised`: a mark before each word with a capital, and openings cut off."""
    return [
        normalizers.Replace(Regex(rf"[\s\x1c-\x1f{SPACE}]+"), " "),
        normalizers.Strip(),
        normalizers.Prepend(" "),  # so that every word has a space before it
        normalizers.Replace(Regex(r" (?=[^ \p{L}]*[\p{Lu}\p{Lt}])"), f" {CAPITAL}"),
        normalizers.Lowercase(),
        *(
            normalizers.Replace(Regex(f"(?<= |{CAPITAL}){mark}(?=[^ ])"), f"{mark} ")
            for mark in OPENINGS + OPENINGS[0]  # a word may have both, in any order
        ),
    ]


def _raising(side: SubwordTokenizer) -> list[decoders.Decoder]:
    """As `Tokenizer._joined`: the first letter after a mark is a capital, and an opening is one with its word."""
    letters = sorted({c for piece in side.vocabulary for c in piece if c.isalpha() and c.upper() != c})
    before = "|".join(CAPITAL + r"[^\p{L}<]" * count for count in range(6))  # a look behind has a fixed length
    return [
        decoders.Replace(Regex(f"(?<=[{OPENINGS}]){SPACE}"), ""),
        *(decoders.Replace(Regex(f"(?<={before}){letter}"), letter.upper()) for letter in letters),
        decoders.Replace(CAPITAL, SPACE),
    ]
