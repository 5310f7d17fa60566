"""From the files of a recipe to encoded texts and their tokenizer, once per run; and the model that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.checkpoints import load_model
from regard.checkpoints.folder import resolve
from regard.checkpoints.hub import local_folder
from regard.checkpoints.models import own_tensors
from regard.config import Config
from regard.data.formats.plain_text import Line, read_texts, split_text
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.token_blocks import EncodedLine, TokenStore
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import Style, VocabularyConfig, train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import CheckpointError, DataError, UsageError
from regard.models.catalog import MODELS
from regard.training.prepare.stages import Stages
from regard.training.recipe.sections import PHRASEBOOK, ModelSection, PlainSection
from regard.training.safeguards import Poll

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
CHUNK = 1000  # lines encoded together
HELD_OUT = 500  # sentences of the phrasebook, for validation and as many for testing
HEADS = ("output.", "pooler.", "masked.", "next_sentence.")  # what another task may add to a model or drop
Encode = Callable[[TextTokenizer, Iterable[Line]], Iterator[EncodedLine]]


@dataclass(frozen=True)
class TextCorpus:
    """What a model learns from and is measured on."""

    tokenizer: TextTokenizer
    train: TokenStore
    valid: TokenStore
    test: TokenStore

    @property
    def summary(self) -> str:
        counts = [f"{len(store.tokens):,}" for store in (self.train, self.valid, self.test)]
        documents, unknown = len(self.train.documents) - 1, self.tokenizer.only_unknown
        told = "" if unknown is None else unknown_tokens({"text": self.train.lines.share(unknown)})
        return (
            f"{counts[0]} tokens in {documents:,} document{'s' * (documents > 1)}; {counts[1]} for validation, "
            f"{counts[2]} for testing; {self.tokenizer.size:,} different ones{told}"
        )


@dataclass(frozen=True)
class TextPreparation:
    """How the files of a recipe become a corpus; `encode` makes tokens of lines, as the task wants them."""

    data: PlainSection
    model: ModelSection
    vocabulary: VocabularyConfig
    style: Style
    encode: Encode
    sentinels: int = 0

    def corpus(self, folder: Path, poll: Poll) -> TextCorpus:
        """The corpus, from `folder` where it was prepared before."""
        if not folder.exists():
            self._write(folder, poll)
        return TextCorpus(TextTokenizer.load(folder / "tokenizer"), *(TokenStore.open(folder / part) for part in PARTS))

    def _write(self, folder: Path, poll: Poll) -> None:
        stages = Stages(folder)
        learnt = stages.once("vocabulary", lambda place: self._tokenizer(poll).save(place / "tokenizer"))
        tokenizer = TextTokenizer.load(learnt / "tokenizer")
        for part in PARTS:
            stages.once(part, partial(self._encode, tokenizer, part, poll))
        stages.gather()

    def _encode(self, tokenizer: TextTokenizer, part: Part, poll: Poll, place: Path) -> None:
        encoded = self.encode(tokenizer, _polled(self.lines(part), poll))
        store = TokenStore.write(place / part, encoded, vocabulary=tokenizer.size)
        if part == "train" and len(store.tokens) < 2:
            raise DataError(f"{', '.join(self.data.paths('train'))}: no text to learn from; give data.train some")

    def _tokenizer(self, poll: Poll) -> TextTokenizer:
        if self.model.init:
            return initial_tokenizer(self.model.init)
        texts = (line.text for line in _polled(self.lines("train"), poll))
        return train_vocabulary(texts, self.vocabulary, self.style, self.sentinels)

    def lines(self, part: Part) -> Iterator[Line]:
        """The lines of a part; the last of the training text are for validation where no other text is given."""
        data = self.data
        if data.train == PHRASEBOOK:
            return _phrasebook(part, data.sentences if part == "train" else HELD_OUT)
        if data.valid or part == "test":
            return read_texts(data.paths(part), data.documents)
        divided = split_text(data.paths("train"), data.documents, data.split)
        return (line for where, line in divided if where == part)


def _phrasebook(part: Part, count: int) -> Iterator[Line]:
    """English sentences of the built-in corpus; those of one part never occur in another."""
    return (Line(f"{pair.source}\n", True) for pair in phrases("es", part=part, count=count, seed=1))


def chunks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Some lines at a time, since tokenizers are fastest on many."""
    stream = iter(lines)
    while some := list(islice(stream, CHUNK)):
        yield some


def _polled(lines: Iterable[Line], poll: Poll) -> Iterator[Line]:
    for line in lines:
        poll()
        yield line


def initial_folder(init: str) -> Path:
    """Where the model is that training starts from."""
    folder = local_folder(init)
    if not folder.is_dir():
        raise UsageError(f"model.init is {init!r}, which is no folder; give a model folder or hf:owner/name")
    return resolve(folder)


def initial_tokenizer(init: str) -> TextTokenizer:
    """The tokenizer of the model that training starts from."""
    return TextTokenizer.load(initial_folder(init))


def build_model(section: ModelSection, tokenizer: TextTokenizer, **changes: Any) -> nn.Module:
    """A new model, as large as the tokenizer needs it, or one with the weights of `model.init`; `changes` are values of
    its configuration that the task decides."""
    if section.init:
        model = initialised(section, changes)
        assert isinstance(model.config, Config)
        _check_vocabulary(section.init, tokenizer, model.config)
        return model
    config = section.config(source_vocab=tokenizer.size, target_vocab=tokenizer.size, pad=tokenizer.pad)
    return MODELS[section.name].model(config.replace(**changes))


def initialised(section: ModelSection, changes: dict[str, Any]) -> nn.Module:
    """A model with the weights of `model.init`; only heads may differ from it."""
    loaded = load_model(initial_folder(section.init))
    if loaded.name != section.name:
        raise UsageError(f"{section.init} holds a {loaded.name} model, but model.name is {section.name!r}")
    model = MODELS[section.name].model(loaded.config.replace(**{**section.overrides, **changes}))
    _copy_body(own_tensors(loaded.model), own_tensors(model), section.init)
    return model


def _check_vocabulary(init: str, tokenizer: TextTokenizer, config: Config) -> None:
    known: int = getattr(config, "vocab", 0) or getattr(config, "target_vocab", 0)
    if tokenizer.size > known:
        raise CheckpointError(
            f"the tokenizer of {init} has {tokenizer.size:,} tokens, but the model knows {known:,}; "
            "they do not belong together"
        )


@torch.no_grad()
def _copy_body(given: dict[str, torch.Tensor], into: dict[str, torch.Tensor], init: str) -> None:
    """Copy all weights but those of heads that only one of the two has, or that have another size."""
    for name, tensor in into.items():
        if name in given and given[name].shape == tensor.shape:
            tensor.copy_(given[name])
        elif not name.startswith(HEADS):
            raise CheckpointError(f"{init}: {name} does not fit the model of this recipe; change [model] back")
