"""The translator that training starts from: checked, given a tag for each new target language, and kept with the run.

A run copies the model of `model.init` into its own data. So it does not change if that folder changes, and the end of
the run can compare the adapted model with the one it began with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
import torch
from torch import Tensor, nn

from regard.checkpoints import LoadedModel, load_model, save_model
from regard.checkpoints.models import identify, own_tensors
from regard.config import Config
from regard.data.formats.languages import find_language
from regard.data.tokenizers.base import written_languages
from regard.data.tokenizers.marian import MarianTokenizer
from regard.data.tokenizers.pair import SETTINGS, PairTokenizer, SubwordTokenizer, file_names, from_files
from regard.data.tokenizers.prompted import PromptedTokenizer, prompted_files
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.families.catalog import MODELS, PIPELINES
from regard.families.contract import TRANSLATOR
from regard.families.loading import find_pipeline
from regard.training.initial_model import initial_folder
from regard.training.recipe.data_sections import PairsSection


def with_targets(tokenizer: PairTokenizer, sources: Sequence[str], targets: Sequence[str]) -> PairTokenizer:
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
    source = tokenizer.source_languages if tokenizer.source_language else sources
    if isinstance(tokenizer.source, PromptedTokenizer):
        return from_files(prompted_files(tokenizer.files, source[0], new))
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
    files: Mapping[str, bytes], tags: Sequence[str], sources: Sequence[str], languages: Sequence[str]
) -> dict[str, bytes]:
    settings = json.loads(files.get(SETTINGS, b"{}"))
    settings |= {"source_lang": written_languages(sources), "target_lang": languages[0], "targets": list(languages)}
    ids: dict[str, int] = json.loads(files["vocab.json"])
    first = max(ids.values()) + 1
    ids |= {tag: first + number for number, tag in enumerate(tags)}
    changed = {SETTINGS: json.dumps(settings, indent=2), "vocab.json": json.dumps(ids, ensure_ascii=False)}
    return {**files, **{name: content.encode() for name, content in changed.items()}}


VOCABULARIES, PADDING = ("source_vocab", "target_vocab"), "pad"
UNUSED_ROWS = 256  # that a model may have beside its tokens, or a tenth of all: some are rounded up


def translator_folder(init: str) -> Path:
    """The folder of `model.init`, which must hold a translator."""
    folder = initial_folder(init)
    name, _, _ = identify(folder)
    pipeline = find_pipeline(folder)
    if pipeline != TRANSLATOR and not PIPELINES[pipeline].answers:
        raise UsageError(
            f"model.init is {init!r}, which holds a {name} model and is no translator; give a folder that "
            "`regard translate -m` takes, or a model that answers prompts"
        )
    return folder


def write_base(init: str, folder: Path, data: PairsSection, *, frozen: bool) -> None:
    """Write the translator of `model.init` into `folder`, with a tag for every target language that it lacks."""
    loaded = load_model(translator_folder(init))
    tokenizer = _tokenizer(loaded.folder, data)
    _check_fit(init, loaded, tokenizer)
    known = [code for code in tokenizer.source_languages if code]
    if strange := [code for code in data.sources if known and find_language(known, code) is None]:
        shown = ", ".join(map(repr, known))
        raise UsageError(f"{init} translates from {shown}, but data.source is {strange[0]!r}; choose another model")
    tokenizer = with_targets(tokenizer, data.sources, data.targets)
    for code in (*data.targets_of("old"), *data.targets_of("old_valid")):
        tokenizer.tag(code)  # refuses a language that the model does not know
    model = with_rows(loaded, tokenizer)
    if frozen and model is not loaded.model:
        raise ConfigError(
            f"training.freeze holds the embeddings, but {init} needs a new one for each new language of "
            f"{', '.join(data.targets)}; leave embeddings out of training.freeze"
        )
    save_model(folder, loaded.name, model, tokenizer.save)


def _tokenizer(folder: Path, data: PairsSection) -> PairTokenizer:
    """The tokenizer of sentence pairs, or that of a model that answers prompts, which name the languages."""
    if PairTokenizer.is_in(folder) or find_pipeline(folder) == TRANSLATOR:
        return PairTokenizer.load(folder)
    try:
        return from_files(prompted_files(TextTokenizer.load(folder).files, _only_source(data), data.targets))
    except CheckpointError as error:
        raise CheckpointError(f"{folder} cannot be trained to translate: {error}") from None


def _only_source(data: PairsSection) -> str:
    if len(data.sources) > 1:
        raise ConfigError(f"data.source is {data.sources}, but a prompt names one source language; give one")
    return data.sources[0]


def with_rows(loaded: LoadedModel, tokenizer: PairTokenizer) -> nn.Module:
    """The model with a row for every token of the tokenizer.

    New rows, which are tags, begin as the mean of the tags that are there, or else of all tokens: a neutral start.
    """
    before = _vocabularies(loaded.config)
    sizes = {key: max(size, needed) for (key, size), needed in zip(before.items(), _sizes(tokenizer), strict=True)}
    if sizes == before:
        return loaded.model
    model = MODELS[loaded.name].model(loaded.config.replace(**sizes))
    given, tags = (
        own_tensors(loaded.model),
        [tag for tag in tokenizer.source.tags.values() if tag < min(before.values())],
    )
    for name, tensor in own_tensors(model).items():
        _copy_rows(given[name], tensor, tags)
    return model


@torch.no_grad()
def _copy_rows(given: Tensor, into: Tensor, like: list[int]) -> None:
    """Copy a tensor; rows that it lacks become the mean of its rows `like`, or of all of them."""
    into[: len(given)] = given
    if len(given) < len(into):
        into[len(given) :] = (given[like] if like else given).mean(dim=0)


def _check_fit(init: str, loaded: LoadedModel, tokenizer: PairTokenizer) -> None:
    """Refuse a tokenizer of another model, as far as sizes and the id of padding tell."""
    advice = "they do not belong together: copy the whole model folder again"
    for (key, known), needed in zip(_vocabularies(loaded.config).items(), _sizes(tokenizer), strict=True):
        if needed > known or known - needed > max(UNUSED_ROWS, known // 10):
            raise CheckpointError(
                f"the tokenizer of {init} has {needed:,} tokens, but its model has a {key} of {known:,}; {advice}"
            )
    ours, theirs = tokenizer.source.pad, getattr(loaded.config, PADDING)
    if ours != theirs:
        raise CheckpointError(
            f"the tokenizer of {init} pads with token {ours:,}, but its model with {theirs:,}; {advice}"
        )


def _vocabularies(config: Config) -> dict[str, int]:
    return {key: getattr(config, key) for key in VOCABULARIES}


def _sizes(tokenizer: PairTokenizer) -> tuple[int, int]:
    return tokenizer.source.size, tokenizer.target.size
