"""Text in, text out (Raffel et al. 2020): span corruption on plain text, and several tasks as prompts to one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from regard.checkpoints import write_folder
from regard.data.batch import Batch
from regard.data.formats.pairs import Pair
from regard.data.loader import Loader, PairBatches, Rows, plan_batches
from regard.data.text.pair_store import EncodedPair, PairStore
from regard.data.text.prompts import BUILT_IN, mixture, of_task, prompts, read_prompts
from regard.data.text.span_corruption import SpanTexts, sentinels
from regard.data.text.token_blocks import block_starts, plan_blocks, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.training.evaluation.translation import Evaluation, Sample, Side
from regard.training.losses import Loss, cross_entropy
from regard.training.prepare.pairs import PairFile
from regard.training.prepare.texts import PARTS, Part, TextPreparation, build_model, initial_tokenizer
from regard.training.recipe.recipes import PromptsRecipe, SpansRecipe
from regard.training.recipe.sections import ModelSection, WritingSection
from regard.training.safeguards import Poll
from regard.training.tasks.language_modelling import TextTask, encode_lines, no_validation
from regard.training.tasks.supervised import loading

TASKS = "tasks.npy"


class TextToTextTask(TextTask[Batch]):
    """A model that reads a text and writes another."""

    model: ModelSection
    training: WritingSection

    def build(self) -> nn.Module:
        """A model as large as the tokenizer needs it."""
        return build_model(self.model, self.tokenizer)

    def loss(self, model: Callable[..., Any], batch: Batch) -> Loss:
        """The cross-entropy of the answers."""
        logits = model(batch.source, batch.source_mask, batch.inputs, batch.labels_mask, factored=self.factored)
        total = self.cross_entropy(logits, batch.labels, batch.labels_mask, self.training.label_smoothing)
        return Loss(total, batch.labels_mask.sum())


class Spans(TextToTextTask):
    """Plain text, of which spans are cut out and written again."""

    def __init__(self, recipe: SpansRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device, self.model, self.training = recipe, device, recipe.model, recipe.training
        data = self.data = recipe.data
        preparation = TextPreparation(data, recipe.model, recipe.tokenizer, "terminated", encode_lines, data.sentinels)
        self.corpus = preparation.corpus(folder, poll)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()
        self.loader = Loader(self._plan, self._texts("train", recipe.seed), **loading(recipe.training, device))

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Loss and perplexity of the spans of the validation text."""
        return self._measured(model, "valid", poll)

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same of the test text; nothing where the recipe has none."""
        return self._measured(model, "test", poll) if len(self.corpus.test.tokens) > 1 else {}

    @torch.inference_mode()
    def _measured(self, model: nn.Module, part: Part, poll: Poll) -> dict[str, float]:
        texts, total, tokens = self._texts(part, seed=0), 0.0, 0
        starts = self._usable(block_starts(len(texts.store.tokens) + 1, self.data.block), len(texts.store.tokens))
        for rows in split_rows(starts, max(1, self.recipe.training.batch_tokens // self.data.block)):
            poll()
            batch = texts(rows).to(self.device)
            logits = model(batch.source, batch.source_mask, batch.inputs, factored=self.factored)
            total += cross_entropy(logits, batch.labels, batch.labels_mask).item()
            tokens += batch.tokens
        return {"loss": total / tokens, "perplexity": math.exp(min(total / tokens, 100.0))}

    def _texts(self, part: Part, seed: int) -> SpanTexts:
        store = getattr(self.corpus, part)
        data, marks = self.data, sentinels(self.tokenizer)
        return SpanTexts(store, self.tokenizer, marks, data.block, data.density, data.span, seed)

    def _plan(self, epoch: int) -> list[Rows]:
        tokens, training = len(self.corpus.train.tokens), self.recipe.training
        plan = plan_blocks(
            tokens + 1, self.data.block, batch_tokens=training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )
        usable = (self._usable(rows, tokens) for rows in plan)
        return [rows for rows in usable if len(rows)]

    def _usable(self, starts: Rows, tokens: int) -> Rows:
        """The blocks of two tokens at least: of one nothing can be cut out."""
        return starts[np.minimum(starts + self.data.block, tokens) - np.maximum(starts, 0) >= 2]


@dataclass(frozen=True)
class PromptSide:
    """The tokenizer of prompts and answers, as translators have one for each side."""

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
    """Makes tokens of prompts and answers, which have one vocabulary."""

    tokenizer: TextTokenizer

    @property
    def target(self) -> Side:
        return PromptSide(self.tokenizer)

    def source_ids(self, texts: Sequence[str], to: str = "") -> list[list[int]]:
        return [row.ids for row in self.tokenizer.encode(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source_ids(texts)


class Prompts(TextToTextTask):
    """Several tasks in one model, each known by how its prompts begin."""

    def __init__(self, recipe: PromptsRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device, self.model, self.training = recipe, device, recipe.model, recipe.training
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))
        self.tokenizer = TextTokenizer.load(folder / "tokenizer")
        self.coder = PromptTokenizer(self.tokenizer)
        self.store, self.tasks = PairStore.open(folder / "train"), np.load(folder / TASKS)
        self.pairs = {part: list(PairFile(folder / f"{part}.jsonl")) for part in PARTS[1:]}
        if recipe.training.validate_every and not self.pairs["valid"]:
            raise no_validation()
        self.valid = self._evaluation("valid", recipe.training.validate_sentences)
        counts = [f"{len(self.store):,}", *(f"{len(pairs):,}" for pairs in self.pairs.values())]
        self.summary = (
            f"{counts[0]} prompts of {len(recipe.data.train)} kinds ({', '.join(recipe.data.train)}); {counts[1]} for "
            f"validation, {counts[2]} for testing"
        )
        if (unknown := self.tokenizer.only_unknown) is not None:
            shares = self.store.shares(unknown, unknown).values()
            self.summary += unknown_tokens(dict(zip(("prompts", "answers"), shares, strict=True)))
        side = self.coder.target
        make = PairBatches(self.store, side.pad, side.start, recipe.seed, None)
        self.loader = Loader(self._plan, make, **loading(recipe.training, device))

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Loss, perplexity, and how many answers are exactly right, of each task and in all."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the answers that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same on the whole test set; nothing where the recipe has none."""
        pairs = self.pairs["test"]
        return self._evaluation("test", len(pairs))(model, poll) if pairs else {}

    def _plan(self, epoch: int) -> list[Rows]:
        data, training, seed = self.recipe.data, self.recipe.training, self.recipe.seed
        rows = mixture(self.tasks, data.temperature, np.random.default_rng([seed, epoch]))
        lengths = (side[rows] for side in self.store.lengths())
        plan = plan_batches(*lengths, batch_tokens=training.batch_tokens, seed=seed, epoch=epoch)
        return [rows[batch] for batch in plan]

    def _evaluation(self, part: Literal["valid", "test"], decoded: int) -> Evaluation:
        return Evaluation(
            self.pairs[part],
            self.coder,
            decoding=self.recipe.decoding,
            decoded=decoded,
            batch_tokens=self.recipe.training.batch_tokens,
            device=self.device,
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        files = {part: PairFile(folder / f"{part}.jsonl") for part in PARTS}
        with ExitStack() as stack:
            for part, file in files.items():
                add = stack.enter_context(file.writer())
                for pair in self._pairs(part):
                    poll()
                    add(pair)
        tokenizer = self._tokenizer(files["train"])
        tokenizer.save(folder / "tokenizer")
        store = PairStore.write(folder / "train", _encoded(files["train"], tokenizer), vocabulary=tokenizer.size)
        if not len(store):
            raise DataError("data.train has no prompt; give some")
        names = list(self.recipe.data.train)
        np.save(folder / TASKS, np.array([names.index(pair.to) for pair in files["train"]]))
        files["train"].path.unlink()

    def _tokenizer(self, pairs: Iterable[Pair]) -> TextTokenizer:
        if self.recipe.model.init:
            return initial_tokenizer(self.recipe.model.init)
        texts = (text for pair in pairs for text in (pair.source, pair.target))
        return train_vocabulary(texts, self.recipe.tokenizer, "terminated")

    def _pairs(self, part: Part) -> Iterator[Pair]:
        data = self.recipe.data
        places: dict[str, str] = getattr(data, part)
        for task, place in places.items():
            if place.startswith(BUILT_IN):
                found = prompts(
                    place.removeprefix(BUILT_IN), part=part, count=data.count if part == "train" else data.held_out,
                    seed=self.recipe.seed, max_words=data.max_words,
                )  # fmt: skip
            else:
                found = read_prompts(place, data.prefixes.get(task, ""))
            yield from of_task(found, task)


def _encoded(pairs: Iterable[Pair], tokenizer: TextTokenizer) -> Iterator[EncodedPair]:
    coder = PromptTokenizer(tokenizer)
    for pair in pairs:
        yield EncodedPair(coder.source_ids([pair.source])[0], coder.target_ids([pair.target])[0])
