"""Several tasks as prompts to one model (Raffel et al. 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.data.formats.lines import read_lines, refuse
from regard.data.formats.pairs import Pair
from regard.data.loader import Loader, Rows
from regard.data.sources import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_loader import PairBatches, plan_batches
from regard.data.text.pair_store import EncodedPair, PairStore
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError, UsageError
from regard.families.language.recipe import PromptsRecipe
from regard.families.translation.metrics import PairEvaluation, TargetTokenizer
from regard.families.translation.prepare import PairFile
from regard.training.initial_model import initial_tokenizer
from regard.training.safeguards import Poll
from regard.training.task import Sample, Values, loader_options
from regard.training.text_task import TextToTextTask, no_validation

BUILT_IN = "builtin:"


def _question(pair: Pair) -> Pair:
    """Whether a sentence is a question. Without its question mark, only the order of its words tells."""
    return Pair(f"Is this a question: {pair.source.removesuffix('?')}", "yes" if pair.source.endswith("?") else "no")


PROMPTS: dict[str, Callable[[Pair], Pair]] = {
    "translate": lambda pair: Pair(f"Translate EN-ES: {pair.source}", pair.target),
    "reverse": lambda pair: Pair(f"Reverse: {pair.source}", " ".join(reversed(pair.source.split()))),
    "question": _question,
}


def prompts(kind: str, *, part: Part, count: int, seed: int, max_words: int = 8) -> Iterator[Pair]:
    """Prompts of a built-in kind; no sentence is in two parts."""
    if kind not in PROMPTS:
        raise UsageError(f"there is no built-in prompt {kind!r}; known are {', '.join(PROMPTS)}")
    return map(PROMPTS[kind], phrases("es", part=part, count=count, seed=seed, max_words=max_words))


def read_prompts(path: str, prefix: str) -> Iterator[Pair]:
    """Texts and answers of a table with two tab-separated columns (also .gz); the prefix is put before each text."""
    for number, line in enumerate(read_lines(path, refuse), 1):
        cells = line.split("\t")
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}, line {number}: expected a text and its answer, separated by a tab")
        yield Pair(f"{prefix} {cells[0]}" if prefix else cells[0], cells[1])


def mixture(tasks: NDArray[np.integer], temperature: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The rows of an epoch, as many as there are in all. A task with n rows gets a share proportional to
    n^(1/temperature); all its rows are used before any is repeated."""
    sizes = np.bincount(tasks)
    shares = np.where(sizes > 0, sizes.astype(float) ** (1 / temperature), 0)
    wanted = np.maximum(np.round(len(tasks) * shares / shares.sum()).astype(int), sizes > 0)
    rows: list[NDArray[np.int64]] = []
    for task, count in enumerate(wanted.tolist()):
        own = np.flatnonzero(tasks == task)
        rows += [rng.permutation(own)[: count - begun] for begun in range(0, count, max(1, len(own)))]
    return np.concatenate(rows)


TASKS = "tasks.npy"  # the task of each training prompt


class AnswerTokenizer(NamedTuple):
    """The target side of `PromptTokenizer`."""

    pad: int
    start: int
    end: int
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class PromptTokenizer:
    """One tokenizer for prompts and answers, with the interface of a translator's pair of tokenizers."""

    tokenizer: TextTokenizer

    @property
    def target(self) -> TargetTokenizer:
        pad, end = self.tokenizer.pad, self.tokenizer.end
        assert end is not None
        return AnswerTokenizer(pad, pad, end, self.tokenizer.decode)  # T5's answers begin with padding

    def source_ids(self, texts: Sequence[str], to: str = "") -> list[list[int]]:
        return [row.ids for row in self.tokenizer.encode(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source_ids(texts)


class PromptsTask(TextToTextTask):
    """Several tasks in one model. The beginning of a prompt tells the model which task it is."""

    recipe: PromptsRecipe

    @classmethod
    def write(cls, recipe: PromptsRecipe, folder: Path, poll: Poll) -> None:
        """Sort the prompts into files, learn the vocabulary and encode the training prompts."""
        files = {part: PairFile(folder / f"{part}.jsonl") for part in PARTS}
        with ExitStack() as stack:
            for part, file in files.items():
                add = stack.enter_context(file.writer())
                for pair in _pairs(recipe, part):
                    poll()
                    add(pair)
        if recipe.model.init:
            tokenizer = initial_tokenizer(recipe.model.init)
        else:
            texts = (text for pair in files["train"] for text in (pair.source, pair.target))
            tokenizer = train_vocabulary(texts, recipe.tokenizer, "terminated")
        tokenizer.save(folder / "tokenizer")
        both = PromptTokenizer(tokenizer)
        encoded = (
            EncodedPair(both.source_ids([pair.source])[0], both.target_ids([pair.target])[0]) for pair in files["train"]
        )
        store = PairStore.write(folder / "train", encoded, vocabulary=tokenizer.size)
        if not len(store):
            raise DataError("data.train has no prompt; give some")
        names = list(recipe.data.train)
        np.save(folder / TASKS, np.array([names.index(pair.to) for pair in files["train"]]))
        files["train"].path.unlink()

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
        yield from (dataclasses.replace(pair, to=task) for pair in found)
