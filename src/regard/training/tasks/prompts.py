"""Several tasks as prompts to one model (Raffel et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from regard.checkpoints import write_folder
from regard.data.formats.pairs import Pair
from regard.data.loader import Loader, Rows
from regard.data.parts import PARTS, Part
from regard.data.text.pair_loader import PairBatches, plan_batches
from regard.data.text.pair_store import EncodedPair, PairStore
from regard.data.text.prompts import BUILT_IN, mixture, of_task, prompts, read_prompts
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.training.evaluation.translation import PairEvaluation, Sample, TargetTokenizer
from regard.training.prepare.initial_model import initial_tokenizer
from regard.training.prepare.pairs import PairFile
from regard.training.safeguards import Poll
from regard.training.tasks.base import Values, loader_options
from regard.training.tasks.prompts_recipe import PromptsRecipe
from regard.training.tasks.text_base import TextToTextTask, no_validation

TASKS = "tasks.npy"  # the task of each training prompt


@dataclass(frozen=True)
class AnswerTokenizer:
    """The target side of `PromptTokenizer`."""

    tokenizer: TextTokenizer

    @property
    def pad(self) -> int:
        return self.tokenizer.pad

    @property
    def start(self) -> int:
        return self.tokenizer.pad  # T5's answers begin with it

    @cached_property
    def end(self) -> int:
        assert self.tokenizer.end is not None
        return self.tokenizer.end

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


@dataclass(frozen=True)
class PromptTokenizer:
    """One tokenizer for prompts and answers, with the interface of a translator's pair of tokenizers."""

    tokenizer: TextTokenizer

    @property
    def target(self) -> TargetTokenizer:
        return AnswerTokenizer(self.tokenizer)

    def source_ids(self, texts: Sequence[str], to: str = "") -> list[list[int]]:
        return [row.ids for row in self.tokenizer.encode(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source_ids(texts)


class PromptsTask(TextToTextTask):
    """Several tasks in one model. The beginning of a prompt tells the model which task it is."""

    recipe: PromptsRecipe

    @classmethod
    def prepare(cls, recipe: PromptsRecipe, folder: Path, poll: Poll) -> None:
        """Sort the prompts into files, learn the vocabulary and encode the training prompts."""
        if not folder.exists():
            write_folder(folder, lambda temporary: _write(recipe, temporary, poll))

    def __init__(self, recipe: PromptsRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = TextTokenizer.load(folder / "tokenizer")
        self.pair_tokenizer = PromptTokenizer(self.tokenizer)
        self.store, self.tasks = PairStore.open(folder / "train"), np.load(folder / TASKS)
        self.pairs = {part: list(PairFile(folder / f"{part}.jsonl")) for part in PARTS[1:]}
        if recipe.training.validate_every and not self.pairs["valid"]:
            raise no_validation()
        self.valid = self._evaluation("valid", recipe.training.validate_sentences)
        self.summary = self._summary()
        target = self.pair_tokenizer.target
        make = PairBatches(self.store, target.pad, target.start, recipe.seed, None)
        self.loader = Loader(self._plan, make, **loader_options(recipe.training, device))

    def _summary(self) -> str:
        names = self.recipe.data.train
        counts = [f"{len(self.store):,}", *(f"{len(pairs):,}" for pairs in self.pairs.values())]
        text = (
            f"{counts[0]} prompts of {len(names)} kinds ({', '.join(names)}); {counts[1]} for "
            f"validation, {counts[2]} for testing"
        )
        if (unknown := self.tokenizer.only_unknown) is None:
            return text
        shares = self.store.shares(unknown, unknown).values()
        return text + unknown_tokens(dict(zip(("prompts", "answers"), shares, strict=True)))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss, perplexity, and scores of the answers, of each task and of all together."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the answers that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the whole test set; empty if the recipe has none."""
        pairs = self.pairs["test"]
        return self._evaluation("test", len(pairs))(model, poll) if pairs else {}

    def _plan(self, epoch: int) -> list[Rows]:
        data, training, seed = self.recipe.data, self.recipe.training, self.recipe.seed
        rows = mixture(self.tasks, data.temperature, np.random.default_rng([seed, epoch]))
        lengths = (side[rows] for side in self.store.lengths())
        plan = plan_batches(*lengths, batch_tokens=training.batch_tokens, seed=seed, epoch=epoch)
        return [rows[batch] for batch in plan]

    def _evaluation(self, part: Literal["valid", "test"], decoded: int) -> PairEvaluation:
        return PairEvaluation(
            self.pairs[part],
            self.pair_tokenizer,
            decoding=self.recipe.decoding,
            decoded=decoded,
            batch_tokens=self.recipe.training.batch_tokens,
            device=self.device,
        )


def _write(recipe: PromptsRecipe, folder: Path, poll: Poll) -> None:
    files = {part: PairFile(folder / f"{part}.jsonl") for part in PARTS}
    with ExitStack() as stack:
        for part, file in files.items():
            add = stack.enter_context(file.writer())
            for pair in _pairs(recipe, part):
                poll()
                add(pair)
    tokenizer = _tokenizer(recipe, files["train"])
    tokenizer.save(folder / "tokenizer")
    store = PairStore.write(folder / "train", _encoded(files["train"], tokenizer), vocabulary=tokenizer.size)
    if not len(store):
        raise DataError("data.train has no prompt; give some")
    names = list(recipe.data.train)
    np.save(folder / TASKS, np.array([names.index(pair.to) for pair in files["train"]]))
    files["train"].path.unlink()


def _tokenizer(recipe: PromptsRecipe, pairs: Iterable[Pair]) -> TextTokenizer:
    if recipe.model.init:
        return initial_tokenizer(recipe.model.init)
    texts = (text for pair in pairs for text in (pair.source, pair.target))
    return train_vocabulary(texts, recipe.tokenizer, "terminated")


def _pairs(recipe: PromptsRecipe, part: Part) -> Iterator[Pair]:
    data = recipe.data
    places: dict[str, str] = getattr(data, part)
    for task, place in places.items():
        if place.startswith(BUILT_IN):
            found = prompts(
                place.removeprefix(BUILT_IN), part=part, count=data.count if part == "train" else data.held_out,
                seed=recipe.seed, max_words=data.max_words,
            )  # fmt: skip
        else:
            found = read_prompts(place, data.prefixes.get(task, ""))
        yield from of_task(found, task)


def _encoded(pairs: Iterable[Pair], tokenizer: TextTokenizer) -> Iterator[EncodedPair]:
    both = PromptTokenizer(tokenizer)
    for pair in pairs:
        yield EncodedPair(both.source_ids([pair.source])[0], both.target_ids([pair.target])[0])
