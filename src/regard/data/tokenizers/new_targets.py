"""Giving a tokenizer of sentence pairs more target languages: one tag each, after all other tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tokenizers

from regard.data.tokenizers.marian import MarianTokenizer
from regard.data.tokenizers.pair import SETTINGS, PairTokenizer, SubwordTokenizer, file_names, from_files
from regard.data.tokenizers.prompted import PromptedTokenizer, prompted_files


def with_targets(tokenizer: PairTokenizer, source: str, targets: Sequence[str]) -> PairTokenizer:
    """The tokenizer with a tag for each target language that it lacks.

    The one language of a model without tags keeps none, so the model reads what it learnt from. A Marian folder that
    does not name its languages is taken to have the given ones.
    """
    known = tuple(filter(None, tokenizer.target_languages)) or tuple(targets[:1])
    new = [code for code in targets if code not in known]
    languages = (*known, *new)
    if languages == tokenizer.target_languages and tokenizer.source_language:
        return tokenizer
    tags = [f">>{code}<<" for code in new]
    source = tokenizer.source_language or source
    if isinstance(tokenizer.source, PromptedTokenizer):
        return from_files(prompted_files(tokenizer.files, source, new))
    if isinstance(tokenizer.source, MarianTokenizer):
        return from_files(_marian_files(tokenizer.files, tags, source, languages))
    assert isinstance(tokenizer.source, SubwordTokenizer)
    return from_files(_own_files(tokenizer.files, tags, languages))


def _own_files(files: Mapping[str, bytes], tags: Sequence[str], languages: Sequence[str]) -> dict[str, bytes]:
    settings = json.loads(files[SETTINGS]) | {"targets": list(languages)}
    name = file_names(settings["joint"])[0]
    library = tokenizers.Tokenizer.from_str(files[name].decode())
    library.add_special_tokens(list(tags))
    changed = {SETTINGS: json.dumps(settings, indent=2), name: library.to_str(pretty=True)}
    return {**files, **{name: content.encode() for name, content in changed.items()}}


def _marian_files(
    files: Mapping[str, bytes], tags: Sequence[str], source: str, languages: Sequence[str]
) -> dict[str, bytes]:
    settings = json.loads(files.get(SETTINGS, b"{}"))
    settings |= {"source_lang": source, "target_lang": languages[0], "targets": list(languages)}
    ids: dict[str, int] = json.loads(files["vocab.json"])
    first = max(ids.values()) + 1
    ids |= {tag: first + number for number, tag in enumerate(tags)}
    changed = {SETTINGS: json.dumps(settings, indent=2), "vocab.json": json.dumps(ids, ensure_ascii=False)}
    return {**files, **{name: content.encode() for name, content in changed.items()}}
