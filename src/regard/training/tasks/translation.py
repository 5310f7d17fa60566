"""Tasks: what a batch is, how it becomes a loss, and how a model is measured. The loop knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.attention import record
from regard.checkpoints.models import bare
from regard.data.batch import Batch
from regard.data.formats.pairs import Pair
from regard.data.loader import BatchLoader
from regard.data.text.bpe_dropout import PairSampler
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import ConfigError, DataError, UsageError
from regard.inference.insight.forced_pass import (
    ALIGNMENT,
    AlignmentSettings,
    Pass,
    aligning_layers,
    choose_alignment,
    forced_passes,
    guided_alignment,
)
from regard.models.catalog import MODELS
from regard.training.evaluation.translation import Evaluation, Sample
from regard.training.losses import Loss, cross_entropy, guidance, r_drop
from regard.training.prepare.pairs import prepare
from regard.training.recipe.recipes import Recipe
from regard.training.run_state import Place
from regard.training.safeguards import Poll
from regard.training.tasks.adversarial import Gan
from regard.training.tasks.image_classification import Images
from regard.training.tasks.language_modelling import language_task
from regard.training.tasks.masked_lm import Masked
from regard.training.tasks.pixel_modelling import Pixels
from regard.training.tasks.segmentation import Segmentation
from regard.training.tasks.supervised import loading
from regard.training.tasks.text_classification import Classification
from regard.training.tasks.text_to_text import Prompts, Spans
from regard.training.tasks.word_vectors import Words

ALIGNED_PAIRS = 300  # looked at to find the layer and head that align words


class TrainingBatch(Protocol):
    """What the loop asks of a batch."""

    @property
    def tokens(self) -> int: ...
    def to(self, device: torch.device, non_blocking: bool = False) -> Any: ...


class Task(Protocol):
    """One kind of training. A phase names the group of parameters its loss updates: one for a translator; a critic and
    then a generator for a GAN; one per chunk for truncated back-propagation through time."""

    summary: str  # what the data are, for the log and the model card
    divisible: bool  # whether several processes may share the batches of a step
    repeats: bool  # whether a step is the same work for every batch of a shape: then it may be captured as a graph

    @property
    def carried(self) -> dict[str, Tensor]: ...  # what a step hands to the next, saved with the run

    def build(self) -> nn.Module: ...
    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]: ...
    def rate(self, group: str) -> float: ...  # how much faster than the recipe's learning rate a group learns
    def batches(self, place: Place) -> Iterator[tuple[Place, TrainingBatch]]: ...
    def phases(self, model: Callable[..., Tensor], batch: Any) -> Iterator[tuple[str, Loss]]: ...
    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]: ...
    def samples(self) -> Sequence[Sample]: ...  # what was said in the last validation, to be read by people
    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]: ...
    def save(self, folder: Path) -> None: ...
    def finish(self, model: nn.Module, folder: Path) -> None: ...


class Translation:
    """Sentence pairs in one or several target languages, learnt by teacher forcing."""

    divisible, repeats = True, True

    def __init__(self, recipe: Recipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device = recipe, device
        self.carried: dict[str, Tensor] = {}
        self.corpus = prepare(recipe, folder, poll)
        tokenizer = self.corpus.tokenizer
        shares = self.corpus.train.shares(tokenizer.source.unknown, tokenizer.target.unknown)
        self.summary = _summary(recipe, self.corpus.report) + unknown_tokens(shares)
        if recipe.training.validate_every and not self.corpus.valid:
            raise DataError(
                "there is no validation pair; give data.valid, set more aside with data.split, "
                "or switch validation off with training.validate_every = 0"
            )
        if recipe.training.guide and not self.corpus.train.has_links:
            raise UsageError(
                "this run was begun without training.guide, so its words were never aligned; begin a new one"
            )
        self.valid = self._evaluation(self.corpus.valid, decoded=recipe.training.validate_sentences)
        self.guided: AlignmentSettings | None = None
        self.factored = recipe.training.factored(device.type)
        self._cross_entropy, self._r_drop = cross_entropy, r_drop
        if recipe.training.compiles(device.type) and not self.factored:  # a loss takes as long as a small model
            self._cross_entropy, self._r_drop = torch.compile(cross_entropy), torch.compile(r_drop)

    def build(self) -> nn.Module:
        """A new model, as large as the tokenizer needs it."""
        tokenizer, section = self.corpus.tokenizer, self.recipe.model
        config = section.config(
            source_vocab=tokenizer.source.size, target_vocab=tokenizer.target.size, pad=tokenizer.target.pad
        )
        model = MODELS[section.name].model(config)
        if self.recipe.training.guide:
            self.guided = guided_alignment(model)
            if self.guided is None:
                raise ConfigError("training.guide teaches attention where to look; this model has none: set it to 0")
        return model

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """All parameters are one group."""
        return {"model": list(model.parameters())}

    def rate(self, group: str) -> float:
        """As the recipe says."""
        return 1.0

    def batches(self, place: Place) -> Iterator[tuple[Place, Batch]]:
        """Batches for ever from a place on, each with the place after it."""
        tokenizer, training, seed = self.corpus.tokenizer, self.recipe.training, self.recipe.seed
        dropout = self.recipe.tokenizer.dropout
        loader = BatchLoader(
            self.corpus.train,
            pad=tokenizer.target.pad,
            start=tokenizer.target.start,
            batch_tokens=training.batch_tokens,
            seed=seed,
            round_lengths=training.round_lengths,
            sampler=PairSampler(tokenizer, dropout, seed) if dropout else None,
            **loading(training, self.device),
        )
        return loader.onward(place)

    def phases(self, model: Callable[..., Tensor], batch: Batch) -> Iterator[tuple[str, Loss]]:
        """One phase: the loss of translating, and of looking where the guide points."""
        tokens = batch.labels_mask.sum()
        if self.guided is None:
            yield "model", Loss(self._translation_loss(model, batch), tokens)
            return
        assert isinstance(model, nn.Module)
        with record(bare(model), self.guided.layer, scores=True, gradients=True) as looks:
            total = self._translation_loss(model, batch)
        looking = _looking_loss(looks[self.guided.layer], batch, self.guided)
        yield "model", Loss(total + self.recipe.training.guide * looking, tokens)

    def _translation_loss(self, model: Callable[..., Tensor], batch: Batch) -> Tensor:
        """Label-smoothed cross-entropy, or R-Drop over two passes."""
        smoothing, weight = self.recipe.training.label_smoothing, self.recipe.training.r_drop
        labels, mask = batch.labels, batch.labels_mask
        if weight:
            twice = (tensor.repeat(2, 1) for tensor in (batch.source, batch.source_mask, batch.inputs, mask))
            first, second = model(*twice, factored=self.factored).chunk(2)
            return self._r_drop(first, second, labels, mask, weight=weight, smoothing=smoothing)
        logits = model(batch.source, batch.source_mask, batch.inputs, mask, factored=self.factored)
        return self._cross_entropy(logits, labels, mask, smoothing)

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Loss, perplexity and, on a sample, BLEU, chrF and exact match."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the translations that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same on the whole test set; nothing where the recipe has none."""
        pairs = self.corpus.test
        return self._evaluation(pairs, decoded=len(pairs))(model, poll) if pairs else {}

    def save(self, folder: Path) -> None:
        """Put beside the weights what is needed to use them: the tokenizer."""
        self.corpus.tokenizer.save(folder)

    def finish(self, model: nn.Module, folder: Path) -> None:
        """Note beside the finished weights which attention aligns words: the guided one, or what validation finds."""
        alignment = self.guided or self._best_alignment(model)
        if alignment is not None:
            (folder / ALIGNMENT).write_text(alignment.model_dump_json(), encoding="utf-8")

    def _best_alignment(self, model: nn.Module) -> AlignmentSettings | None:
        pairs = [pair for pair in self.corpus.valid if pair.source.split() and pair.target.split()][:ALIGNED_PAIRS]
        passes = [self._pass(model, pair) for pair in pairs] if aligning_layers(model) else []
        return choose_alignment(passes, pairs)

    def _pass(self, model: nn.Module, pair: Pair) -> Pass:
        tokenizer = self.corpus.tokenizer
        ids, words = tokenizer.target.encode([pair.target]), tokenizer.target.words_in(pair.target)
        return forced_passes(model, tokenizer, [pair.source], ids, [words], to=pair.to)[0]

    def _evaluation(self, pairs: list[Pair], decoded: int) -> Evaluation:
        return Evaluation(
            pairs,
            self.corpus.tokenizer,
            decoding=self.recipe.decoding,
            decoded=decoded,
            batch_tokens=self.recipe.training.batch_tokens,
            device=self.device,
        )


def _looking_loss(scores: Tensor, batch: Batch, guided: AlignmentSettings) -> Tensor:
    """How far the guided head's scores [B H T S] are from the links, the mean of both passes under R-Drop."""
    assert batch.links is not None
    passes = len(scores) // len(batch.links)
    scores, links = scores[:, guided.head], batch.links.repeat(passes, 1, 1)
    if guided.shift:  # a word is read one step after it was said
        scores, links = scores[:, 1:], links[:, :-1]
    return guidance(scores, links, batch.source_mask.repeat(passes, 1)) / passes


def _summary(recipe: Recipe, report: dict[str, int]) -> str:
    data = recipe.data
    dropped = ", ".join(
        f"{count:,} {reason}" for reason, count in report.items()
        if count and reason not in ("kept", "train", "valid", "test")
    )  # fmt: skip
    text = (
        f"{report['train']:,} sentence pairs {data.source} → {', '.join(data.targets)} from {data.train}; "
        f"{report['valid']:,} for validation, {report['test']:,} for testing"
    )
    return f"{text}; dropped: {dropped}" if dropped else text


TASKS: dict[str, Callable[[Any, Path, torch.device, Poll], Task]] = {
    "translation": Translation,
    "language": language_task,
    "words": Words,
    "masked": Masked,
    "classification": Classification,
    "spans": Spans,
    "prompts": Prompts,
    "images": Images,
    "segmentation": Segmentation,
    "pixels": Pixels,
    "gan": Gan,
}
